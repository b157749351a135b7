"""The nsqds and nsqlookupds of the simulation, and what becomes of their messages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nsqtools.config.sandbox import NsqdOptions
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd, nsqd_stats
from nsqtools.sandbox.nsqd import channel as channels
from nsqtools.sandbox.nsqd.broker import Topic
from tests.support.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from nsqtools.names import Address
    from tests.simulation.world import World


class Server:
    """An nsqd that keeps its messages when it is stopped, and forgets some when it is killed.

    Those are what is in flight or deferred, and of each queue up to ``memory`` that wait.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.options = NsqdOptions(**options)
        self.nsqd = Nsqd(self.options, rng=world.random(f"{name} 0"))
        self.process = Process(name, name)
        self.process.alive = False
        self.lookupds: list[Address] = []
        self.was_down = 0.0
        """Seconds before its last start, or for which it was cut off since then."""
        self._ended = world.now
        self.lie: dict[str, int] = {}
        """Wrong numbers that its next answer about a channel has, unless the last one was wrong."""
        self._has_lied = False
        self.finishes: dict[tuple[str, str], list[bytes]] = {}
        """Bodies that were finished, by topic and channel."""
        self.lapses: dict[tuple[str, str], Counter[bytes]] = {}
        """How many deliveries of each body have ended without FIN or REQ, likewise."""
        self.memory: int = world.random(f"{name} memory").choice((0, 5, 50, 10_000))
        """Its -mem-queue-size."""
        self.received: dict[str, list[tuple[float, bytes]]] = {}
        """All that was published, by topic, with the virtual times."""
        self.forgotten: dict[tuple[str, str], set[bytes]] = {}
        """Bodies that it had in memory only when it was killed, by topic and channel."""
        self._is_killed = False
        self._lives = 0
        self._to_come: list[tuple[str, Sequence[bytes]]] = []

    @property
    def tcp(self) -> str:
        return f"{self.name}:4150"

    @property
    def http(self) -> str:
        return f"{self.name}:4151"

    async def start(self) -> None:
        """Listen, with the messages of before."""
        self._lives += 1
        before, self.process = self.nsqd, Process(self.name, self.name)
        rng = self.world.random(f"{self.name} {self._lives}")
        self.nsqd = self.process.context.run(Nsqd, self.options, rng=rng)
        self.world.log(f"{self.name}: starts, at {self.world.clocks.text(self.name)}")
        await self.world.within(self.process, self._listen())
        self._take_over(before)
        self.catch_up()
        self.was_down = self.world.now - self._ended

    async def _listen(self) -> None:
        await self.nsqd.start(self.name, 4150, 4151, lookupd_tcp_addresses=self.lookupds)

    def _take_over(self, before: Nsqd) -> None:
        """Take the messages of the last run: of a killed one, those that were on disk."""

        def move() -> None:
            self.nsqd.broker._next_id = before.broker._next_id  # whatever its clock shows
            for name, topic in before.broker.topics.items():
                if topic.ephemeral:
                    continue
                new = self.nsqd.broker.topic(name)
                for channel_name, channel in topic.channels.items():
                    if not channel.ephemeral:
                        kept = self._kept((name, channel_name), channel.waiting, _away(channel))
                        if not self._is_killed:
                            self.lapsed(channel, channel.in_flight.values())
                        new.channel(channel_name).waiting.extend(map(_copy, kept))
                        new.channel(channel_name).changed()
                new.waiting.extend(map(_copy, self._kept((name, ""), topic.waiting)))
                new.changed()

        self.process.context.copy().run(move)

    def _kept(
        self,
        queue: tuple[str, str],
        waiting: Sequence[channels.QueuedMessage],
        away: Sequence[channels.QueuedMessage] = (),
    ) -> Sequence[channels.QueuedMessage]:
        """What is left of those that waited and those in flight or deferred."""
        if not self._is_killed:
            return [*waiting, *away]
        numbers = range(len(waiting))
        rng = self.world.random(f"{self.name} {self._lives} forgets {queue}")
        lost = set(rng.sample(numbers, min(self.memory, len(waiting))))
        gone = [*away, *(waiting[at] for at in lost)]
        if gone:
            self.world.log(f"{self.name}: has forgotten {len(gone)} messages of {queue}")
        self.forgotten.setdefault(queue, set()).update(message.body for message in gone)
        return [waiting[at] for at in numbers if at not in lost]

    def stop(self) -> None:
        """SIGTERM; the next start has its messages."""
        self._ended, self._is_killed = self.world.now, False
        self.world.kill(self.process)

    def kill(self) -> None:
        """kill -9; the next start has what was on disk."""
        self.stop()
        self._is_killed = True

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish messages, as soon as it is there."""
        self._to_come.append((topic, bodies))
        self.catch_up()

    def catch_up(self) -> None:
        """Publish what has waited for it."""
        if self.process.alive and not self.process.stopped:
            come, self._to_come = self._to_come, []
            for topic, bodies in come:
                self.process.context.copy().run(self.nsqd.publish, topic, bodies)

    def make(self, topic: str, channel: str) -> None:
        """Create a channel."""
        create = lambda: self.nsqd.broker.topic(topic).channel(channel)  # noqa: E731
        self.process.context.run(self.world.loop.call_soon, create)

    def left(self, topic: str, channel: str) -> int:
        """How many messages the channel has, also in flight and deferred, or is to get."""
        return len(self.to_come(topic)) + len(self.messages(topic, channel))

    def messages(self, topic: str, channel: str) -> list[channels.QueuedMessage]:
        """What the channel has, also in flight and deferred, or gets from its topic."""
        found = self.nsqd.broker.topics.get(topic)
        if not found:
            return []
        queue = found.channels.get(channel)
        return [*found.waiting, *(_messages_of(queue) if queue else ())]

    def to_come(self, topic: str) -> list[bytes]:
        """What is published as soon as it is there."""
        return [body for name, bodies in self._to_come if name == topic for body in bodies]

    def next_lie(self) -> dict[str, int]:
        """What it says of a channel instead of the truth; never twice in a row."""
        self._has_lied = bool(self.lie) and not self._has_lied
        lie, self.lie = self.lie if self._has_lied else {}, {}
        return lie

    def finished(self, channel: Any, body: bytes) -> None:
        """Note a FIN."""
        self.finishes.setdefault((channel.topic.name, channel.name), []).append(body)

    def lapsed(self, channel: Any, messages: Iterable[channels.QueuedMessage]) -> None:
        """Note messages in flight that are to be delivered again without a word from a consumer."""
        lapses = self.lapses.setdefault((channel.topic.name, channel.name), Counter())
        lapses.update(message.body for message in messages)


def _messages_of(channel: channels.Channel) -> list[channels.QueuedMessage]:
    return [*channel.waiting, *_away(channel)]


def _away(channel: channels.Channel) -> list[channels.QueuedMessage]:
    """Those in flight, and those deferred."""
    return [*channel.in_flight.values(), *(message for _, _, message in channel._deferred)]


def _copy(message: channels.QueuedMessage) -> channels.QueuedMessage:
    return channels.QueuedMessage(message.id, message.body, message.timestamp, message.attempts)


class Lookupd:
    """An nsqlookupd."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.lookupd = Nsqlookupd()
        self.process = Process(name, name)
        self.process.alive = False

    async def start(self) -> None:
        self.world.log(f"{self.name}: starts")
        self.process, self.lookupd = Process(self.name, self.name), Nsqlookupd()
        await self.world.within(self.process, self.lookupd.start(self.name, 4160, 4161))

    def listed(self, topic: str) -> list[str]:
        """The nsqds that it lists for a topic."""
        known = self.lookupd.registry.topics.get(topic)
        return [peer.broadcast_address for peer in known.producers] if known else []

    def kill(self) -> None:
        self.world.kill(self.process)


