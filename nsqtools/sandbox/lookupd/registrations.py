"""The registrations of an nsqlookupd (``nsqlookupd/registration_db.go``).

No I/O and no clock: ``now`` is in ns since the epoch, timeouts are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqtools.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterator


_NEVER = -6795364578871345152  # UnixNano of Go's zero time


@dataclass(slots=True, eq=False)
class Registrant:
    """An nsqd with the data of its IDENTIFY."""

    remote_address: str
    """The nsqd's end of the TCP connection."""
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    last_update: int
    """Time of the last IDENTIFY or PING."""

    def facts(self) -> dict[str, Any]:
        """Return the entry for the responses to /lookup and /nodes."""
        return {
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }


@dataclass(slots=True, eq=False)
class KnownTopic:
    """The producers of a topic and of its channels."""

    producers: dict[Registrant, int | None] = field(default_factory=dict)
    """Each with the time of its tombstone, or None."""
    channels: dict[str, set[Registrant]] = field(default_factory=dict)


class Registrations:
    """The topics and channels that nsqds have registered.

    They remain known without producers, unless they are ephemeral.
    """

    def __init__(self, inactive_timeout: float = 300.0, tombstone_lifetime: float = 45.0) -> None:
        self.peers: dict[Registrant, None] = {}
        """Connected nsqds, in order of arrival."""
        self.topics: dict[str, KnownTopic] = {}
        self._inactive_timeout = inactive_timeout
        self._tombstone_lifetime = tombstone_lifetime

    def create(self, topic: str, channel: str = "") -> KnownTopic:
        """Add a topic and, if named, a channel."""
        known = self.topics.setdefault(topic, KnownTopic())
        if channel:
            known.channels.setdefault(channel, set())
        return known

    def register(self, peer: Registrant, topic: str, channel: str = "") -> None:
        """REGISTER: add a producer; a channel is registered with its topic. Tombstones remain."""
        known = self.create(topic, channel)
        known.producers.setdefault(peer, None)
        if channel:
            known.channels[channel].add(peer)

    def unregister(self, peer: Registrant, topic: str, channel: str = "") -> None:
        """UNREGISTER: remove a producer; with a topic, also from the topic's channels."""
        if not (known := self.topics.get(topic)):
            return
        if channel:
            producers = known.channels.get(channel, set())
            producers.discard(peer)
            if not producers and is_ephemeral(channel):
                self.delete_channel(topic, channel)
            return
        for producers in known.channels.values():
            producers.discard(peer)
        known.producers.pop(peer, None)
        if not known.producers and is_ephemeral(topic):
            self.delete_topic(topic)

    def forget(self, peer: Registrant) -> None:
        """Remove an nsqd after its connection ended; its topics and channels remain known."""
        self.peers.pop(peer, None)
        for known in self.topics.values():
            known.producers.pop(peer, None)
            for producers in known.channels.values():
                producers.discard(peer)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic with its channels."""
        self.topics.pop(topic, None)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel; return whether it was known."""
        known = self.topics.get(topic, KnownTopic())
        return known.channels.pop(channel, None) is not None

    def channels(self, topic: str) -> list[str]:
        """Return all known channels of a topic."""
        return list(self.topics[topic].channels) if topic in self.topics else []

    def producers(self, topic: str, now: int) -> list[Registrant]:
        """Return the producers of a known topic that are alive and have no tombstone."""
        return [
            peer
            for peer, tombstone in self.topics[topic].producers.items()
            if self._is_alive(peer, now) and not self._holds(tombstone, now)
        ]

    def nodes(self, now: int) -> Iterator[tuple[Registrant, dict[str, bool]]]:
        """Yield each live nsqd, with its topics and whether it has a tombstone for each."""
        for peer in self.peers:
            if self._is_alive(peer, now):
                yield (
                    peer,
                    {
                        topic: self._holds(known.producers[peer], now)
                        for topic, known in self.topics.items()
                        if peer in known.producers
                    },
                )

    def debug(self) -> dict[str, list[dict[str, Any]]]:
        """Return the response to /debug: the registrations by ``category:key:subkey``."""
        found: dict[str, list[dict[str, Any]]] = {}

        def add(key: str, peer: Registrant, tombstone: int | None = None) -> None:
            facts = peer.facts()
            facts["id"] = facts.pop("remote_address")
            facts["last_update"] = peer.last_update
            facts["tombstoned"] = tombstone is not None
            facts["tombstoned_at"] = _NEVER if tombstone is None else tombstone
            found.setdefault(key, []).append(dict(sorted(facts.items())))

        for peer in self.peers:
            add("client::", peer)
        for topic, known in self.topics.items():
            for peer, tombstone in known.producers.items():
                add(f"topic:{topic}:", peer, tombstone)
            for channel, producers in known.channels.items():
                for peer in producers:
                    add(f"channel:{topic}:{channel}", peer)
        return dict(sorted(found.items()))

    def tombstone(self, topic: str, node: str, now: int) -> None:
        """Hide a producer of a topic temporarily; ``node`` is broadcast_address:http_port."""
        if known := self.topics.get(topic):
            for peer in known.producers:
                if node == f"{peer.broadcast_address}:{peer.http_port}":
                    known.producers[peer] = now

    def _is_alive(self, peer: Registrant, now: int) -> bool:
        return now - peer.last_update <= self._inactive_timeout * 1e9

    def _holds(self, tombstone: int | None, now: int) -> bool:
        return tombstone is not None and now - tombstone < self._tombstone_lifetime * 1e9
