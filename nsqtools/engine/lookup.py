"""Finds nsqds and topics through nsqlookupd, and counts a channel's messages."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from nsqtools.clock import ServerClock
from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.units import counted
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import ConfigError, HTTPError, UnreachableError
from nsqtools.names import Address, is_ephemeral
from nsqtools.net.http.daemons import (
    Answers,
    Lookupd,
    NsqdHTTP,
    ask_all,
    attempt,
    union_producers,
)
from nsqtools.net.tls import http_context
from nsqtools.policy.stopping import Left
from nsqtools.policy.topics import Change, MatchingTopics
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nsqtools.config.connection import ClientConfig
    from nsqtools.engine.connector import Subscription
    from nsqtools.names import TopicPattern
    from nsqtools.net.http.replies import Lookup, Registration, TopicStats

T = TypeVar("T")

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 2.0
_STATS_TIMEOUTS = _CONNECT_TIMEOUT, 5.0
STATS_LIMITS: Mapping[str, Any] = dict(
    zip(("connect_timeout", "request_timeout"), _STATS_TIMEOUTS, strict=True)
)
"""NsqdHTTP's keyword arguments for repeated requests of /stats."""
_AGREEING = 10.0
"""Maximum uncertainty in seconds of one clock for all nsqds."""
MAX_NSQDS = 2000
"""Maximum nsqds of a topic to use from one nsqlookupd's list."""
# Seconds by which the look for an existing topic may delay the start.
_LOOK_TIMEOUT = 1.0


async def ask_lookupds(
    urls: Iterable[str], call: Callable[[Lookupd], Awaitable[T]], **limits: Any
) -> Answers[T]:
    """Ask all nsqlookupds at once; ``limits`` are Lookupd's keyword arguments.

    Raises ConfigError for a malformed address, UnreachableError if no nsqlookupd answered.
    """
    clients = [Lookupd(url, **limits) for url in urls]
    try:
        answers = await ask_all(clients, call)
    finally:
        for client in clients:
            await client.close()
    if not answers.values:
        raise no_answer("nsqlookupd", [error for _, error in answers.silent])
    return answers


async def _lookup(client: Lookupd, topic: str) -> Lookup:
    """Return the topic's nsqds.

    Raises HTTPError, even for too many nsqds: this nsqlookupd's answer is then not used.
    """
    found = await client.lookup(topic)
    try:
        _check_number(client.address, topic, len(found.producers))
    except ConfigError as error:
        del found  # the error keeps this frame
        raise HTTPError(str(error), client.address) from error
    return found


def _check_number(lookupd: Address | None, topic: str, nsqds: int) -> None:
    """Raise ConfigError for too many nsqds.

    Each nsqd costs a connection. With only a part of the list, messages on the other nsqds would
    have no consumer.
    """
    if nsqds > MAX_NSQDS:
        raise ConfigError(
            f"nsqlookupd{f' {lookupd}' if lookupd else ''}: lists {counted(nsqds, 'nsqd')} for "
            f"topic {topic}, at most {MAX_NSQDS:,} are possible: give some with --nsqd-tcp-address"
        )


async def nodes(
    lookupds: Iterable[str], config: ClientConfig, timeouts: tuple[float, float]
) -> list[Registration]:
    """Return all nsqds listed by nsqlookupds, of any topic; raises like ``ask_lookupds``."""
    answers = await ask_lookupds(lookupds, Lookupd.nodes, **_limits(config, timeouts))
    return list(union_producers(answers.values).values())


async def find_targets(
    topic: str, lookupds: Iterable[str], config: ClientConfig, timeouts: tuple[float, float]
) -> list[Address]:
    """Return the nsqds to publish to: the nsqds with the topic, or all nsqds if it is new.

    Leaves out nsqds where the topic is tombstoned. Warns of silent nsqlookupds. Raises like
    ``ask_lookupds``, UnreachableError if no nsqd is left, and ConfigError for too many nsqds.
    """
    answers = await ask_lookupds(lookupds, Lookupd.nodes, **_limits(config, timeouts))
    OutageLog().lookupds_answered(answers)
    having: list[Address] = []
    others: list[Address] = []
    for tcp, node in union_producers(answers.values).items():
        hidden = dict(zip(node.topics, node.tombstones, strict=True)).get(topic)
        if not hidden:
            (others if hidden is None else having).append(tcp)
    if not (having or others):
        raise UnreachableError(f"nsqlookupd lists no nsqd to publish topic {topic} to")
    found = having or others
    _check_number(None, topic, len(found))
    return found


