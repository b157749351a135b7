"""Plans the requests to create, empty, pause or delete a topic or channel on all servers.

This module sends nothing: a survey goes in, and a list of requests comes out. As in nsqadmin
(``internal/clusterinfo``), requests to nsqlookupds come before requests to nsqds, so no consumer is
sent to an nsqd about to delete the topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

from nsqtools.config.units import counted
from nsqtools.net.http.daemons import union_producers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqtools.clock import ServerClock
    from nsqtools.engine.cluster import Node
    from nsqtools.errors import HTTPError
    from nsqtools.names import Address
    from nsqtools.net.http.replies import ChannelStats, Registration, TopicStats


Verb = Literal["create", "delete", "empty", "pause", "unpause"]
"""A change of a topic or channel, named like nsqd's endpoint."""

REGISTERED: tuple[Verb, ...] = ("create", "delete")
"""The changes to make on nsqlookupds too, before the nsqds."""

Discard = Literal["messages", "channels"]
"""The messages to discard: the target's alone, or those of a topic and its channels."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, or one of its channels."""

    topic: str
    channel: str = ""

    @property
    def kind(self) -> str:
        """``topic`` or ``channel``."""
        return "channel" if self.channel else "topic"

    @property
    def names(self) -> tuple[str, ...]:
        """The topic name, followed by the channel name if the target is a channel."""
        return (self.topic, self.channel) if self.channel else (self.topic,)

    def __str__(self) -> str:
        topic = f"topic {self.topic}"
        return f"channel {self.channel} of {topic}" if self.channel else topic


@dataclass(frozen=True, slots=True)
class Registry:
    """The topics, channels and nsqds listed by one nsqlookupd, or its ``error``.

    ``name`` is the nsqlookupd's ``host:port``.
    """

    name: str
    url: str
    topics: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    producers: tuple[Registration, ...] = ()
    error: HTTPError | None = None

    def knows(self, target: Target) -> bool:
        """Whether this nsqlookupd lists the topic or channel."""
        return target.channel in self.channels if target.channel else target.topic in self.topics


@dataclass(frozen=True, slots=True)
class Holding:
    """One nsqd and its ``topic``, None if absent; ``error`` if the nsqd does not answer.

    ``given`` is true if the user named the nsqd, false if only nsqlookupd listed it. ``clock`` is
    None if unknown.
    """

    node: Node
    given: bool
    topic: TopicStats | None = None
    error: HTTPError | None = None
    clock: ServerClock | None = None

    def channel(self, name: str) -> ChannelStats | None:
        """Return a channel of the topic; None if the nsqd lacks it."""
        channels = self.topic.channels if self.topic else ()
        return next((each for each in channels if each.name == name), None)

    def has(self, target: Target) -> bool:
        """Whether this nsqd has the topic or channel."""
        return bool(self.channel(target.channel) if target.channel else self.topic)

    def may_have(self, target: Target) -> bool:
        """Whether this nsqd is silent and may have the topic."""
        return self.error is not None and (self.given or target.topic in self.node.topics)

    def is_paused(self, target: Target) -> bool:
        """Whether the topic or channel is paused on this nsqd."""
        found = self.channel(target.channel) if target.channel else self.topic
        return found is not None and found.paused


@dataclass(frozen=True, slots=True)
class Survey:
    """The servers asked about a topic, with their answers."""

    registries: tuple[Registry, ...]
    holdings: tuple[Holding, ...]

    def is_known(self, target: Target) -> bool:
        """Whether any server has the topic or channel, or may have it."""
        return any(each.knows(target) for each in self.registries) or any(
            each.has(target) or each.may_have(target) for each in self.holdings
        )

    @property
    def blind(self) -> bool:
        """Whether nsqds may be missing, because no nsqlookupd answers."""
        return bool(self.registries) and all(each.error for each in self.registries)

    @property
    def mute(self) -> list[HTTPError]:
        """The errors of silent nsqlookupds; each may list nsqds missing from the others."""
        return [each.error for each in self.registries if each.error]

    @property
    def channels(self) -> set[str]:
        """The names of all channels of the topic."""
        registered = {name for each in self.registries for name in each.channels}
        held = {
            channel.name
            for each in self.holdings
            for channel in (each.topic.channels if each.topic else ())
        }
        return registered | held


@dataclass(frozen=True, slots=True)
class Loss:
    """The contents that emptying or deleting would discard, over all reachable nsqds."""

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    channels: int = 0
    clients: int = 0
    nsqds: int = 0

    @property
    def messages(self) -> int:
        """The number of messages; a message in two channels counts twice."""
        return self.depth + self.in_flight + self.deferred

    def __str__(self) -> str:
        """``120 messages on 2 nsqds would be lost (depth 100, in flight 15, deferred 5)``."""
        parts = f"depth {self.depth}, in flight {self.in_flight}, deferred {self.deferred}"
        held = f"{counted(self.messages, 'message')} on {counted(self.nsqds, 'nsqd')}"
        ends = f", in {counted(self.channels, 'channel')}" if self.channels else ""
        uses = f" with {counted(self.clients, 'consumer')}" if self.clients else ""
        return f"{held} would be lost ({parts}){ends}{uses}"


