"""The topics of a Runner: each has a Consumer, and starts, fails and ends independently."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.config.units import format_duration
from nsqtools.engine.consumer import ConsumerStats
from nsqtools.engine.handler import Handler
from nsqtools.errors import (
    ConfigError,
    LockedError,
    NSQError,
    OutputError,
    PeerError,
    UnreachableError,
)
from nsqtools.tasks import Tasks, interruptible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.engine.conditions import Count
    from nsqtools.engine.connector import Subscription
    from nsqtools.engine.consumer import Consumer
    from nsqtools.engine.handler import Batch

log = logging.getLogger(__name__)


class Subscriptions:
    """Consumes topics with one handler and a Consumer per topic.

    ``consumer_for`` makes a Consumer from the subscription, the handler of its topic, and a
    function to call when the topic was reached.

    A topic whose start fails is logged and retried every ``retry`` seconds. Once every topic has
    failed, the first error ends the run: with ``all_fail`` always, otherwise only if other
    processes hold the locks of all topics. A topic also fails if ``exists`` says that no nsqd has
    it. ``on_reached`` is called whenever a topic is reached, ``on_error`` with an error that must
    end the run.
    """

    def __init__(
        self,
        handler: Handler,
        consumer_for: Callable[[Subscription, Handler, Callable[[], object]], Consumer],
        *,
        max_in_flight: int,
        retry: float,
        all_fail: bool,
        on_reached: Callable[[], object],
        on_error: Callable[[BaseException], object],
        count: Count | None = None,
        exists: Callable[[Subscription], Awaitable[bool]],
    ) -> None:
        self.handler = handler
        self.exists = exists
        self.consumer_for = consumer_for
        self.count = count
        self.out_of_time = False
        """Whether the run is over, so that a topic never reached counts as failed."""
        self.undrained: set[str] = set()
        """Topics that were dropped before the handler could settle all their messages."""
        self._max_in_flight = max_in_flight
        self._retry = retry
        self.all_fail = all_fail
        self._on_reached = on_reached
        self._on_error = on_error
        self._topics: dict[str, _TopicHandler] = {}
        self._tasks = Tasks(on_error)
        self._past: dict[str, ConsumerStats] = {}
        self._any_reached = False
        self._stopped = False

    def __len__(self) -> int:
        """The current number of topics."""
        return len(self._topics)

    def add(self, subscription: Subscription) -> None:
        """Consume another topic; if it is being dropped, it starts again afterwards."""
        name = subscription.topic
        if self._stopped:
            return
        if known := self._topics.get(name):
            known.wanted = True
            return
        past = self._past.setdefault(name, ConsumerStats())
        topic = self._topics[name] = _TopicHandler(subscription, self, past)
        self._tasks.begin(self._keep(topic))

    def drop(self, name: str) -> None:
        """Drain a topic and forget it."""
        if topic := self._topics.get(name):
            topic.wanted = False
            topic.interrupt()

    async def stop(self, *, out_of_time: bool = False) -> None:
        """Drain all topics; with ``out_of_time`` a topic that was never reached has failed."""
        self._stopped, self.out_of_time = True, out_of_time
        for topic in self._topics.values():
            topic.interrupt()
        await self._tasks.wait()

    def leave(self) -> None:
        """Drop all connections at once; ``stop`` waits until they are closed."""
        self._tasks.cancel()

    def stats(self) -> ConsumerStats:
        """Return the totals of all topics; ``last_message`` is 0 before the first message."""
        total = ConsumerStats()
        for part in self.by_topic().values():
            total.add(part)
        return total

    def by_topic(self) -> dict[str, ConsumerStats]:
        """Return the totals by topic, dropped topics included."""
        totals = {name: replace(past) for name, past in self._past.items()}
        for name, topic in self._topics.items():
            if topic.consumer:
                totals[name].add(topic.consumer.stats())
        return totals

    @property
    def in_flight(self) -> int:
        """The number of messages that were received and not settled."""
        consumers = [topic.consumer for topic in self._topics.values() if topic.consumer]
        return sum(consumer.stats().in_flight for consumer in consumers)

    def current(self) -> list[Subscription]:
        """Return the current topics, without those whose start failed."""
        return [topic.subscription for topic in self._topics.values() if not topic.error]

    def unreached(self) -> list[str]:
        """Return the topics that could never be consumed."""
        return [name for name, topic in self._topics.items() if topic.error]

    @property
    def allowed(self) -> int:
        """The maximum of messages in flight per topic: never more than the count still needs."""
        return min(self._max_in_flight, self.count.remaining) if self.count else self._max_in_flight

    def limit(self) -> None:
        """Limit each topic to the messages in flight that are allowed now."""
        for topic in self._topics.values():
            if topic.consumer:
                topic.consumer.set_max_in_flight(self.allowed)

    # Called by topics.

    def reached(self) -> None:
        """Note that a topic was reached."""
        self._any_reached = True
        self._on_reached()

    def not_drained(self, name: str, error: NSQError) -> None:
        """Note that the handler could not settle messages of a topic; nsqd redelivers them."""
        if self._stopped:
            self._on_error(error)
        else:
            log.error("topic %s: %s", name, error)
            self.undrained.add(name)

    async def _keep(self, topic: _TopicHandler) -> None:
        while not self._stopped:
            if topic.wanted:
                topic.interrupted.clear()
                if error := await topic.consume():
                    self._failed(topic, error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._retry):
                            await topic.interrupted.wait()
            elif topic.joined:  # it was never consumed
                await topic.drain(topic.subscription.topic)
            else:
                break
        name = topic.subscription.topic
        if not topic.wanted:
            del self._topics[name]

    def _failed(self, topic: _TopicHandler, error: NSQError) -> None:
        """Log why a topic cannot be consumed; raises the first error if that must end the run."""
        name, known = topic.subscription.topic, str(topic.error) == str(error)
        topic.error = error
        errors = [each.error for each in self._topics.values() if each.error]
        locked = not self._any_reached and all(isinstance(each, LockedError) for each in errors)
        if (self.all_fail or locked) and len(errors) == len(self._topics):
            raise errors[0]
        text = str(error) if f"topic {name}" in str(error) else f"topic {name}: {error}"
        log.log(logging.INFO if known else logging.ERROR, "%s", text)
        log.info("topic %s: next retry in %s", name, format_duration(self._retry))


class _TopicHandler(Handler):
    """One topic, and the handler of its consumer: closing it drains this topic only."""

    def __init__(
        self, subscription: Subscription, owner: Subscriptions, past: ConsumerStats
    ) -> None:
        self.subscription = subscription
        self.consumer: Consumer | None = None
        self.error: NSQError | None = None
        """Why the last start failed."""
        self.wanted = True
        self.interrupted = asyncio.Event()
        self.joined = False
        """Whether the handler has joined the topic."""
        self._name = subscription.topic
        self._owner = owner
        self._past = past
        self._reached = False

    def interrupt(self) -> None:
        """End ``consume`` by draining: the topic was dropped, or the run stops."""
        self.interrupted.set()
        if self.consumer:
            self.consumer.stop()

    async def consume(self) -> NSQError | None:
        """Consume until the end; returns the error if the start fails, and raises other errors."""
        owner = self._owner
        try:
            if not await owner.exists(self.subscription):
                return self._unknown()
            await self._join()
        except (LockedError, OutputError, ConfigError) as error:
            return error
        if self.interrupted.is_set():
            return None
        consumer = self.consumer = owner.consumer_for(self.subscription, self, self._was_reached)
        if owner.count:
            consumer.set_max_in_flight(owner.allowed)
        try:
            await consumer.run()
        except (PeerError, ConfigError) as error:
            return error
        finally:
            self.consumer = None
            ended = consumer.stats()
            ended.connections = ended.in_flight = ended.backoff_level = 0
            self._past.add(ended)
        if owner.out_of_time and not self._reached:
            return UnreachableError("no nsqd accepted the subscription before the run ended")
        if owner.out_of_time and owner.all_fail and not self._past.connected:
            return self._unknown()
        return None

    async def handle(self, batch: Batch) -> None:
        """Pass on as many messages of the batch as ``--count`` allows."""
        count, handler = self._owner.count, self._owner.handler
        if count is None:
            await handler.handle(batch)
        elif count.take(batch):
            await handler.handle(batch)
            # RDY is now at most the remaining count: messages that the handler holds may block the
            # rest.
            if self._owner.in_flight >= self._owner.allowed:
                handler.flush()

    async def gave_up(self, batch: Batch) -> None:
        """Pass on the batch; messages that are given up do not count."""
        await self._owner.handler.gave_up(batch)

    def refused(self, count: int) -> None:
        """Take back what ``--count`` has counted too early."""
        if self._owner.count:
            self._owner.count.refused(count)

    async def drain(self, topic: str) -> None:
        """Let the handler settle the topic's messages."""
        self.joined = False
        try:
            await self._owner.handler.drain(topic)
        except NSQError as error:
            self._owner.not_drained(topic, error)

    async def _join(self) -> None:
        """Let the handler join the topic; an interrupt ends the wait for a lock."""
        joining = self._owner.handler.join(self._name)
        self.joined = await interruptible(joining, self.interrupted) or self.joined

    def _unknown(self) -> NSQError:
        return NSQError(f"no nsqd has topic {self._name}: check the name")

    def _was_reached(self) -> None:
        if self.error:
            log.info("topic %s: connected", self._name)
        self._reached = True
        self.error = None
        self._owner.reached()
