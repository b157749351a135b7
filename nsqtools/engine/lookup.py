"""Finds nsqds and topics through nsqlookupd, and counts a channel's messages."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from nsqtools.config import ConsumerConfig
from nsqtools.config.units import counted
from nsqtools.engine.membership import Silence
from nsqtools.errors import UnreachableError
from nsqtools.names import Address, is_ephemeral
from nsqtools.net.http.daemons import Answers, Lookupd, NsqdHTTP, ask_all, union_producers
from nsqtools.net.tls import http_context
from nsqtools.policy.topics import Change, MatchingTopics
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from re import Pattern

    from nsqtools.config import ClientConfig
    from nsqtools.engine.membership import Subscription
    from nsqtools.net.http.replies import Registration, TopicStats

T = TypeVar("T")

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 2.0
STATS_LIMITS: Mapping[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT, "request_timeout": 5.0}
"""NsqdHTTP's keyword arguments where /stats are asked again and again."""
# How long looking whether a topic exists may delay the start.
_LOOK_TIMEOUT = 1.0


async def ask_lookupds(
    urls: Iterable[str], call: Callable[[Lookupd], Awaitable[T]], **limits: Any
) -> Answers[T]:
    """Ask all nsqlookupds at once; ``limits`` are Lookupd's keyword arguments.

    Raises ConfigError for a malformed address, UnreachableError if none answered.
    """
    clients = [Lookupd(url, **limits) for url in urls]
    try:
        answers = await ask_all(clients, call)
    finally:
        for client in clients:
            await client.close()
    if not answers.values:
        raise nobody("nsqlookupd", [error for _, error in answers.failures])
    return answers


async def nodes(
    lookupds: Iterable[str], config: ClientConfig, timeouts: tuple[float, float]
) -> list[Registration]:
    """Return all nsqds that nsqlookupds list, with any topics; raises like ``ask_lookupds``."""
    answers = await ask_lookupds(lookupds, Lookupd.nodes, **_limits(config, timeouts))
    return list(union_producers(answers.values).values())


async def find_targets(
    topic: str, lookupds: Iterable[str], config: ClientConfig, timeouts: tuple[float, float]
) -> list[Address]:
    """Return the nsqds to publish to: those that have the topic, or all if none has it.

    An nsqd whose topic is tombstoned is to get no more messages, and is left out. Warns of silent
    nsqlookupds. Raises like ``ask_lookupds``, and UnreachableError if no nsqd is left.
    """
    answers = await ask_lookupds(lookupds, Lookupd.nodes, **_limits(config, timeouts))
    Silence().heard(answers)
    having: list[Address] = []
    others: list[Address] = []
    for tcp, node in union_producers(answers.values).items():
        hidden = dict(zip(node.topics, node.tombstones, strict=True)).get(topic)
        if not hidden:
            (others if hidden is None else having).append(tcp)
    if not (having or others):
        raise UnreachableError(f"nsqlookupd lists no nsqd to publish topic {topic} to")
    return having or others