def no_answer(kind: str, errors: Sequence[UnreachableError]) -> UnreachableError:
    """Return the error for the failure of all servers of a kind, such as nsqd."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return UnreachableError(f"no {kind} answers: {errors[0]}{more}")


async def producers_at(
    lookupd: str, topic: str, config: ConsumerConfig, outages: OutageLog
) -> list[Address]:
    """Return the nsqds listed by one nsqlookupd for a topic; ``outages`` notes the answer.

    Raises HTTPError if nsqlookupd does not answer, and ConfigError for too many nsqds.
    """
    async with Lookupd(lookupd, **_poll_limits(config)) as client:
        found = await client.lookup(topic)
        _check_number(client.address, topic, len(found.producers))
        outages.lookupds_answered(Answers([(client.address, found)], []))
    return [producer.tcp for producer in found.producers]


async def find_producers(
    subscription: Subscription, config: ConsumerConfig, outages: OutageLog
) -> tuple[dict[Address, Registration], list[UnreachableError]]:
    """Return the topic's nsqds by broadcast_address:tcp_port, and the errors of nsqlookupds.

    ``outages`` may be shared to log each nsqlookupd once. Raises UnreachableError if no nsqlookupd
    answered (building_client_libraries, Discovery).
    """
    answers = await ask_lookupds(
        subscription.lookupds,
        lambda client: _lookup(client, subscription.topic),
        **_limits(config, _STATS_TIMEOUTS),
    )
    outages.lookupds_answered(answers)
    producers = union_producers(answer.producers for answer in answers.values)
    return producers, [error for _, error in answers.silent]


class TopicFinder:
    """Asks all nsqlookupds for the topics matching a pattern, in each ``look``.

    ``refresh`` is the interval between looks; ``timeouts`` are for the connection and for the whole
    request; all in seconds.
    """

    def __init__(
        self,
        lookupds: Sequence[str],
        pattern: TopicPattern,
        config: ConsumerConfig,
        *,
        refresh: float,
        timeouts: tuple[float, float],
        outages: OutageLog | None = None,
    ) -> None:
        self._lookupds = lookupds
        self._limits = _limits(config, timeouts)
        self._topics = MatchingTopics(pattern, refresh)
        self._outages = outages or OutageLog()
        self.answered = False
        """Whether a round has succeeded."""
        self.unknown: tuple[str, ...] = tuple(f"nsqlookupd {each}: not asked" for each in lookupds)
        """The nsqlookupds without an answer in the last round, each with the reason."""

    async def look(self, follow: Callable[[Change], object], *, patient: bool = False) -> None:
        """Run a round, and call ``follow`` with the changes of each answer as it comes.

        If no nsqlookupd answers, raises UnreachableError before the first successful round, unless
        ``patient``; otherwise warns.
        """
        loop = asyncio.get_running_loop()

        async def ask(client: Lookupd) -> list[str]:
            topics = await client.topics()
            follow(self._topics.heard(topics))
            return topics

        try:
            answers = await ask_lookupds(self._lookupds, ask, **self._limits)
        except UnreachableError as error:
            if not (self.answered or patient):
                raise
            self._outages.all_lookupds_failed(error)
            self.unknown = (str(error),)
            # A restarted nsqlookupd may not know the topics yet.
            follow(self._topics.looked((), complete=False, now=loop.time()))
            return
        self.answered = True
        self.unknown = tuple(f"nsqlookupd {error}" for _, error in answers.silent)
        self._outages.lookupds_answered(answers)
        topics = (topic for value in answers.values for topic in value)
        complete = not answers.silent
        follow(self._topics.looked(topics, complete=complete, now=loop.time()))


def _poll_limits(config: ConsumerConfig) -> dict[str, Any]:
    timeout = config.lookupd_poll_timeout
    return _limits(config, (min(_CONNECT_TIMEOUT, timeout), timeout))


def _limits(config: ClientConfig, timeouts: tuple[float, float]) -> dict[str, Any]:
    """Return Lookupd's keyword arguments; ``timeouts`` are for connection and whole request."""
    connect, request = timeouts
    authorized = isinstance(config, ConsumerConfig) and config.lookupd_authorization
    return {
        "connect_timeout": connect,
        "request_timeout": request,
        "token": config.auth_secret if authorized else "",
        "tls": http_context(config),
    }


