"""Detects relays that would send messages back to their source nsqd.

An nsqd is identified by its /info, whatever its address; without /info, by its address.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.engine.lookup import nodes
from nsqtools.errors import ConfigError, HTTPError
from nsqtools.names import Address
from nsqtools.net.http.daemons import NsqdHTTP
from nsqtools.net.tls import http_context
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config.connection import ClientConfig
    from nsqtools.net.http.replies import NsqdInfo, Registration

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 1.0
_REQUEST_TIMEOUT = 3.0


class _Self(NamedTuple):
    """An nsqd's description of itself, from /info or nsqlookupd."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int


@dataclass(frozen=True, slots=True)
class _NsqdIdentity:
    """An nsqd. ``name`` is its TCP address or, if unknown, its HTTP address.

    ``reported`` is its description of itself; ``started`` is the start time from /info, 0 if
    unknown.
    """

    name: str
    reported: _Self | None
    started: int

    def may_be(self, other: _NsqdIdentity) -> bool:
        """Whether the two may be the same nsqd."""
        if self.started and other.started:
            return (self.reported, self.started) == (other.reported, other.started)
        return self.name == other.name or (
            self.reported is not None and self.reported == other.reported
        )


@dataclass(frozen=True, slots=True)
class RelayEnd:
    """The source or destination of a relay.

    ``http`` are the HTTP addresses of nsqds with another HTTP port than their TCP port + 1.
    """

    config: ClientConfig
    nsqds: Sequence[Address]
    lookupds: Sequence[str] = ()
    http: Sequence[str] = ()


class LoopGuard:
    """Refuses to relay messages in a loop, if an nsqd is both source and destination.

    ``loops`` maps each topic at risk to its destination topic.
    """

    def __init__(self, loops: Mapping[str, str], source: RelayEnd, destination: RelayEnd) -> None:
        self._loops = loops
        self._source = source
        self._destination = destination
        self._own = set(destination.nsqds)

    async def check(self) -> None:
        """Raise ConfigError if an nsqd is source and destination.

        Raises UnreachableError if no nsqlookupd answers.
        """
        sources = await _identities(self._source)
        for goal in await _identities(self._destination):
            if goal.reported:
                self._own.add(Address(goal.reported.broadcast_address, goal.reported.tcp_port))
            for source in sources:
                if source.may_be(goal):
                    raise self._error(next(iter(self._loops)), source.name, goal.name)

    def error_for(self, topic: str, source: Address) -> ConfigError | None:
        """Return the error for a topic at risk if its source nsqd is also a destination.

        Covers nsqds joining the cluster later. Called for each batch, so it must be fast.
        """
        if topic in self._loops and source in self._own:
            return self._error(topic, str(source), "a destination")
        return None

    def _error(self, topic: str, source: str, goal: str) -> ConfigError:
        return ConfigError(
            f"topic {topic} would be relayed to {self._loops[topic]} of the same nsqd, in an "
            f"endless loop ({source} is {goal}): choose another --destination-topic, --map or "
            "--destination-nsqd-tcp-address"
        )


async def _identities(end: RelayEnd) -> list[_NsqdIdentity]:
    """Return the current nsqds of one side; raises UnreachableError if no nsqlookupd answers."""
    found: list[tuple[Address | None, str, _Self | None]]
    if end.lookupds:
        timeouts = _CONNECT_TIMEOUT, _REQUEST_TIMEOUT
        listed = await nodes(end.lookupds, end.config, timeouts)
        found = [(node.tcp, str(node.http), _reported(node)) for node in listed]
    else:
        found = [(tcp, str(Address(tcp.host, tcp.port + 1)), None) for tcp in end.nsqds]
    found += [(None, url, None) for url in end.http]
    return await call_each(found, lambda each: _nsqd(*each, end.config))


async def _nsqd(
    tcp: Address | None, http: str, listed: _Self | None, config: ClientConfig
) -> _NsqdIdentity:
    """Describe the nsqd at a TCP address, if known, and at an HTTP address."""
    info = await _ask(http, config)
    if info and tcp and info.tcp_port != tcp.port:  # the HTTP address is another nsqd's
        info = None
    reported = _reported(info) if info else listed
    return _NsqdIdentity(str(tcp or http), reported, info.start_time if info else 0)


def _reported(by: NsqdInfo | Registration) -> _Self:
    return _Self(by.hostname, by.broadcast_address, by.tcp_port, by.http_port)


async def _ask(url: str, config: ClientConfig) -> NsqdInfo | None:
    """Return the /info of an nsqd; None without an answer, or from nsqd before 1.0."""
    try:
        async with NsqdHTTP(
            url,
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=_REQUEST_TIMEOUT,
            tls=http_context(config),
        ) as nsqd:
            info = await nsqd.info()
    except (HTTPError, ConfigError) as error:
        log.debug("relay loop check: no /info from %s: %s", url, error)
        return None
    return info if info.tcp_port and info.start_time else None