def nobody(kind: str, errors: Sequence[UnreachableError]) -> UnreachableError:
    """Return the error for servers of one kind, such as nsqd, that all failed."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return UnreachableError(f"no {kind} answers: {errors[0]}{more}")


async def producers_at(
    lookupd: str, topic: str, config: ConsumerConfig, silence: Silence
) -> list[Address]:
    """Return the topic's nsqds as one nsqlookupd lists them; ``silence`` notes that it answered.

    Raises HTTPError if it did not.
    """
    async with Lookupd(lookupd, **_poll_limits(config)) as client:
        found = await client.lookup(topic)
        silence.heard(Answers([(client.address, found)], []))
    return [producer.tcp for producer in found.producers]


async def find_producers(
    subscription: Subscription, config: ConsumerConfig, silence: Silence
) -> dict[Address, Registration]:
    """Return the topic's nsqds by broadcast_address:tcp_port.

    ``silence`` may be shared to log each nsqlookupd once. Raises UnreachableError if no nsqlookupd
    answered (building_client_libraries, Discovery).
    """
    answers = await ask_lookupds(
        subscription.lookupds,
        lambda client: client.lookup(subscription.topic),
        **_poll_limits(config),
    )
    silence.heard(answers)
    return union_producers(answer.producers for answer in answers.values)


class TopicFinder:
    """Asks all nsqlookupds for the topics that match a pattern, in each ``look``.

    ``refresh`` is the interval between looks, ``timeouts`` are for the connection and for the whole
    request; all in seconds.
    """

    def __init__(
        self,
        lookupds: Sequence[str],
        pattern: Pattern[str],
        config: ConsumerConfig,
        *,
        refresh: float,
        timeouts: tuple[float, float],
        silence: Silence | None = None,
    ) -> None:
        self._lookupds = lookupds
        self._limits = _limits(config, timeouts)
        self._topics = MatchingTopics(pattern, refresh)
        self._silence = silence or Silence()
        self.answered = False
        """Whether a round has succeeded."""

    async def look(self) -> Change:
        """Run a round; the first raises UnreachableError if no nsqlookupd answers, others warn."""
        loop = asyncio.get_running_loop()
        try:
            answers = await ask_lookupds(
                self._lookupds, lambda client: client.topics(), **self._limits
            )
        except UnreachableError as error:
            if not self.answered:
                raise
            self._silence.nobody(error)
            # An nsqlookupd that was restarted may not know the topics yet.
            return self._topics.looked((), complete=False, now=loop.time())
        self.answered = True
        self._silence.heard(answers)
        return self._topics.looked(
            (topic for value in answers.values for topic in value),
            complete=not answers.failures,
            now=loop.time(),
        )


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
    """Counts the messages that nsqds hold for a channel, by /stats.

    ``urls`` are the nsqds' HTTP APIs. By default nsqlookupd tells them; the HTTP port of a fixed
    nsqd is taken to be its TCP port + 1.
    """

    def __init__(
        self,
        subscription: Subscription,
        config: ConsumerConfig,
        urls: Sequence[str] = (),
        silence: Silence | None = None,
    ) -> None:
        self._subscription = subscription
        self._config = config
        self._silence = silence or Silence()
        self._tls = http_context(config)
        self._urls = urls

    async def count(self) -> int:
        """Return depth + in flight + deferred over all nsqds; raises UnreachableError."""
        return sum(self._count(url, topics) for url, topics in (await self._stats()).items())

    async def exists(self) -> bool:
        """Look, before SUB creates the topic, whether an nsqd has it; true if unknown.

        Warns if an ephemeral channel is going to take the messages of a topic without a channel.
        """
        name, channel = self._subscription.topic, self._subscription.channel
        found = await self._known()
        if found is None:
            return True
        waiting = sum(topic.depth for topic in found if not topic.channels)
        if waiting and is_ephemeral(channel):
            log.warning(
                "topic %s has no channel: %s takes the %s waiting in it, and those left when it "
                "ends are lost; a durable channel (--channel NAME) keeps them",
                *(name, channel, counted(waiting, "message")),
            )
        return bool(found)

    async def has_channel(self) -> bool:
        """Look, before SUB creates the channel, whether an nsqd has it; true if unknown."""
        found = await self._known()
        names = {channel.name for topic in found or () for channel in topic.channels}
        return found is None or self._subscription.channel in names

    async def _known(self) -> list[TopicStats] | None:
        """Return the topic on each nsqd that has it; None if the nsqds do not answer soon."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT):
                return [topic for topics in (await self._stats()).values() for topic in topics]
        except (UnreachableError, TimeoutError):
            return None

    async def _stats(self) -> dict[str, list[TopicStats]]:
        """Return the topic's stats by the URL of each nsqd, empty if it has no such topic.

        Raises UnreachableError.
        """
        urls = self._urls
        if not urls and self._subscription.lookupds:
            found = await find_producers(self._subscription, self._config, self._silence)
            urls = [str(producer.http) for producer in found.values()]
        elif not urls:
            urls = [str(Address(host, port + 1)) for host, port in self._subscription.nsqds]
        elif len(self._urls) < (nsqds := len(set(self._subscription.nsqds))):
            raise UnreachableError(
                f"--nsqd-http-address is given for {len(self._urls)} of {nsqds} nsqds"
            )
        return dict(zip(urls, await call_each(urls, self._ask), strict=True))

    async def _ask(self, url: str) -> list[TopicStats]:
        async with NsqdHTTP(url, tls=self._tls, **STATS_LIMITS) as nsqd:
            return await nsqd.stats(self._subscription.topic)

    def _count(self, url: str, topics: Iterable[TopicStats]) -> int:
        """Return the messages of one nsqd; 1 while it has not created the channel yet."""
        for topic in topics:
            for channel in topic.channels:
                if channel.name == self._subscription.channel:
                    return topic.depth + channel.depth + channel.in_flight + channel.deferred
        if self._urls:  # of a fixed address: it is the address of another nsqd
            raise UnreachableError(f"{url} has no channel {self._subscription.channel}")
        return 1
