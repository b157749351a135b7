"""Polls /stats and /info of all nsqds of a cluster."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from nsqtools.config.units import counted
from nsqtools.engine.lookup import no_answer
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import HTTPError, UnreachableError
from nsqtools.names import is_ephemeral
from nsqtools.net.http.api import Deadline
from nsqtools.net.http.daemons import (
    Answers,
    Lookupd,
    NsqdHTTP,
    ask_all,
    attempt,
    claimed_twice,
    union_producers,
    without_repeats,
)
from nsqtools.policy.idleness import ClusterSample
from nsqtools.policy.rates import Counters, CounterSample
from nsqtools.tasks import call_each, together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from nsqtools.clock import ServerClock
    from nsqtools.names import Address
    from nsqtools.net.http.replies import NsqdInfo, NsqdStats, Registration
    from nsqtools.policy.rates import ChannelKey

log = logging.getLogger(__name__)

_FORGET = 300.0
"""Seconds to keep asking an nsqd after the last nsqlookupd has dropped it; nsqlookupd forgets a
silent nsqd after the same time (-inactive-producer-timeout). Later the nsqd is left out even if it
would answer: it may be listed at a new address, and would count twice."""

_PART = 0.4  # nsqlookupds' part of the timeout; the rest leaves nsqds time to answer
_MAX_ASKED = 500  # requests of ``again`` at a time: each has a connection
_MAX_LOGGED = 20  # silent nsqds logged with a line each


@dataclass(frozen=True, slots=True)
class Node:
    """An nsqd; ``name`` is the ``host:port`` and ``http`` the URL of its HTTP API.

    ``tcp`` is its broadcast address, None until a given nsqd has answered. ``topics`` maps the
    topics listed by nsqlookupd to their tombstones, true or false; empty without nsqlookupd.
    ``api`` is its HTTP API as nsqlookupd lists it, None for a given nsqd.
    """

    name: str
    http: str
    tcp: Address | None = None
    hostname: str = ""
    version: str = ""
    topics: Mapping[str, bool] = field(default_factory=dict)
    api: Address | None = None

    @property
    def identity(self) -> str:
        """The TCP broadcast address of the nsqd, or its name while that is unknown."""
        return str(self.tcp) if self.tcp else self.name


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The answers of one poll at about ``at``, a monotonic time in seconds.

    ``nodes`` are all asked nsqds, in order. ``stats`` and ``silent`` are by node name; ``times``
    has the time of each answer, and ``at`` is their mean; ``clocks`` has the clock of each nsqd
    whose answer told it, unless only one topic was asked for again. ``lookupds`` maps each
    nsqlookupd's ``host:port`` to its error, or to None if it answered; ``listed`` has the nsqds
    listed by each answering nsqlookupd.
    """

    at: float
    stats: Mapping[str, NsqdStats]
    silent: Mapping[str, HTTPError]
    nodes: Mapping[str, Node]
    lookupds: Mapping[str, HTTPError | None] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    listed: Mapping[str, Sequence[Registration]] = field(default_factory=dict)
    clocks: Mapping[str, ServerClock] = field(default_factory=dict)

    def time(self, name: str) -> float:
        """The time of this nsqd's answer, in monotonic seconds."""
        return self.times.get(name, self.at)

    def has(self, name: str, topic: str) -> bool:
        """Whether this nsqd has answered, and has the topic."""
        return name in self.stats and any(each.name == topic for each in self.stats[name].topics)

    def samples(self) -> dict[str, CounterSample | None]:
        """Return the input of Rates by node name; None for a silent node."""
        return {
            name: sample_of(self.time(name), self.stats[name]) if name in self.stats else None
            for name in self.nodes
        }

    def cluster_sample(self, at: float) -> ClusterSample:
        """Return the input of Idleness, at ``at`` seconds since the epoch.

        An nsqd has its identity for a name, unless others claim the same.
        """
        silent: dict[str, Collection[str] | None] = {}
        nsqds, times = {}, {}
        identities = Counter(node.identity for node in self.nodes.values())
        for name, found in self.samples().items():
            node = self.nodes[name]
            nsqd = node.identity if identities[node.identity] == 1 else name
            if found:
                nsqds[nsqd] = found
                if clock := self.clocks.get(name):
                    times[nsqd] = clock.span(self.time(name))
            else:
                silent[nsqd] = node.topics if node.api else None
        shared: dict[str, set[str]] = {}
        for nodes in self.listed.values():
            for tcp, hosts in claimed_twice(nodes).items():
                if len(hosts) > identities[str(tcp)]:  # otherwise each was given, and has its name
                    topics = (topic for node in nodes if node.tcp == tcp for topic in node.topics)
                    shared.setdefault(str(tcp), set()).update(topics)
        silent_lookupds = [name for name, error in self.lookupds.items() if error]
        return ClusterSample(at, nsqds, silent, silent_lookupds, shared, times)

    def topics(self) -> dict[str, Mapping[str, bool]]:
        """Return the topics listed by nsqlookupd, by node name, as input of Rates."""
        return {name: node.topics for name, node in self.nodes.items()}

    def having(self, topic: str, channel: str | None, messages: int | None = None) -> list[Address]:
        """Return the TCP addresses of the answering nsqds that have a topic with this channel.

        An empty ``channel`` means any that stays when its clients leave, None that the topic needs
        none. With ``messages``, only as many nsqds are returned as have this number waiting in the
        channel, the deepest first: a consumer's RDY is divided evenly, and an nsqd without messages
        would waste a part.
        """
        depths: dict[Address, int] = {}
        for name, stats in self.stats.items():
            tcp = self.nodes[name].tcp
            for each in stats.topics:
                parts = {part.name: part.depth for part in each.channels}
                stays = not all(map(is_ephemeral, parts))
                has = channel is None or (channel in parts if channel else stays)
                if each.name == topic and has and tcp:
                    depths[tcp] = parts.get(channel or "", 0)
        if messages is None:
            return list(depths)
        found: list[Address] = []
        for tcp in sorted(depths, key=lambda tcp: -depths[tcp]):
            if not found or (messages > 0 and depths[tcp]):
                found.append(tcp)
                messages -= depths[tcp]
        return found

    def taking(self, topic: str) -> list[Address]:
        """Return the TCP addresses to publish to: of the nsqds with the topic, or of all."""
        return self.having(topic, None) or [
            node.tcp for name, node in self.nodes.items() if node.tcp and name in self.stats
        ]


