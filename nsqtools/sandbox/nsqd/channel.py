"""Channels: messages that wait, are deferred or in flight, and the consumers that share them.

Pure state: instants are ``now`` of the broker, in seconds. Source of the rules: nsqd channel.go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Protocol

from nsqtools.names import is_ephemeral
from nsqtools.proto.messages import Message

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from nsqtools.sandbox.nsqd.broker import Broker, Topic

NEVER = float("inf")

MEM_QUEUE_SIZE = 10_000
"""Messages that wait in an ephemeral topic or channel at most; it drops the rest (options.go)."""

TURN_BYTES = 1 << 18
"""Bytes a consumer is given before it is asked whether its peer keeps up."""

_MAX_ATTEMPTS = 0xFFFF  # the wire has 16 bits for them


class NotInFlightError(Exception):
    """The consumer does not have the message in flight; the text is nsqd's."""


@dataclass(slots=True, eq=False)
class QueuedMessage(Message):
    """One channel's copy of a message; ``attempts`` are the deliveries so far."""

    deferred: float = 0.0
    """Seconds that DPUB holds it back once it reaches a channel."""
    consumer: ChannelConsumer | None = None
    """Who has it in flight."""
    delivered: float = 0.0
    deadline: float = 0.0


class Subscriber(Protocol):
    """The connection behind a consumer."""

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Send messages; may set the consumer's ``blocked`` when its peer does not keep up."""

    def close(self) -> None:
        """End the connection: the channel is gone."""


@dataclass(slots=True, eq=False)
class ChannelConsumer:
    """A subscriber as its channel sees it."""

    client: Subscriber
    msg_timeout: float
    """Seconds until a message that is not finished is delivered again."""
    sample_rate: int = 0
    """Percentage of the messages that it is given, 0 for all; the others are dropped."""
    rdy: int = 0
    in_flight: int = 0
    blocked: bool = False
    """Whether its peer does not read what was sent: it gets nothing then, whatever its RDY."""
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0

    @property
    def spare(self) -> int:
        """How many messages it may be given now."""
        return 0 if self.blocked else max(0, self.rdy - self.in_flight)


