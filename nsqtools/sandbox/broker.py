"""Topics and channels: nsqd without a network.

Pure state: instants come in as ``now`` (seconds of one clock that never goes back), chance as
``rng``, timestamps from ``clock_ns``. Nothing is delivered while a command is dealt with: a change
marks what it touched and calls ``wake``, and ``tick(now)`` moves everything on, in batches:
backlogs into channels, what timed out or was deferred back into queues, queues to consumers with
RDY to spare. Source of the rules: nsqd topic.go and channel.go.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Protocol

from nsqtools.names import is_ephemeral
from nsqtools.sandbox.consumer import NEVER, Consumer, Message, share_out

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNED = "client does not own message"

MEM_QUEUE_SIZE = 10_000
"""What an ephemeral topic or channel holds; it drops what comes on top (options.go)."""

_ID_EPOCH = 1288834974288  # guid.go, twepoch


class Listener(Protocol):
    """Told when a topic, or a channel where one is named, has come and before it goes."""

    def created(self, topic: str, channel: str = "") -> None: ...  # noqa: D102
    def deleted(self, topic: str, channel: str = "") -> None: ...  # noqa: D102


class Queue(ABC):
    """What topics and channels have in common: messages that wait for ``tick`` to move them on."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        """Whether messages stay here."""
        self.message_count = 0
        self.waiting: deque[Message] = deque()

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
        """Something here may go on now."""
        self.broker.mark(self)

    def trim(self) -> None:
        """An ephemeral one drops what is on top."""
        if self.ephemeral:
            while len(self.waiting) > self.broker.mem_queue_size:
                self.waiting.pop()

    @abstractmethod
    def move_on(self, now: float) -> None:
        """Let go on what may."""


class Channel(Queue):
    """One queue of copies, shared by its consumers. Made by ``Topic.channel``."""

    def __init__(self, name: str, topic: Topic) -> None:
        super().__init__(name, topic.broker)
        self.topic = topic
        self.requeue_count = 0
        self.timeout_count = 0
        self.consumers: list[Consumer] = []
        self._departed: list[Consumer] = []  # gone, with messages that have yet to time out
        self._deferred: list[tuple[float, int, Message]] = []

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their time."""
        return len(self._deferred)

    @property
    def in_flight_count(self) -> int:
        """Messages delivered and not settled, also to consumers that left."""
        return sum(each.in_flight for each in (*self.consumers, *self._departed))

    def empty(self) -> None:
        """Forget every message, those in flight too."""
        self.waiting.clear()
        self._deferred.clear()
        self._departed.clear()
        for consumer in self.consumers:
            consumer.forget()

    def add(self, consumer: Consumer) -> None:
        """Add a subscriber."""
        self.consumers.append(consumer)
        self.changed()

    def remove(self, consumer: Consumer) -> None:
        """A subscriber left; what it holds waits for its timeout (protocol_v2.go, IOLoop)."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if consumer.in_flight:
            self._departed.append(consumer)
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def finish(self, consumer: Consumer, id_: bytes) -> str:
        """FIN. Returns why it failed, or nothing."""
        if not consumer.release(id_):
            return self._whose(id_)
        consumer.finish_count += 1
        if self.waiting:
            self.changed()
        return ""

    def requeue(self, consumer: Consumer, id_: bytes, delay: float, now: float) -> str:
        """REQ, after ``delay`` seconds. Returns why it failed, or nothing."""
        message = consumer.release(id_)
        if not message:
            return self._whose(id_)
        self.requeue_count += 1
        consumer.requeue_count += 1
        if delay > 0:
            self._defer(message, now + delay)
        else:
            self.waiting.append(message)
        self.changed()
        return ""

    def touch(self, consumer: Consumer, id_: bytes, now: float) -> str:
        """TOUCH: the timeout begins again, up to max_msg_timeout since delivery.

        Returns why it failed, or nothing.
        """
        message = consumer.release(id_)
        if not message:
            return self._whose(id_)
        latest = message.delivered + self.broker.max_msg_timeout
        self.broker.expect(consumer.hold_on(message, now, latest))
        return ""

    def put(self, messages: Sequence[Message], now: float) -> None:
        """Take copies from the topic."""
        self.message_count += len(messages)
        for message in messages:
            if message.deferred > 0:
                self._defer(message, now + message.deferred)
            else:
                self.waiting.append(message)
        self.changed()

    def expire(self, now: float) -> None:
        """Queue what timed out or has waited long enough."""
        before = len(self.waiting)
        for consumer in (*self.consumers, *self._departed):
            expired = consumer.take_expired(now)
            self.timeout_count += len(expired)
            self.waiting.extend(expired)
        self._departed = [each for each in self._departed if each.in_flight]
        while self._deferred and self._deferred[0][0] <= now:
            self.waiting.append(heappop(self._deferred)[2])
        if len(self.waiting) > before:
            self.changed()

    def next_due(self) -> float:
        """When ``expire`` has something to do; NEVER for never."""
        due = self._deferred[0][0] if self._deferred else NEVER
        held = [each.next_deadline for each in (*self.consumers, *self._departed)]
        return min([due, *held])

    def move_on(self, now: float) -> None:
        """Deliver what consumers have RDY for."""
        rng = self.broker.rng
        while self.waiting and not self.paused:
            ready = [each for each in self.consumers if each.spare]
            if not ready:
                break
            for consumer, batch in share_out(self.waiting, ready, rng):
                if kept := consumer.take(batch, now, rng):
                    self.broker.expect(kept[-1].deadline)
                    consumer.client.deliver(kept)
        self.trim()

    def _defer(self, message: Message, due: float) -> None:
        heappush(self._deferred, (due, next(self.broker.sequence), message))
        self.broker.expect(due)

    def _whose(self, id_: bytes) -> str:
        for consumer in (*self.consumers, *self._departed):
            if consumer.holds(id_):
                return NOT_OWNED
        return NOT_IN_FLIGHT


class Topic(Queue):
    """A stream of messages, copied to each channel. Made by ``Broker.topic``."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self.held = False
        """As ``paused``, but unseen: while channels to create are looked up."""

    def channel(self, name: str) -> Channel:
        """The channel of that name, created if need be; the first one gets the backlog."""
        if not (channel := self.channels.get(name)):
            channel = self.channels[name] = Channel(name, self)
            if self.broker.listener:
                self.broker.listener.created(self.name, name)
            self.changed()
        return channel

    def delete_channel(self, name: str) -> bool:
        """Delete a channel and close its clients; whether there was one."""
        if not (channel := self.channels.get(name)):
            return False
        self.drop(channel)
        if self.ephemeral and not self.channels:
            self.broker.delete_topic(self.name)
        return True

    def empty(self) -> None:
        """Forget what no channel has got; channels keep theirs."""
        self.waiting.clear()

    def drop(self, channel: Channel) -> None:
        """Delete a channel of this topic and close its clients."""
        if self.broker.listener:
            self.broker.listener.deleted(self.name, channel.name)
        del self.channels[channel.name]
        consumers, channel.consumers = channel.consumers, []
        channel.empty()
        for consumer in consumers:
            consumer.forget()
            consumer.client.close()

    def put(self, bodies: Sequence[bytes], now: float, defer: float) -> None:
        """Take what is published, each held back for ``defer`` seconds."""
        first, stamp = self.broker.take_ids(len(bodies))
        for number, body in enumerate(bodies, first):
            self.waiting.append(Message(b"%016x" % number, body, stamp, defer))
        self.message_count += len(bodies)
        self.message_bytes += sum(map(len, bodies))
        self.move_on(now)
        self.trim()

    def move_on(self, now: float) -> None:
        """Copy what waits here to every channel."""
        if not self.waiting or not self.channels or self.paused or self.held:
            return
        messages = tuple(self.waiting)
        self.waiting.clear()
        for position, channel in enumerate(self.channels.values()):
            copies = messages
            if position:
                copies = tuple(Message(m.id, m.body, m.timestamp, m.deferred) for m in messages)
            channel.put(copies, now)