class Backlog:
    """Counts the messages of a channel on all nsqds, by /stats.

    ``urls`` are the nsqds' HTTP APIs. By default they come from nsqlookupd; a fixed nsqd's HTTP
    port is taken to be its TCP port + 1. An nsqd once listed is asked until the end, even if
    nsqlookupd drops it: it may still hold messages.
    """

    def __init__(
        self,
        subscription: Subscription,
        config: ConsumerConfig,
        urls: Sequence[str] = (),
        outages: OutageLog | None = None,
    ) -> None:
        self._subscription = subscription
        self._config = config
        self._outages = outages or OutageLog()
        self._tls = http_context(config)
        self._urls = tuple(dict.fromkeys(urls))
        self.warning = ""
        self.clocks: dict[Address, ServerClock] = {}
        """The clocks of the nsqds that have told them, by the nsqds' addresses for consumers."""
        self.holding: dict[Address, int] = {}
        """The messages of the channel by nsqd, as of the last answers, for the same addresses."""
        self._told: dict[str, ServerClock] = {}  # by URL
        self._nsqds = {
            Address(host, port): str(Address(host, port + 1)) for host, port in subscription.nsqds
        }

    async def left(self) -> Left:
        """Return the channel's messages on all nsqds, and the servers without a usable answer."""
        found, unknown = await self._stats()
        parts = {url: self._left(url, topics) for url, topics in found.items()}
        if not self._urls:  # whose URL a given one is, nobody says
            for tcp, url in self._nsqds.items():
                if part := parts.get(url):
                    self.holding[tcp] = part.messages
        return sum(parts.values(), Left(unknown=unknown))

    async def exists(self) -> bool:
        """Look, before SUB creates the topic, whether an nsqd has it; true if unknown.

        Sets ``warning`` if an ephemeral channel would take the waiting messages of a topic without
        a channel.
        """
        name, channel = self._subscription.topic, self._subscription.channel
        found, is_complete = await self.known()
        waiting = sum(topic.depth for topic in found if not topic.channels)
        if waiting and is_ephemeral(channel):
            self.warning = (
                f"topic {name} has no channel: {channel} takes the {counted(waiting, 'message')} "
                "waiting in it, and those left when it ends are lost; a durable channel "
                "(--channel NAME) keeps them"
            )
        return bool(found) or not is_complete

    async def known(self) -> tuple[list[TopicStats], bool]:
        """Return the topic's stats on each nsqd with it, and whether all servers answered soon.

        Ask before SUB, which creates the topic and the channel.
        """
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT):
                found, unknown = await self._stats()
        except TimeoutError:
            return [], False
        return [topic for topics in found.values() for topic in topics], not unknown

    async def _stats(self) -> tuple[dict[str, list[TopicStats]], tuple[str, ...]]:
        """Return the topic's stats by the URL of each answering nsqd, and a line per failure.

        The stats are empty if the nsqd lacks the topic.
        """
        unknown: list[str] = []
        if self._subscription.lookupds:
            try:
                listed, errors = await find_producers(
                    self._subscription, self._config, self._outages
                )
            except UnreachableError as error:
                unknown.append(str(error))
            else:
                unknown += [f"nsqlookupd {error}" for error in errors]
                self._nsqds |= {tcp: str(producer.http) for tcp, producer in listed.items()}
        if self._urls and len(self._urls) < len(self._nsqds):
            counts = f"{len(self._urls)} of {len(self._nsqds)}"
            unknown.append(f"--nsqd-http-address is given for {counts} nsqds")
        urls = self._urls or tuple(self._nsqds.values())
        answers = dict(zip(urls, await call_each(urls, self._ask), strict=True))
        unknown += [str(each) for each in answers.values() if isinstance(each, HTTPError)]
        answered = {url: each for url, each in answers.items() if not isinstance(each, HTTPError)}
        self.clocks |= self._clocks()
        return answered, tuple(unknown)

    async def _ask(self, url: str) -> list[TopicStats] | HTTPError:
        async with NsqdHTTP(url, tls=self._tls, **STATS_LIMITS) as nsqd:
            found = await attempt(nsqd.stats(self._subscription.topic))
            if nsqd.clock:
                self._told[url] = nsqd.clock
            return found

    def _clocks(self) -> dict[Address, ServerClock]:
        """Return the clocks that are known.

        Whose URL a given one is, nobody says: all nsqds then have one clock, as exact as theirs
        agree.
        """
        if not self._urls:
            urls = self._nsqds.items()
            return {tcp: self._told[url] for tcp, url in urls if url in self._told}
        if len(self._told) < len(self._urls) or len(self._urls) < len(self._nsqds):
            return {}
        told = self._told.values()
        clock = ServerClock(min(each.least for each in told), max(each.most for each in told))
        return dict.fromkeys(self._nsqds, clock) if clock.uncertainty < _AGREEING else {}

    def _left(self, url: str, topics: Iterable[TopicStats]) -> Left:
        """Return the channel's messages on one nsqd."""
        for topic in topics:
            for channel in topic.channels:
                if channel.name == self._subscription.channel:
                    waiting = topic.depth + channel.depth
                    return Left(waiting, channel.in_flight, channel.deferred)
        # We are not subscribed there yet, or the address is another nsqd's.
        return Left(unknown=(f"nsqd {url} has no channel {self._subscription.channel}",))
