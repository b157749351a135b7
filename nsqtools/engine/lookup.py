"""Finding nsqds through nsqlookupd, and counting what they still hold for a channel."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from nsqtools.engine.concurrency import call_each
from nsqtools.errors import UnreachableError
from nsqtools.names import Address
from nsqtools.net.http import Lookupd, NsqdHTTP, ask_all, union_producers
from nsqtools.net.tls import http_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from nsqtools.config import ConsumerConfig
    from nsqtools.engine.membership import Subscription
    from nsqtools.errors import HTTPError
    from nsqtools.net.http import Answers, Producer
    from nsqtools.net.replies import TopicStats

T = TypeVar("T")

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 2.0
_STATS_TIMEOUT = 5.0


async def ask_lookupds(
    urls: Iterable[str], call: Callable[[Lookupd], Awaitable[T]], **limits: Any
) -> Answers[T]:
    """Ask all nsqlookupds at once; ``limits`` are Lookupd's keywords.

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


def nobody(kind: str, errors: Sequence[HTTPError]) -> UnreachableError:
    """The error of servers, of a kind, that all failed."""
    more = f" (nor do {len(errors) - 1} others)" if len(errors) > 1 else ""
    return UnreachableError(f"no {kind} answers: {errors[0]}{more}")


class Silence:
    """Which nsqlookupds do not answer: each is told once until it does, whoever asks."""

    def __init__(self) -> None:
        self._silent: set[Address] = set()
        self._all = False

    def heard(self, answers: Answers[Any]) -> None:
        """Some answered; warns of the others."""
        self._all = False
        self._silent.difference_update(address for address, _ in answers.answers)
        for address, error in answers.failures:
            known = address in self._silent
            log.log(logging.DEBUG if known else logging.WARNING, "nsqlookupd %s", error)
            self._silent.add(address)

    def nobody(self, error: UnreachableError) -> None:
        """None answered; warns of that."""
        log.log(logging.DEBUG if self._all else logging.WARNING, "%s", error)
        self._all = True


class Lookups:
    """The nsqlookupds of a subscription; ``silence`` is what its user and others know of them."""

    def __init__(
        self, subscription: Subscription, config: ConsumerConfig, silence: Silence | None = None
    ) -> None:
        self._subscription = subscription
        self._limits = {
            "connect_timeout": min(_CONNECT_TIMEOUT, config.lookupd_poll_timeout),
            "request_timeout": config.lookupd_poll_timeout,
            "token": config.auth_secret if config.lookupd_authorization else "",
            "tls": http_context(config),
        }
        self._silence = silence or Silence()

    async def producers(self) -> dict[Address, Producer]:
        """Who has the topic, by broadcast_address:tcp_port (building_client_libraries, Discovery).

        Raises UnreachableError if no nsqlookupd answered.
        """
        topic = self._subscription.topic
        answers = await ask_lookupds(
            self._subscription.lookupds, lambda client: client.lookup(topic), **self._limits
        )
        self._silence.heard(answers)
        return union_producers(answer.producers for answer in answers.values)


def finder(
    subscription: Subscription, config: ConsumerConfig
) -> Callable[[], Awaitable[Iterable[Address]]]:
    """The addresses of ``Lookups.producers``, as Membership wants them."""
    return Lookups(subscription, config).producers


class Backlog:
    """How many messages nsqds hold for a channel, by their HTTP APIs.

    ``urls`` are those APIs; without any, they are where nsqlookupd says, or at the port after a
    fixed nsqd's TCP port, as by default.
    """

    def __init__(
        self,
        subscription: Subscription,
        config: ConsumerConfig,
        urls: Sequence[str] = (),
        silence: Silence | None = None,
    ) -> None:
        self._subscription = subscription
        self._lookups = Lookups(subscription, config, silence) if subscription.lookupds else None
        self._tls = http_context(config)
        self._urls = urls

    async def count(self) -> int:
        """Depth, in flight and deferred over all nsqds; raises UnreachableError."""
        return sum(self._count(url, topics) for url, topics in (await self.stats()).items())

    async def stats(self) -> dict[str, list[TopicStats]]:
        """The topic, where there is one, by the URL of each nsqd; raises UnreachableError."""
        urls = self._urls
        if not urls and self._lookups:
            urls = [str(producer.http) for producer in (await self._lookups.producers()).values()]
        elif not urls:
            urls = [str(Address(host, port + 1)) for host, port in self._subscription.nsqds]
        elif len(self._urls) < (nsqds := len(set(self._subscription.nsqds))):
            raise UnreachableError(f"HTTP addresses of {len(self._urls)} of {nsqds} nsqds")
        return dict(zip(urls, await call_each(urls, self._ask), strict=True))

    async def _ask(self, url: str) -> list[TopicStats]:
        async with NsqdHTTP(
            url,
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=_STATS_TIMEOUT,
            tls=self._tls,
        ) as nsqd:
            return await nsqd.stats(self._subscription.topic)

    def _count(self, url: str, topics: Iterable[TopicStats]) -> int:
        """What this nsqd holds: something, while it has not made our channel."""
        for topic in topics:
            for channel in topic.channels:
                if channel.name == self._subscription.channel:
                    return topic.depth + channel.depth + channel.in_flight + channel.deferred
        if self._urls:  # of fixed addresses it means that this is another nsqd
            raise UnreachableError(f"{url} has no channel {self._subscription.channel}")
        return 1