class Broker:
    """All topics of one nsqd.

    ``wake`` is called when something changed that only ``tick`` can carry on: call ``tick`` soon.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        max_msg_timeout: float = 900.0,
        mem_queue_size: int = MEM_QUEUE_SIZE,
    ) -> None:
        self.rng = rng
        self.max_msg_timeout = max_msg_timeout
        self.mem_queue_size = mem_queue_size
        self.topics: dict[str, Topic] = {}
        self.listener: Listener | None = None
        self.wake: Callable[[], None] = lambda: None
        self.start_time = clock_ns() // 10**9
        """Seconds since the epoch."""
        self.sequence = count()
        self._clock_ns = clock_ns
        self._next_id = 0
        self._due = NEVER
        self._marked: dict[Queue, None] = {}

    def topic(self, name: str) -> Topic:
        """The topic of that name, created if need be; the name must be valid."""
        if not (topic := self.topics.get(name)):
            topic = self.topics[name] = Topic(name, self)
            if self.listener:
                self.listener.created(name)
        return topic

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with its channels and close their clients; whether there was one."""
        if not (topic := self.topics.get(name)):
            return False
        if self.listener:
            self.listener.deleted(name)
        del self.topics[name]
        for channel in tuple(topic.channels.values()):
            topic.drop(channel)
        topic.empty()
        return True

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, now: float, defer: float = 0.0
    ) -> None:
        """Put messages into a topic; each is held back for ``defer`` seconds."""
        self.topic(topic).put(bodies, now, defer)

    def tick(self, now: float) -> float | None:
        """Do all that is due; returns when to call again at the latest, None for never."""
        if now >= self._due:
            channels = [each for topic in self.topics.values() for each in topic.channels.values()]
            for channel in channels:
                channel.expire(now)
            self._due = min([NEVER, *[channel.next_due() for channel in channels]])
        while self._marked:
            marked, self._marked = self._marked, {}
            for each in marked:
                each.move_on(now)
        return None if self._due == NEVER else self._due

    def mark(self, changed: Queue) -> None:
        """Have ``tick`` look at a topic or channel."""
        if not self._marked:
            self.wake()
        self._marked[changed] = None

    def expect(self, due: float) -> None:
        """Have ``tick`` look at all timeouts at this instant, if that is not planned already."""
        if due < self._due:
            self._due = due
            self.wake()

    def take_ids(self, number: int) -> tuple[int, int]:
        """The first of ``number`` ids that follow each other, and the time in ns.

        Ids grow with time, so that a broker that is started anew does not repeat them (guid.go).
        """
        stamp = self._clock_ns()
        first = max(self._next_id, ((stamp >> 20) - _ID_EPOCH) << 22)
        self._next_id = first + number
        return first, stamp
