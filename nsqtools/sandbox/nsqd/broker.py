"""Topics, and the broker that holds them: nsqd without a network.

No I/O: times are passed as ``now`` (seconds of a monotonic clock), ``rng`` makes random choices,
and ``clock_ns`` provides timestamps. Commands deliver nothing themselves: a change marks its topic
or channel and calls ``wake``. ``tick(now)`` then moves all messages on, in batches: from topics to
channels, back into queues after timeouts and delays, and to consumers with RDY to spare. The rules
are those of nsqd's topic.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.sandbox.nsqd.channel import NEVER, Channel, Queue, QueuedMessage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_ID_EPOCH = 1288834974288  # guid.go, twepoch


class Topic(Queue):
    """A stream of messages that are copied to each channel. ``Broker.topic`` creates topics."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self.held = False
        """Whether messages wait until the channels of a new topic have been looked up."""

    def channel(self, name: str) -> Channel:
        """Return a channel, creating it if necessary; the first channel gets the backlog."""
        if not (channel := self.channels.get(name)):
            channel = self.channels[name] = Channel(name, self)
            self.broker.created(self.name, name)
            self.changed()
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete an existing channel and close its clients."""
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
        """Discard messages that no channel has received; channels keep theirs."""
        self.waiting.clear()

    def put(self, bodies: Sequence[bytes], now: float, defer: float) -> None:
        """Add published messages, deferred by ``defer`` seconds."""
        first, stamp = self.broker.take_ids(len(bodies))
        for number, body in enumerate(bodies, first):
            self.waiting.append(QueuedMessage(b"%016x" % number, body, stamp, 0, defer))
        self.message_count += len(bodies)
        self.message_bytes += sum(map(len, bodies))
        self.move_on(now)
        self.trim()

    def move_on(self, now: float) -> None:
        """Copy waiting messages to every channel."""
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

    ``wake`` is called when ``tick`` has work; call ``tick`` soon after that. ``created`` is called
    with a new topic and "", or with a topic and its new channel; ``deleted`` likewise, before a
    topic or channel is deleted.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        clock_ns: Callable[[], int],
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
        """Return a topic, creating it if necessary; the name must be valid."""
        if not (topic := self.topics.get(name)):
            topic = self.topics[name] = Topic(name, self)
            self.created(name, "")
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete an existing topic with its channels, and close their clients."""
        self.deleted(name, "")
        topic = self.topics.pop(name)
        for channel in tuple(topic.channels.values()):
            topic.drop(channel)
        topic.empty()

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, now: float, defer: float = 0.0
    ) -> None:
        """Publish messages to a topic, deferred by ``defer`` seconds."""
        self.topic(topic).put(bodies, now, defer)

    def tick(self, now: float) -> float | None:
        """Do all work that is due; return when to call again at the latest, None for never."""
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
        """Let ``tick`` process a topic or channel."""
        if not self._marked:
            self.wake()
        self._marked[changed] = None

    def expect(self, due: float) -> None:
        """Let ``tick`` process timeouts at this time or earlier."""
        if due < self._due:
            self._due = due
            self.wake()

    def take_ids(self, number: int) -> tuple[int, int]:
        """Return the first of ``number`` consecutive ids, and the time in ns.

        Ids grow with time, so that a restarted broker does not repeat them (guid.go).
        """
        stamp = self._clock_ns()
        first = max(self._next_id, ((stamp >> 20) - _ID_EPOCH) << 22)
        self._next_id = first + number
        return first, stamp