class Cluster:
    """The given nsqds and the nsqds listed by nsqlookupds; an async context manager.

    A given nsqd is asked at the given address, and counts once even if it is also listed.
    ``limits`` are HTTPClient's connect_timeout, request_timeout and tls. ``timeout`` is for a whole
    poll, in seconds. Each silent server is logged once, unless ``quiet``. Raises ConfigError for a
    malformed address.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        nsqds: Iterable[str],
        *,
        quiet: bool = False,
        timeout: float = math.inf,
        **limits: Any,
    ) -> None:
        self._timeout = timeout
        self._deadline = Deadline()
        self._room = asyncio.Semaphore(_MAX_ASKED)
        self._limits = {"deadline": self._deadline, **limits}
        self._quiet = quiet
        self._lookupds = [Lookupd(url, **self._limits) for url in dict.fromkeys(lookupds)]
        self._outages = OutageLog()
        self._silent: set[str] = set()
        self._clients: dict[str, NsqdHTTP] = {}
        self._given: dict[str, str] = {}
        for url in nsqds:
            client = NsqdHTTP(url, **self._limits)
            name = f"{client.address}{client.url.path.rstrip('/')}"
            self._clients.setdefault(name, client)
            self._given.setdefault(name, url)
        self._infos: dict[str, NsqdInfo] = {}
        self._found: dict[str, tuple[Node, float]] = {}  # with the time of the last listing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections kept alive between polls."""
        for client in (*self._lookupds, *self._clients.values()):
            await client.close()

    async def poll(
        self, topic: str | None = None, channel: str | None = None, *, include_clients: bool = False
    ) -> Snapshot:
        """Like ``look``, but raises UnreachableError if there are servers but no answers."""
        snapshot, answers = await self._look(topic, channel, include_clients)
        if snapshot.silent and not snapshot.stats:
            raise no_answer("nsqd", list(snapshot.silent.values()))
        if not snapshot.stats and (error := _unanswered(answers)):
            raise error
        self._tell(snapshot, answers)
        return snapshot

    async def look(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = False,
        everywhere: bool = False,
    ) -> Snapshot:
        """Find the nsqds with the topic, and ask them all at once.

        Silent servers are in ``silent``, even if no server answers. ``everywhere`` also asks
        nsqds listed without the topic: it may have been deleted from nsqlookupd alone.
        """
        snapshot, answers = await self._look(topic, channel, include_clients, everywhere=everywhere)
        self._tell(snapshot, answers)
        return snapshot

    async def again(self, snapshot: Snapshot, topic: str) -> Snapshot:
        """Ask the nsqds of a snapshot that have a topic for this topic, with its consumers.

        Nobody waits for nsqds that were silent: their errors stay. Many may ask at a time, so each
        request has a connection and a timeout of its own, which begins once there is room for it.
        """
        times: dict[str, float] = {}

        async def ask(node: Node) -> NsqdStats:
            async with self._room:
                limits = {**self._limits, "deadline": Deadline(self._timeout)}
                async with NsqdHTTP(node.http, **limits) as client:
                    found = await client.report(topic, include_clients=True)
                    times[node.name] = client.at
                    return found

        nodes = {
            name: node
            for name, node in snapshot.nodes.items()
            if (self._has(node, topic) if name in snapshot.silent else snapshot.has(name, topic))
        }
        known = {name: each for name, each in snapshot.silent.items() if name in nodes}
        stats, silent = await _report(nodes, known, ask)
        at = fmean(times.values()) if times else monotonic()
        return Snapshot(at, stats, silent, nodes, times=times)

    async def unheld(self, snapshot: Snapshot) -> list[str]:
        """Return the topics that nsqlookupds know, although no answering nsqd has them.

        Only the nsqlookupds that answered for the snapshot are asked.
        """
        clients = [each for each in self._lookupds if not snapshot.lookupds.get(str(each.address))]
        self._deadline.begin(_PART * self._timeout)
        answers = await ask_all(clients, lambda client: client.topics())
        held = {topic.name for stats in snapshot.stats.values() for topic in stats.topics}
        return sorted({name for names in answers.values for name in names} - held)

    async def _look(
        self, topic: str | None, channel: str | None, clients: bool, *, everywhere: bool = False
    ) -> tuple[Snapshot, Answers[list[Registration]]]:
        end = Deadline(2 * _PART * self._timeout)
        self._deadline.begin(_PART * self._timeout)
        answers, failed = await self._discover()
        self._deadline.begin(end.left)
        found = self._united(answers)
        for name in self._clients.keys() - {node.name for node in found}:
            await self._hang_up(name)
        nodes = {each.name: each for each in found if everywhere or self._has(each, topic)}
        known = {name: failed[name] for name in nodes if name in failed}

        async def ask(node: Node) -> NsqdStats:
            return await self._ask(node, topic, channel, clients=clients)

        stats, silent = await _report(nodes, known, ask)
        times = {name: self._clients[name].at for name in stats}
        clocks = {name: clock for name in stats if (clock := self._clients[name].clock)}
        listed = {str(address): answer for address, answer in answers.answers}
        lookupds: dict[str, HTTPError | None] = dict.fromkeys(listed)
        lookupds |= {str(address): error for address, error in answers.silent}
        at = fmean(times.values()) if times else monotonic()
        return Snapshot(at, stats, silent, nodes, lookupds, times, listed, clocks), answers

    async def _ask(
        self, node: Node, topic: str | None, channel: str | None, *, clients: bool
    ) -> NsqdStats:
        """Ask an nsqd within the deadline of the poll; raises HTTPError."""
        try:
            self._deadline.check(node.api)
            stats = await self._client(node).report(topic, channel, include_clients=clients)
        except HTTPError:
            await self._hang_up(node.name)
            raise
        info = self._infos.get(node.name)
        if info and info.start_time != stats.start_time:
            del self._infos[node.name]  # nsqd was restarted, perhaps with other options
        return stats

    async def _discover(self) -> tuple[Answers[list[Registration]], dict[str, HTTPError]]:
        """Ask nsqlookupds for nsqds, and given nsqds without a known /info for it.

        Returns the answers of nsqlookupds, and the errors of given nsqds by name.
        """
        unknown = [name for name in self._given if name not in self._infos]
        answers, infos = await together(
            ask_all(self._lookupds, lambda client: client.nodes()),
            call_each(unknown, lambda name: attempt(self._clients[name].info())),
        )
        failed = {}
        for name, info in zip(unknown, infos, strict=True):
            if isinstance(info, HTTPError):
                failed[name] = info
            else:
                self._infos[name] = info
        return answers, failed

    async def _hang_up(self, name: str) -> None:
        """Close the client of a node, unless the node was given."""
        if name not in self._given and name in self._clients:
            await self._clients.pop(name).close()

    def _tell(self, snapshot: Snapshot, answers: Answers[list[Registration]]) -> None:
        """Log each silent server once, until it answers again."""
        if self._quiet:
            return
        if error := _unanswered(answers):
            self._outages.all_lookupds_failed(error)
        else:
            self._outages.lookupds_answered(answers)
        for name in snapshot.stats.keys() & self._silent:
            log.info("nsqd %s: answers again", name)
        fallen = [e for name, e in snapshot.silent.items() if name not in self._silent]
        for failure in fallen[:_MAX_LOGGED]:
            log.warning("nsqd %s", failure)
        if more := len(fallen[_MAX_LOGGED:]):
            log.warning("no answer from %s", counted(more, "more nsqd"))
        self._silent = set(snapshot.silent)

    def _united(self, answers: Answers[list[Registration]]) -> list[Node]:
        """Return given and listed nsqds, each once; nsqds no longer listed stay for a while."""
        listed = union_producers(answers.values)
        infos = without_repeats({name: self._infos.get(name) for name in self._given})
        nodes = {
            name: _given_node(name, self._given[name], info, listed) for name, info in infos.items()
        }
        configured, now = {node.tcp for node in nodes.values()}, monotonic()
        if not answers.answers:  # without an answer no nsqd counts as no longer listed
            self._found = {name: (node, now) for name, (node, _) in self._found.items()}
        for tcp, producer in listed.items():
            name = str(producer.http)
            self._found[name] = _listed_node(name, tcp, producer), now
        self._found = {
            name: (node, seen)
            for name, (node, seen) in self._found.items()
            if name not in nodes and node.tcp not in configured and now - seen <= _FORGET
        }
        return [*nodes.values(), *(self._found[name][0] for name in sorted(self._found))]

    def _client(self, node: Node) -> NsqdHTTP:
        if node.name not in self._clients:
            self._clients[node.name] = NsqdHTTP(node.http, **self._limits)
        return self._clients[node.name]

    def _has(self, node: Node, topic: str | None) -> bool:
        """Whether the nsqd may have the topic; always true for a given nsqd."""
        return topic is None or node.name in self._given or topic in node.topics


