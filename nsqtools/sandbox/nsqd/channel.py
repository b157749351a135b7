"""Channels: their waiting, deferred and in-flight messages, and their consumers.

No I/O: ``now`` is the broker's time in seconds. The rules are those of nsqd's channel.go.
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
"""Maximum waiting messages of an ephemeral topic or channel; more are dropped (options.go)."""

TURN_BYTES = 1 << 18
"""Bytes that a consumer gets before the channel checks whether the client keeps up."""

_MAX_ATTEMPTS = 0xFFFF  # the protocol has 16 bits for attempts


class NotInFlightError(Exception):
    """The message is not in flight to this consumer; the text is nsqd's."""


@dataclass(slots=True, eq=False)
class QueuedMessage(Message):
    """One channel's copy of a message; ``attempts`` counts the deliveries so far."""

    deferred: float = 0.0
    """Seconds of delay by DPUB, counted from arrival in a channel."""
    consumer: ChannelConsumer | None = None
    """The consumer that has the message in flight."""
    delivered: float = 0.0
    deadline: float = 0.0


class Subscriber(Protocol):
    """The connection behind a consumer."""

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Send messages; may set the consumer's ``blocked`` if the client does not keep up."""

    def close(self) -> None:
        """Close the connection, because the channel was deleted."""


@dataclass(slots=True, eq=False)
class ChannelConsumer:
    """A subscriber from the channel's point of view."""

    client: Subscriber
    msg_timeout: float
    """Seconds until an unfinished message is delivered again."""
    sample_rate: int = 0
    """Percentage of messages to deliver, 0 for all; the others are dropped."""
    rdy: int = 0
    in_flight: int = 0
    blocked: bool = False
    """Whether the client does not read; it then gets no messages, whatever its RDY."""
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0

    @property
    def spare(self) -> int:
        """The number of messages that may be delivered now."""
        return 0 if self.blocked else max(0, self.rdy - self.in_flight)


class Queue(ABC):
    """Base of topics and channels: messages that wait until ``tick`` moves them on."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        """Whether messages are held here."""
        self.message_count = 0
        self.waiting: deque[QueuedMessage] = deque()

    @property
    def depth(self) -> int:
        """The number of waiting messages."""
        return len(self.waiting)

    def pause(self) -> None:
        """Hold messages here."""
        self.paused = True

    def unpause(self) -> None:
        """Let messages move on again."""
        self.paused = False
        self.changed()

    def changed(self) -> None:
        """Let the broker check whether messages can move on."""
        self.broker.mark(self)

    def trim(self) -> None:
        """Drop messages that exceed the limit of an ephemeral queue."""
        if self.ephemeral:
            while len(self.waiting) > MEM_QUEUE_SIZE:
                self.waiting.pop()

    @abstractmethod
    def move_on(self, now: float) -> None:
        """Move messages on as far as possible."""


class Channel(Queue):
    """A queue of copies that consumers share. ``Topic.channel`` creates channels."""

    def __init__(self, name: str, topic: Topic) -> None:
        super().__init__(name, topic.broker)
        self.topic = topic
        self.requeue_count = 0
        self.timeout_count = 0
        self.consumers: list[ChannelConsumer] = []
        self.in_flight: dict[bytes, QueuedMessage] = {}
        """Delivered, unsettled messages by id, including those of consumers that have left."""
        # A heap; the number preserves the order of messages with the same time.
        self._deferred: list[tuple[float, int, QueuedMessage]] = []
        self._numbers = count()

    @property
    def deferred_count(self) -> int:
        """The number of deferred messages."""
        return len(self._deferred)

    def add(self, consumer: ChannelConsumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)
        self.changed()

    def remove(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer; its messages in flight wait for their timeout."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def put(self, messages: Sequence[QueuedMessage], now: float) -> None:
        """Accept copies from the topic."""
        self.message_count += len(messages)
        for message in messages:
            self._queue(message, now, message.deferred)
        self.changed()

    def move_on(self, now: float) -> None:
        """Deliver messages to consumers with RDY to spare."""
        while self.waiting and not self.paused:
            ready = [each for each in self.consumers if each.spare]
            if not ready:
                break
            for consumer, batch in share_out(self.waiting, ready, self.broker.rng):
                self._deliver(consumer, batch, now)
        self.trim()

    def finish(self, consumer: ChannelConsumer, id_: bytes) -> None:
        """Process FIN; raises NotInFlightError."""
        self._release(consumer, id_)
        consumer.finish_count += 1
        if self.waiting:
            self.changed()

    def requeue(self, consumer: ChannelConsumer, id_: bytes, delay: float, now: float) -> None:
        """Process REQ with a delay in seconds; raises NotInFlightError."""
        message = self._release(consumer, id_)
        self.requeue_count += 1
        consumer.requeue_count += 1
        self._queue(message, now, delay)
        self.changed()

    def touch(self, consumer: ChannelConsumer, id_: bytes, now: float) -> None:
        """Process TOUCH: restart the timeout, up to max_msg_timeout after delivery.

        Raises NotInFlightError.
        """
        message = self._held(consumer, id_)
        latest = message.delivered + self.broker.max_msg_timeout
        message.deadline = min(now + consumer.msg_timeout, latest)
        self.broker.expect(message.deadline)

    def empty(self) -> None:
        """Discard all messages, including those in flight."""
        self.waiting.clear()
        self._deferred.clear()
        self.in_flight.clear()
        for consumer in self.consumers:
            consumer.in_flight = 0

    def expire(self, now: float) -> None:
        """Queue messages whose timeout or delay has expired."""
        expired = [each for each in self.in_flight.values() if each.deadline <= now]
        for message in sorted(expired, key=lambda each: each.deadline):
            self._take_back(message)
            self.waiting.append(message)
        self.timeout_count += len(expired)
        while self._deferred and self._deferred[0][0] <= now:
            self.waiting.append(heappop(self._deferred)[2])
        self.changed()

    def next_due(self) -> float:
        """Return the next time at which ``expire`` has work; NEVER for none."""
        due = self._deferred[0][0] if self._deferred else NEVER
        return min([due, *[each.deadline for each in self.in_flight.values()]])

    def _deliver(self, consumer: ChannelConsumer, batch: list[QueuedMessage], now: float) -> None:
        if consumer.sample_rate:
            # One percent more than sample_rate, because nsqd skips if rand.Int31n(100) >
            # sampleRate.
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
        """Let a message wait for a consumer, or for its delay first."""
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
        """Remove a message from those in flight."""
        del self.in_flight[message.id]
        if message.consumer:
            message.consumer.in_flight -= 1
            message.consumer = None


def share_out(
    queue: deque[QueuedMessage], ready: Sequence[ChannelConsumer], rng: random.Random
) -> list[tuple[ChannelConsumer, list[QueuedMessage]]]:
    """Take messages off a queue for randomly chosen consumers with RDY to spare.

    No consumer gets more than its RDY allows, nor much more than ``TURN_BYTES``.
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