def watch_channels(world: World, patch: pytest.MonkeyPatch) -> None:
    """Let servers note what becomes of messages."""
    finish, expire = channels.Channel.finish, channels.Channel.expire

    def finished(of: Any, consumer: Any, id_: bytes) -> None:
        message = of.in_flight.get(id_)
        finish(of, consumer, id_)
        world.server_of(of).finished(of, message.body)

    def expired(of: Any, now: float) -> None:
        late = [each for each in of.in_flight.values() if each.deadline <= now]
        if late:
            world.server_of(of).lapsed(of, late)
        expire(of, now)

    put = Topic.put

    def published(of: Any, bodies: Sequence[bytes], now: float, defer: float) -> None:
        world.server_of(of).received.setdefault(of.name, []).extend(
            (world.now, body) for body in bodies
        )
        put(of, bodies, now, defer)

    patch.setattr(Topic, "put", published)
    patch.setattr(channels.Channel, "finish", finished)
    patch.setattr(channels.Channel, "expire", expired)
    honest = nsqd_stats._channel_stats

    def stats(nsqd: Any, channel: Any, *args: Any, **options: Any) -> dict[str, Any]:
        told = honest(nsqd, channel, *args, **options)
        return told | world.server_of(channel).next_lie()

    patch.setattr(nsqd_stats, "_channel_stats", stats)
