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

from nsqtools.engine.concurrency import call_each
from nsqtools.engine.lookup import nodes
from nsqtools.errors import ConfigError, HTTPError
from nsqtools.names import Address
from nsqtools.net.http.daemons import NsqdHTTP
from nsqtools.net.tls import http_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config import ClientConfig
    from nsqtools.net.http.replies import NsqdInfo, Registration

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 1.0
_REQUEST_TIMEOUT = 3.0
_THIS_HOST = "localhost"


class _Self(NamedTuple):
    """What an nsqd says of itself, over HTTP or to nsqlookupd."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int


@dataclass(frozen=True, slots=True)
class _Nsqd:
    """An nsqd: what it is called here, where that leads to, and what it says of itself.

    Of ``places`` those on this host have its name for an address. ``started`` is 0 if it is unknown
    when the nsqd was started, as nsqlookupd does not say that.
    """

    name: str
    places: frozenset[Address]
    said: _Self | None
    started: int

    def may_be(self, other: _Nsqd) -> bool:
        """Whether nothing tells it from the other one."""
        if self.started and other.started:
            return (self.said, self.started) == (other.said, other.started)
        is_said = self.said is not None and self.said == other.said
        return is_said or not self.places.isdisjoint(other.places)


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
                if source.may_be(goal):
                    raise self._error(next(iter(self._loops)), source.name, goal.name)

    def error_for(self, topic: str, source: Address) -> ConfigError | None:
        """The error for a topic that would come back, as the nsqd it comes from is a destination.

        For those that join the cluster later: it must cost nothing.
        """
        if topic in self._loops and source in self._own:
            return self._error(topic, str(source), "a destination")
        return None

    def _error(self, topic: str, source: str, goal: str) -> ConfigError:
        return ConfigError(
            f"topic {topic} would be relayed to {self._loops[topic]} of the nsqd that it comes "
            f"from, round and round: {goal} is {source}; choose another --destination-topic, "
            "--map or --destination-nsqd-tcp-address"
        )


async def _known(side: Side) -> list[_Nsqd]:
    """Who is there now; raises UnreachableError if no nsqlookupd answers."""
    found: list[tuple[Address | None, str, _Self | None]]
    if side.lookupds:
        timeouts = _CONNECT_TIMEOUT, _REQUEST_TIMEOUT
        listed = await nodes(side.lookupds, side.config, timeouts)
        found = [(node.tcp, str(node.http), _said(node)) for node in listed]
    else:
        found = [(tcp, str(Address(tcp.host, tcp.port + 1)), None) for tcp in side.nsqds]
    found += [(None, url, None) for url in side.http]
    return await call_each(found, lambda each: _nsqd(*each, side.config))


async def _nsqd(
    tcp: Address | None, http: str, listed: _Self | None, config: ClientConfig
) -> _Nsqd:
    """The nsqd at a TCP address, as far as known, which may answer at an HTTP address."""
    info = await _ask(http, config)
    if info and tcp and info.tcp_port != tcp.port:  # that is another nsqd's port
        info = None
    places = await _resolve(tcp) if tcp else frozenset()
    said = _said(info) if info else listed
    return _Nsqd(str(tcp or http), places, said, info.start_time if info else 0)


def _said(by: NsqdInfo | Registration) -> _Self:
    return _Self(by.hostname, by.broadcast_address, by.tcp_port, by.http_port)


async def _ask(url: str, config: ClientConfig) -> NsqdInfo | None:
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
    return info if info.tcp_port and info.start_time else None


async def _resolve(address: Address) -> frozenset[Address]:
    """The addresses that a name stands for, with one name for all of this host."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(*address)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(Address(_plain(str(place[0])), address.port) for *_, place in found)


def _plain(host: str) -> str:
    """One spelling for this host, and for an IPv4 address that is written as one of IPv6."""
    try:
        ip = ip_address(host)
    except ValueError:
        return host
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    return _THIS_HOST if ip.is_loopback or ip.is_unspecified else str(ip)
