"""Finding nsqds through nsqlookupd, and counting what they still hold for a channel."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqtools.errors import UnreachableError
from nsqtools.names import Address
from nsqtools.net.http import Lookupd, NsqdHTTP, ask_all, union_producers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nsqtools.config import ConsumerConfig
    from nsqtools.engine.membership import Subscription
    from nsqtools.net.http import Producer

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 2.0
_STATS_TIMEOUT = 5.0


class Lookups:
    """The nsqlookupds of a subscription, asked all at once; one failure is told once, not hourly.

    Raises ConfigError for a malformed address.
    """

    def __init__(self, subscription: Subscription, config: ConsumerConfig) -> None:
        self._topic = subscription.topic
        token = config.auth_secret if config.lookupd_authorization else ""
        self._clients = [
            Lookupd(
                url,
                connect_timeout=min(_CONNECT_TIMEOUT, config.lookupd_poll_timeout),
                request_timeout=config.lookupd_poll_timeout,
                token=token,
            )
            for url in subscription.lookupds
        ]
        self._failing: set[str] = set()

    async def producers(self) -> dict[Address, Producer]:
        """Who has the topic, by broadcast_address:tcp_port (building_client_libraries, Discovery).

        Raises UnreachableError if no nsqlookupd answered.
        """
        answers = await ask_all(self._clients, lambda client: client.lookup(self._topic))
        failing = {str(address) for address, _ in answers.failures}
        for address, error in answers.failures:
            known = str(address) in self._failing
            log.log(logging.DEBUG if known else logging.WARNING, "nsqlookupd %s", error)
        self._failing = failing
        if not answers.replies:
            raise UnreachableError(f"no nsqlookupd answers: {answers.failures[0][1]}")
        return union_producers(reply.producers for reply in answers.replies)


def finder(
    subscription: Subscription, config: ConsumerConfig
) -> Callable[[], Awaitable[Iterable[Address]]]:
    """The addresses of ``Lookups.producers``, as Membership wants them."""
    return Lookups(subscription, config).producers


class Backlog:
    """How many messages nsqds hold for a channel, by their HTTP APIs.

    A fixed nsqd's HTTP port is taken to be the one after its TCP port, as it is by default.
    """

    def __init__(self, subscription: Subscription, config: ConsumerConfig) -> None:
        self._subscription = subscription
        self._lookups = Lookups(subscription, config) if subscription.lookupds else None
        self._clients: dict[Address, NsqdHTTP] = {}

    async def count(self) -> int:
        """Depth, in flight and deferred over all nsqds; raises UnreachableError."""
        if self._lookups:
            producers = await self._lookups.producers()
            addresses = [producer.http for producer in producers.values()]
        else:
            addresses = [Address(host, port + 1) for host, port in self._subscription.nsqds]
        return sum(await asyncio.gather(*map(self._count, addresses)))

    async def _count(self, address: Address) -> int:
        """Of a channel that is not there yet the topic's depth counts: it will get all of it."""
        if address not in self._clients:
            self._clients[address] = NsqdHTTP(
                str(address), connect_timeout=_CONNECT_TIMEOUT, request_timeout=_STATS_TIMEOUT
            )
        total = 0
        for topic in await self._clients[address].stats(self._subscription.topic):
            total += topic.depth
            for channel in topic.channels:
                if channel.name == self._subscription.channel:
                    total += channel.depth + channel.in_flight + channel.deferred
        return total
