"""Whether what is relayed comes back, because an nsqd it goes to is one that it comes from.

An nsqd is known by what it says of itself over HTTP, whatever it is called; where that cannot be
had, by the addresses that its name stands for.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.engine.concurrency import together
from nsqtools.engine.lookup import nodes
from nsqtools.errors import ConfigError, HTTPError
from nsqtools.names import Address
from nsqtools.net.http.daemons import NsqdHTTP
from nsqtools.net.tls import http_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config import ClientConfig
    from nsqtools.net.http.replies import Registration

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 1.0
_REQUEST_TIMEOUT = 3.0
_THIS_HOST = "localhost"


class _Self(NamedTuple):
    """What an nsqd says of itself; ``start_time`` is 0 when it is nsqlookupd that says it."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    start_time: int


@dataclass(frozen=True, slots=True)
class _Nsqd:
    """An nsqd: what it is called here, where that leads to, and what it says of itself.

    Of ``places`` those on this host have its name for an address. ``http`` is where it can be asked
    for its start time.
    """

    name: str
    addresses: frozenset[Address] = frozenset()
    places: frozenset[Address] = frozenset()
    said: _Self | None = None
    http: str = ""

    def may_be(self, other: _Nsqd) -> bool:
        """Whether nothing tells it from the other one."""
        if self.addresses & other.addresses:
            return True
        if self.said and other.said and self.said.start_time and other.said.start_time:
            return self.said == other.said
        if self.said and other.said and self.said[:4] == other.said[:4]:
            return True
        return bool(self.places & other.places)


@dataclass(frozen=True, slots=True)
class Side:
    """Where messages come from, or go to.

    ``http`` are HTTP addresses of nsqds that are not at the port after the TCP port.
    """

    config: ClientConfig
    nsqds: Sequence[Address]
    lookupds: Sequence[str] = ()
    http: Sequence[str] = ()


class LoopGuard:
    """Refuses topics that would come back, if source and destination have an nsqd in common.

    ``loops`` has those that would, each with the topic it goes to.
    """

    def __init__(self, loops: Mapping[str, str], source: Side, destination: Side) -> None:
        self._loops = loops
        self._source = source
        self._destination = destination
        self._own = set(destination.nsqds)

    async def check(self) -> None:
        """Raise ConfigError for an nsqd in common, UnreachableError if no nsqlookupd answers."""
        sources = await _known(self._source)
        for goal in await _known(self._destination):
            if goal.said:
                self._own.add(Address(goal.said.broadcast_address, goal.said.tcp_port))
            for source in sources:
                if source.may_be(goal) and await self._is_same(source, goal):
                    raise self._error(next(iter(self._loops)), source.name, goal.name)

    def error_for(self, topic: str, source: Address) -> ConfigError | None:
        """The error for a topic that would come back, as the nsqd it comes from is a destination.

        For those that join the cluster later: it must cost nothing.
        """
        if topic in self._loops and source in self._own:
            return self._error(topic, str(source), "a destination")
        return None

    async def _is_same(self, source: _Nsqd, goal: _Nsqd) -> bool:
        """Whether those that may be one nsqd started at the same time, if both can be asked."""
        if source.addresses & goal.addresses or not (source.http and goal.said):
            return True
        said = await _ask(source.http, self._source.config)
        return said is None or not goal.said.start_time or said == goal.said

    def _error(self, topic: str, source: str, goal: str) -> ConfigError:
        return ConfigError(
            f"topic {topic} would be relayed to {self._loops[topic]} of the nsqd that it comes "
            f"from, round and round: {goal} is {source}; choose another --destination-topic, "
            "--map or --destination-nsqd-tcp-address"
        )


async def _known(side: Side) -> list[_Nsqd]:
    """Who is there now; raises UnreachableError if no nsqlookupd answers."""
    if side.lookupds:
        timeouts = _CONNECT_TIMEOUT, _REQUEST_TIMEOUT
        found = [_of_node(node) for node in await nodes(side.lookupds, side.config, timeouts)]
    else:
        found = [_at(address, side.config) for address in side.nsqds]
    return list(await together(*found, *(_at_http(url, side.config) for url in side.http)))


async def _of_node(node: Registration) -> _Nsqd:
    addresses, places = await _resolve(node.tcp)
    said = _Self(node.hostname, node.broadcast_address, node.tcp_port, node.http_port, 0)
    return _Nsqd(str(node.tcp), addresses, places, said, str(node.http))


async def _at(address: Address, config: ClientConfig) -> _Nsqd:
    addresses, places = await _resolve(address)
    said = await _ask(str(Address(address.host, address.port + 1)), config)
    if said and said.tcp_port != address.port:  # that is another nsqd's port
        said = None
    return _Nsqd(str(address), addresses, places, said)


async def _at_http(url: str, config: ClientConfig) -> _Nsqd:
    return _Nsqd(url, said=await _ask(url, config))


async def _ask(url: str, config: ClientConfig) -> _Self | None:
    """What an nsqd says of itself, if it does; those before 1.0 do not."""
    try:
        async with NsqdHTTP(
            url,
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=_REQUEST_TIMEOUT,
            tls=http_context(config),
        ) as nsqd:
            info = await nsqd.info()
    except (HTTPError, ConfigError) as error:
        log.debug("the loop guard does without %s: %s", url, error)
        return None
    if not (info.tcp_port and info.start_time):
        return None
    return _Self(
        info.hostname, info.broadcast_address, info.tcp_port, info.http_port, info.start_time
    )


async def _resolve(address: Address) -> tuple[frozenset[Address], frozenset[Address]]:
    """The addresses that a name stands for, and the same with one name for all of this host."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(*address)
    except (OSError, UnicodeError):
        return frozenset(), frozenset()
    hosts = {_plain(str(place[0])) for *_, place in found}
    places = [_THIS_HOST if await _is_here(host) else host for host in hosts]
    return (
        frozenset(Address(host, address.port) for host in hosts),
        frozenset(Address(host, address.port) for host in places),
    )


def _plain(host: str) -> str:
    """An IPv4 address that is written as one of IPv6 as the former."""
    try:
        ip = ip_address(host)
    except ValueError:
        return host
    return str(ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else host


async def _is_here(host: str) -> bool:
    """Whether an address is one of this host's: only these can be bound."""
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=(host, 0)
        )
    except OSError:
        return False
    transport.close()
    return True