@dataclass(frozen=True, slots=True)
class Step:
    """A request to a server; ``server`` is ``nsqlookupd`` or ``nsqd``.

    ``name`` is the server's ``host:port``. ``note`` says why the request changes nothing; ``error``
    says why it failed or is not sent.
    """

    server: str
    name: str
    url: str
    path: str
    names: tuple[str, ...]
    node: Address | None = None
    note: str = ""
    error: HTTPError | None = None

    @property
    def params(self) -> dict[str, str]:
        """The query parameters of the request."""
        query = dict(zip(("topic", "channel"), self.names, strict=False))
        if self.node:
            # nsqlookupd compares host:port as text: IPv6 without brackets (nsqlookupd/http.go).
            query["node"] = f"{self.node.host}:{self.node.port}"
        return query

    @property
    def request(self) -> str:
        """``POST http://127.0.0.1:4151/topic/pause?topic=events``."""
        base = self.url if "://" in self.url else f"http://{self.name}"
        return f"POST {base.rstrip('/')}/{self.path}?{urlencode(self.params, safe=':')}"


Stages = list[list[Step]]
"""The steps of a stage run at once; each stage begins after the previous one has ended."""


def plan(verb: Verb, target: Target, survey: Survey) -> Stages:
    """Return the requests for a change; empty if no server has to change."""
    path = f"{target.kind}/{verb}"
    lookupds = [_lookupd_step(path, target, each) for each in survey.registries]
    nsqds = [
        step for each in survey.holdings if (step := _nsqd_step(verb, target, each)) is not None
    ]
    return [lookupds, nsqds] if verb in REGISTERED else [nsqds]


def plan_tombstone(
    topic: str, producer: Registration, survey: Survey, *, delete: bool = False
) -> Stages:
    """Return the requests to tombstone an nsqd's topic and, with ``delete``, then delete it."""
    hide = [
        _lookupd_step("topic/tombstone", Target(topic), each, node=producer.node)
        for each in survey.registries
    ]
    if not delete:
        return [hide]
    found = [each for each in survey.holdings if each.node.tcp == producer.tcp]
    drop = [_nsqd_step("delete", Target(topic), each) for each in found]
    return [hide, [step for step in drop if step]]


def loss(discard: Discard, target: Target, holdings: Iterable[Holding]) -> Loss:
    """Count the contents that a change would discard on these nsqds."""
    depth = in_flight = deferred = clients = nsqds = 0
    names = set()
    for each in holdings:
        if each.topic is None or not each.has(target):
            continue
        nsqds += 1
        depth += each.topic.depth if not target.channel else 0
        for channel in each.topic.channels:
            if channel.name == target.channel or (not target.channel and discard == "channels"):
                names.add(channel.name)
                depth += channel.depth
                in_flight += channel.in_flight
                deferred += channel.deferred
                clients += channel.client_count
    return Loss(depth, in_flight, deferred, len(names), clients, nsqds)


def _lookupd_step(
    path: str, target: Target, registry: Registry, node: Address | None = None
) -> Step:
    note = ""
    if path.endswith("/create") and registry.knows(target):
        note = "already exists"
    elif path.endswith("/delete") and not registry.knows(target):
        note = "does not exist"
    elif node and not any(each.node == node for each in registry.producers):
        note = "does not list that nsqd"
    error = registry.error
    note = "" if error else note
    return Step("nsqlookupd", registry.name, registry.url, path, target.names, node, note, error)


def _nsqd_step(verb: Verb, target: Target, holding: Holding) -> Step | None:
    """Return the request to an nsqd; None if there is nothing to change on it."""
    note = ""
    if verb == "create":
        has_work = holding.given if not target.channel else holding.topic is not None
        note = "already exists" if holding.has(target) else ""
    else:
        has_work = holding.has(target)
        if verb == "pause" and holding.is_paused(target):
            note = "is already paused"
        elif verb == "unpause" and not holding.is_paused(target):
            note = "is not paused"
    if not (has_work or holding.may_have(target)):
        return None
    path, node, note = f"{target.kind}/{verb}", holding.node, "" if holding.error else note
    return Step("nsqd", node.name, node.http, path, target.names, note=note, error=holding.error)


def find_producer(text: str, survey: Survey) -> Registration | None:
    """Find an nsqd by its HTTP or TCP address, or by a unique host name; None if not found."""
    listed_producers = producers(survey.registries)
    for producer in listed_producers:
        if text in (str(producer.http), str(producer.tcp)):
            return producer
    named = [each for each in listed_producers if text in (each.broadcast_address, each.hostname)]
    return named[0] if len(named) == 1 else None


def producers(registries: Iterable[Registry]) -> list[Registration]:
    """Return all nsqds listed by nsqlookupds, sorted by HTTP address."""
    united = union_producers(each.producers for each in registries)
    return sorted(united.values(), key=lambda producer: producer.http)
