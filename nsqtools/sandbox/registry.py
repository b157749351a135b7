"""Who produces what: the state of an nsqlookupd (``nsqlookupd/registration_db.go``). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterator


class Registration(NamedTuple):
    """What a producer can be registered for; ``category`` is client, topic or channel."""

    category: str
    topic: str = ""
    channel: str = ""


CLIENT = Registration("client")


@dataclass(slots=True, eq=False)
class Peer:
    """An nsqd as it announced itself; ``id`` is its end of the TCP connection.

    ``last_update`` is the time of its last IDENTIFY or PING, in ns since the epoch.
    """

    id: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    last_update: int

    def facts(self) -> dict[str, Any]:
        """As /lookup and /nodes print it."""
        return {
            "remote_address": self.id,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }


@dataclass(slots=True, eq=False)
class Producer:
    """A peer's entry for one registration; ``tombstoned_at`` in ns since the epoch."""

    peer: Peer
    tombstoned_at: int | None = None

    def is_tombstoned(self, now: int, lifetime: float) -> bool:
        """Whether consumers are not to be sent here."""
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime * 1e9


@dataclass(slots=True)
class Registry:
    """Who produces what (``nsqlookupd/registration_db.go``). Instants are in ns, periods in s.

    A topic or channel stays known after its last producer, unless it is ephemeral.
    """

    inactive_timeout: float = 300.0
    tombstone_lifetime: float = 45.0
    entries: dict[Registration, dict[str, Producer]] = field(default_factory=dict)

    def add(self, key: Registration, peer: Peer | None = None) -> None:
        """Make a registration known and enter the peer; a peer that is there stays as it is."""
        producers = self.entries.setdefault(key, {})
        if peer:
            producers.setdefault(peer.id, Producer(peer))

    def register(self, peer: Peer, topic: str, channel: str = "") -> None:
        """REGISTER: the topic is registered along with its channel."""
        if channel:
            self.add(Registration("channel", topic, channel), peer)
        self.add(Registration("topic", topic), peer)

    def unregister(self, peer: Peer, topic: str, channel: str = "") -> None:
        """UNREGISTER: a topic takes its channels along."""
        if channel:
            self._withdraw(Registration("channel", topic, channel), peer)
            return
        for key in self._keys("channel", topic):
            self.entries[key].pop(peer.id, None)
        self._withdraw(Registration("topic", topic), peer)

    def forget(self, peer: Peer) -> None:
        """The peer's connection is gone; what it produced stays known."""
        for producers in self.entries.values():
            producers.pop(peer.id, None)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic with its channels."""
        for key in self._keys("channel", topic) + self._keys("topic", topic):
            del self.entries[key]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; whether it was known."""
        return self.entries.pop(Registration("channel", topic, channel), None) is not None

    def topics(self) -> list[str]:
        """Every topic known."""
        return [key.topic for key in self._keys("topic")]

    def channels(self, topic: str) -> list[str]:
        """Every channel known of a topic."""
        return [key.channel for key in self._keys("channel", topic)]

    def lookup(self, topic: str, now: int) -> list[Peer] | None:
        """The topic's producers that are alive and not tombstoned; None for an unknown topic."""
        if not (keys := self._keys("topic", topic)):
            return None
        found = {
            each.peer.id: each.peer
            for key in keys
            for each in self.entries[key].values()
            if self._is_alive(each.peer, now)
            and not each.is_tombstoned(now, self.tombstone_lifetime)
        }
        return list(found.values())

    def nodes(self, now: int) -> Iterator[tuple[Peer, dict[str, bool]]]:
        """Every peer alive, with its topics and whether it is tombstoned for each."""
        for peer in [each.peer for each in self.entries.get(CLIENT, {}).values()]:
            if self._is_alive(peer, now):
                yield (
                    peer,
                    {
                        key.topic: producers[peer.id].is_tombstoned(now, self.tombstone_lifetime)
                        for key, producers in self.entries.items()
                        if key.category == "topic" and peer.id in producers
                    },
                )

    def tombstone(self, topic: str, node: str, now: int) -> None:
        """Hide a producer of a topic for a while; ``node`` is broadcast_address:http_port."""
        for key in self._keys("topic", topic):
            for each in self.entries[key].values():
                if node == f"{each.peer.broadcast_address}:{each.peer.http_port}":
                    each.tombstoned_at = now

    def _is_alive(self, peer: Peer, now: int) -> bool:
        return now - peer.last_update <= self.inactive_timeout * 1e9

    def _keys(self, category: str, topic: str = "*") -> list[Registration]:
        """``*`` is any topic, in requests too, as it is for the real one."""
        return [
            key for key in self.entries if key.category == category and topic in (key.topic, "*")
        ]

    def _withdraw(self, key: Registration, peer: Peer) -> None:
        producers = self.entries.get(key, {})
        producers.pop(peer.id, None)
        if not producers and is_ephemeral(key.channel or key.topic):
            self.entries.pop(key, None)