class Queue(ABC):
    """What topics and channels have in common: messages that wait for ``tick`` to move them on."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        """Whether messages stay here."""
        self.message_count = 0
        self.waiting: deque[QueuedMessage] = deque()

    @property
    def depth(self) -> int:
        """Messages that wait here."""
        return len(self.waiting)

    def pause(self) -> None:
        """Let no message go on."""
        self.paused = True

    def unpause(self) -> None:
        """Let messages go on."""
        self.paused = False
        self.changed()

    def changed(self) -> None:
        """Have the broker look whether messages may go on now."""
        self.broker.mark(self)

    def trim(self) -> None:
        """Drop what an ephemeral queue has no room for."""
        if self.ephemeral:
            while len(self.waiting) > MEM_QUEUE_SIZE:
                self.waiting.pop()

    @abstractmethod
    def move_on(self, now: float) -> None:
        """Let messages go on, as far as they may."""


class Channel(Queue):
    """One queue of copies, shared by its consumers. Made by ``Topic.channel``."""

    def __init__(self, name: str, topic: Topic) -> None:
        super().__init__(name, topic.broker)
        self.topic = topic
        self.requeue_count = 0
        self.timeout_count = 0
        self.consumers: list[ChannelConsumer] = []
        self.in_flight: dict[bytes, QueuedMessage] = {}
        """By id: delivered and not settled, also to consumers that have left."""
        # A heap; the number keeps the order of those that are due at once.
        self._deferred: list[tuple[float, int, QueuedMessage]] = []
        self._numbers = count()

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their time."""
        return len(self._deferred)

    def add(self, consumer: ChannelConsumer) -> None:
        """Add a subscriber."""
        self.consumers.append(consumer)
        self.changed()

    def remove(self, consumer: ChannelConsumer) -> None:
        """Remove a subscriber; what it has in flight waits for its timeout."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def put(self, messages: Sequence[QueuedMessage], now: float) -> None:
        """Take copies from the topic."""
        self.message_count += len(messages)
        for message in messages:
            self._queue(message, now, message.deferred)
        self.changed()

    def move_on(self, now: float) -> None:
        """Deliver what consumers have RDY for."""
        while self.waiting and not self.paused:
            ready = [each for each in self.consumers if each.spare]
            if not ready:
                break
            for consumer, batch in share_out(self.waiting, ready, self.broker.rng):
                self._deliver(consumer, batch, now)
        self.trim()

    def finish(self, consumer: ChannelConsumer, id_: bytes) -> None:
        """FIN; raises NotInFlightError."""
        self._release(consumer, id_)
        consumer.finish_count += 1
        if self.waiting:
            self.changed()

    def requeue(self, consumer: ChannelConsumer, id_: bytes, delay: float, now: float) -> None:
        """REQ, after ``delay`` seconds; raises NotInFlightError."""
        message = self._release(consumer, id_)
        self.requeue_count += 1
        consumer.requeue_count += 1
        self._queue(message, now, delay)
        self.changed()

    def touch(self, consumer: ChannelConsumer, id_: bytes, now: float) -> None:
        """TOUCH: the timeout begins again, up to max_msg_timeout since delivery.

        Raises NotInFlightError.
        """
        message = self._held(consumer, id_)
        latest = message.delivered + self.broker.max_msg_timeout
        message.deadline = min(now + consumer.msg_timeout, latest)
        self.broker.expect(message.deadline)

    def empty(self) -> None:
        """Forget every message, those in flight too."""
        self.waiting.clear()
        self._deferred.clear()
        self.in_flight.clear()
        for consumer in self.consumers:
            consumer.in_flight = 0

    def expire(self, now: float) -> None:
        """Queue again what timed out and what was deferred until now."""
        expired = [each for each in self.in_flight.values() if each.deadline <= now]
        for message in sorted(expired, key=lambda each: each.deadline):
            self._take_back(message)
            self.waiting.append(message)
        self.timeout_count += len(expired)
        while self._deferred and self._deferred[0][0] <= now:
            self.waiting.append(heappop(self._deferred)[2])
        self.changed()

    def next_due(self) -> float:
        """When ``expire`` has something to do; NEVER for never."""
        due = self._deferred[0][0] if self._deferred else NEVER
        return min([due, *[each.deadline for each in self.in_flight.values()]])

    def _deliver(self, consumer: ChannelConsumer, batch: list[QueuedMessage], now: float) -> None:
        if consumer.sample_rate:
            # One percent more than it says, as rand.Int31n(100) > sampleRate skips.
            rng = self.broker.rng
            batch = [each for each in batch if rng.randrange(100) <= consumer.sample_rate]
        if not batch:
            return
        deadline, in_flight = now + consumer.msg_timeout, self.in_flight
        for message in batch:
            message.attempts = min(message.attempts + 1, _MAX_ATTEMPTS)
            message.consumer = consumer
            message.delivered = now
            message.deadline = deadline
            in_flight[message.id] = message
        consumer.in_flight += len(batch)
        consumer.message_count += len(batch)
        self.broker.expect(deadline)
        consumer.client.deliver(batch)

    def _queue(self, message: QueuedMessage, now: float, delay: float) -> None:
        """Let a message wait for a consumer, or first for its time."""
        if delay > 0:
            heappush(self._deferred, (now + delay, next(self._numbers), message))
            self.broker.expect(now + delay)
        else:
            self.waiting.append(message)

    def _held(self, consumer: ChannelConsumer, id_: bytes) -> QueuedMessage:
        message = self.in_flight.get(id_)
        if message is None:
            raise NotInFlightError("ID not in flight")
        if message.consumer is not consumer:
            raise NotInFlightError("client does not own message")
        return message

    def _release(self, consumer: ChannelConsumer, id_: bytes) -> QueuedMessage:
        message = self._held(consumer, id_)
        self._take_back(message)
        return message

    def _take_back(self, message: QueuedMessage) -> None:
        """Have a message in flight no more."""
        del self.in_flight[message.id]
        if message.consumer:
            message.consumer.in_flight -= 1
            message.consumer = None


def share_out(
    queue: deque[QueuedMessage], ready: Sequence[ChannelConsumer], rng: random.Random
) -> list[tuple[ChannelConsumer, list[QueuedMessage]]]:
    """Take messages off a queue for consumers with RDY to spare, chosen at random.

    No consumer gets more than it can take, nor much more than ``TURN_BYTES``.
    """
    batches: list[list[QueuedMessage]] = [[] for _ in ready]
    spare = [each.spare for each in ready]
    room = [TURN_BYTES] * len(ready)
    open_ = list(range(len(ready)))
    while queue and open_:
        alone = len(open_) == 1
        chosen = open_[0] if alone else rng.choice(open_)
        share = len(queue) if alone else 1 + len(queue) // (8 * len(open_))
        for _ in range(min(share, spare[chosen])):
            message = queue.popleft()
            batches[chosen].append(message)
            spare[chosen] -= 1
            room[chosen] -= len(message.body)
            if room[chosen] <= 0:
                break
        if spare[chosen] <= 0 or room[chosen] <= 0:
            open_.remove(chosen)
    return [(consumer, batch) for consumer, batch in zip(ready, batches, strict=True) if batch]