async def _report(
    nodes: Mapping[str, Node],
    known: Mapping[str, HTTPError],
    ask: Callable[[Node], Awaitable[NsqdStats]],
) -> tuple[dict[str, NsqdStats], dict[str, HTTPError]]:
    """Ask all nsqds at once, but not the ``known`` silent ones; return answers and errors."""
    asked = [node for name, node in nodes.items() if name not in known]
    stats, silent = {}, dict(known)
    answers = await call_each(asked, lambda node: attempt(ask(node)))
    for node, answer in zip(asked, answers, strict=True):
        if isinstance(answer, HTTPError):
            silent[node.name] = answer
        else:
            stats[node.name] = answer
    return stats, silent


def _unanswered(answers: Answers[Any]) -> UnreachableError | None:
    """Return the error if nsqlookupds were asked but no nsqlookupd answered."""
    errors = [error for _, error in answers.silent]
    return no_answer("nsqlookupd", errors) if errors and not answers.answers else None


def _given_node(
    name: str, url: str, info: NsqdInfo | None, listed: Mapping[Address, Registration]
) -> Node:
    if info is None:
        return Node(name, url)
    tcp = info.tcp
    producer = listed.get(tcp) if tcp else None
    topics = zip(producer.topics, producer.tombstones, strict=True) if producer else ()
    return Node(name, url, tcp, info.hostname, info.version, dict(topics))


def _listed_node(name: str, tcp: Address, producer: Registration) -> Node:
    topics = dict(zip(producer.topics, producer.tombstones, strict=True))
    http = f"http://{name}"
    return Node(name, http, tcp, producer.hostname, producer.version, topics, producer.http)


def sample_of(at: float, stats: NsqdStats) -> CounterSample:
    """Return the counters of one answer, at time ``at``, in seconds."""
    counters: dict[ChannelKey, Counters] = {}
    for topic in stats.topics:
        counters[topic.name, ""] = Counters(
            messages=topic.message_count,
            depth=topic.depth,
            backend_depth=topic.backend_depth,
            paused=topic.paused,
        )
        for channel in topic.channels:
            counters[topic.name, channel.name] = Counters(
                channel.message_count,
                channel.requeue_count,
                channel.timeout_count,
                channel.depth,
                channel.backend_depth,
                channel.in_flight,
                channel.deferred,
                channel.client_count,
                channel.paused,
            )
    return CounterSample(at, stats.start_time, counters)
