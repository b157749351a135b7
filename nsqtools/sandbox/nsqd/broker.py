"""Topics, and the broker that holds them: nsqd without a network.

Pure state: instants come in as ``now`` (seconds of one clock that never goes back), chance as
``rng``, timestamps from ``clock_ns``. Nothing is delivered while a command is dealt with: a change
marks what it touched and calls ``wake``, and ``tick(now)`` moves everything on, in batches:
backlogs into channels, what timed out or was deferred back into queues, queues to consumers with
RDY to spare. Source of the rules: nsqd topic.go.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nsqtools.sandbox.nsqd.channel import NEVER, Channel, Queue, QueuedMessage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_ID_EPOCH = 1288834974288  # guid.go, twepoch


class Topic(Queue):
    """A stream of messages, copied to each channel. Made by ``Broker.topic``."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self.held = False
        """Whether messages stay here while channels to create are looked up."""

    def channel(self, name: str) -> Channel:
        """The channel of that name, created if need be; the first one gets the backlog."""
        if not (channel := self.channels.get(name)):
            channel = self.channels[name] = Channel(name, self)
            self.broker.created(self.name, name)
            self.changed()
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel that there is, and close its clients."""
        self.drop(self.channels[name])
        if self.ephemeral and not self.channels:
            self.broker.delete_topic(self.name)

    def drop(self, channel: Channel) -> None:
        """Delete a channel of this topic and close its clients."""
        self.broker.deleted(self.name, channel.name)
        del self.channels[channel.name]
        channel.empty()
        consumers, channel.consumers = channel.consumers, []
        for consumer in consumers:
            consumer.client.close()

    def empty(self) -> None:
        """Forget what no channel has got; channels keep theirs."""
        self.waiting.clear()

    def put(self, bodies: Sequence[bytes], now: float, defer: float) -> None:
        """Take what is published, each held back for ``defer`` seconds."""
        first, stamp = self.broker.take_ids(len(bodies))
        for number, body in enumerate(bodies, first):
            self.waiting.append(QueuedMessage(b"%016x" % number, body, stamp, 0, defer))
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
                copies = tuple(
                    QueuedMessage(m.id, m.body, m.timestamp, 0, m.deferred) for m in messages
                )
            channel.put(copies, now)


class Broker:
    """All topics of one nsqd.

    ``wake`` is called when something changed that only ``tick`` can carry on: call ``tick`` soon.
    ``created`` is called with a new topic and "", or with a topic and its new channel; ``deleted``
    likewise, before the topic or channel is deleted.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        max_msg_timeout: float = 900.0,
    ) -> None:
        self.rng = rng
        self.max_msg_timeout = max_msg_timeout
        self.topics: dict[str, Topic] = {}
        self.created: Callable[[str, str], None] = lambda topic, channel: None
        self.deleted = self.created
        self.wake: Callable[[], None] = lambda: None
        self.start_time = clock_ns() // 10**9
        """Seconds since the epoch."""
        self._clock_ns = clock_ns
        self._next_id = 0
        self._due = NEVER
        self._marked: dict[Queue, None] = {}

    def topic(self, name: str) -> Topic:
        """The topic of that name, created if need be; the name must be valid."""
        if not (topic := self.topics.get(name)):
            topic = self.topics[name] = Topic(name, self)
            self.created(name, "")
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic that there is with its channels, and close their clients."""
        self.deleted(name, "")
        topic = self.topics.pop(name)
        for channel in tuple(topic.channels.values()):
            topic.drop(channel)
        topic.empty()

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
