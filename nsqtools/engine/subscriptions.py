"""The topics under way: each has a consumer, and starts, fails and ends by itself."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nsqtools.config.units import format_duration
from nsqtools.engine.concurrency import Tasks, interruptible
from nsqtools.engine.consumer import Consumer, ConsumerStats
from nsqtools.engine.handler import Handler
from nsqtools.engine.membership import Silence
from nsqtools.errors import (
    ConfigError,
    LockedError,
    NSQError,
    OutputError,
    PeerError,
    UnreachableError,
)
from nsqtools.net.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from nsqtools.config import ConsumerConfig
    from nsqtools.engine.conditions import Count
    from nsqtools.engine.descriptors import Descriptors
    from nsqtools.engine.handler import Batch
    from nsqtools.engine.membership import Subscription
    from nsqtools.names import Address
    from nsqtools.net.connection import Dial

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Subscriptions:
    """Consumes topics into one handler, each with a Consumer.

    A topic that cannot be reached at its start, or that the handler cannot take, is logged and
    tried again every ``retry`` seconds, unless there is no other one: with ``all_fail`` the first
    error ends everything once every topic has failed; without, only if another process has the
    locks of all. ``on_reached`` is called whenever some topic was reached, ``on_error`` with what
    must end everything. A topic for which too few ``descriptors`` are left fails.
    """

    handler: Handler
    config: ConsumerConfig
    retry: float
    all_fail: bool
    descriptors: Descriptors
    on_reached: Callable[[], object]
    on_error: Callable[[BaseException], object]
    count: Count | None = None
    silence: Silence = field(default_factory=Silence)
    rng: Random | None = None
    dial: Dial = Connection.open
    out_of_time: bool = False
    """Whether a topic that was not reached until now has failed."""
    undrained: set[str] = field(default_factory=set)
    """Topics that were dropped, of which the handler could not settle all."""
    _topics: dict[str, _Topic] = field(default_factory=dict)
    _tasks: Tasks = field(init=False)
    _past: dict[str, ConsumerStats] = field(default_factory=dict)
    _any_reached: bool = False
    _stopped: bool = False

    def __post_init__(self) -> None:
        self._tasks = Tasks(self.on_error)

    def __len__(self) -> int:
        """How many topics there are now."""
        return len(self._topics)

    def add(self, subscription: Subscription) -> None:
        """Consume this topic, too; one that is being dropped starts again after that."""
        name = subscription.topic
        if self._stopped:
            return
        if known := self._topics.get(name):
            known.wanted = True
            return
        past = self._past.setdefault(name, ConsumerStats())
        topic = self._topics[name] = _Topic(subscription, self, past)
        self._tasks.begin(self._keep(topic))

    def drop(self, name: str) -> None:
        """Drain this topic and forget it."""
        if topic := self._topics.get(name):
            topic.wanted = False
            topic.interrupt()

    async def stop(self, *, out_of_time: bool = False) -> None:
        """Drain all topics. ``out_of_time``: one that was never reached has failed."""
        self._stopped, self.out_of_time = True, out_of_time
        for topic in self._topics.values():
            topic.interrupt()
        await self._tasks.wait()

    def leave(self) -> None:
        """Drop all connections at once; ``stop`` waits until that is done."""
        self._tasks.cancel()

    def stats(self) -> ConsumerStats:
        """Totals of all topics; ``last_message`` is 0 until a message came."""
        total = ConsumerStats()
        for part in self.by_topic().values():
            total.add(part)
        return total

    def by_topic(self) -> dict[str, ConsumerStats]:
        """Totals of each topic that there was, also of those that were dropped."""
        totals = {name: replace(past) for name, past in self._past.items()}
        for name, topic in self._topics.items():
            if topic.consumer:
                totals[name].add(topic.consumer.stats())
        return totals

    @property
    def in_flight(self) -> int:
        """Messages that were received and not settled."""
        consumers = [topic.consumer for topic in self._topics.values() if topic.consumer]
        return sum(consumer.stats().in_flight for consumer in consumers)

    def current(self) -> list[Subscription]:
        """The topics of now, without those that cannot be reached."""
        return [topic.subscription for topic in self._topics.values() if not topic.error]

    def unreached(self) -> list[str]:
        """Topics that could not be consumed at any time."""
        return [name for name, topic in self._topics.items() if topic.error]

    def set_max_in_flight(self, n: int) -> None:
        """Let every topic have at most so many messages in flight, and no more than configured."""
        for topic in self._topics.values():
            if topic.consumer:
                topic.consumer.set_max_in_flight(min(self.config.max_in_flight, n))

    # Called by topics.

    def reserve(self, name: str, nsqds: int) -> None:
        """Reserve file descriptors for a topic; raises ConfigError."""
        self.descriptors.reserve(name, nsqds, topics=len(self._topics))

    def reached(self) -> None:
        """Some topic was reached."""
        self._any_reached = True
        self.on_reached()

    def not_drained(self, name: str, error: NSQError) -> None:
        """The handler could not settle what it held of a topic: nsqd delivers it again."""
        if self._stopped:
            self.on_error(error)
        else:
            log.error("topic %s: %s", name, error)
            self.undrained.add(name)

    async def _keep(self, topic: _Topic) -> None:
        while not self._stopped:
            if topic.wanted:
                topic.interrupted.clear()
                if error := await topic.consume():
                    self._failed(topic, error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.retry):
                            await topic.interrupted.wait()
            elif topic.joined:  # it was never consumed
                await topic.close()
            else:
                break
        name = topic.subscription.topic
        if not topic.wanted:
            self.descriptors.release(name)
            del self._topics[name]

    def _failed(self, topic: _Topic, error: NSQError) -> None:
        """Tell why a topic cannot be consumed; raises the first error if that ends everything."""
        name, known = topic.subscription.topic, str(topic.error) == str(error)
        topic.error = error
        if not topic.joined:
            self.descriptors.release(name)
        errors = [each.error for each in self._topics.values() if each.error]
        locked = not self._any_reached and all(isinstance(each, LockedError) for each in errors)
        if (self.all_fail or locked) and len(errors) == len(self._topics):
            raise errors[0]
        log.log(logging.INFO if known else logging.ERROR, "topic %s: %s", name, error)
        log.info("topic %s: next try in %s", name, format_duration(self.retry))


class _Topic(Handler):
    """A topic under way, and the handler of its consumer: closing it drains this topic alone."""

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
        """Whether the handler has it."""
        self._name = subscription.topic
        self._owner = owner
        self._past = past
        self._reached = False

    def interrupt(self) -> None:
        """End ``consume`` in good order: the topic is dropped or stopped."""
        self.interrupted.set()
        if self.consumer:
            self.consumer.stop()

    async def consume(self) -> NSQError | None:
        """Consume to the end, or return why that could not begin; other errors end everything."""
        owner = self._owner
        try:
            owner.reserve(self._name, len(self.subscription.nsqds))
            await self._join()
        except (LockedError, OutputError, ConfigError) as error:
            return error
        if self.interrupted.is_set():
            return None
        consumer = self.consumer = Consumer(
            self.subscription,
            self,
            owner.config,
            rng=owner.rng,
            dial=owner.dial,
            find=self._find if self.subscription.lookupds else None,
            on_reached=self._was_reached,
        )
        if owner.count:
            consumer.set_max_in_flight(min(owner.config.max_in_flight, owner.count.remaining))
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
            return UnreachableError("no nsqd let us in before the time was over")
        return None

    async def handle(self, batch: Batch) -> None:
        """Pass a batch on, as far as the count allows it."""
        count, handler = self._owner.count, self._owner.handler
        if count is None:
            await handler.handle(batch)
        elif count.take(batch):
            await handler.handle(batch)
            # RDY has fallen to what is left: what is held may keep that from coming.
            allowed = min(self._owner.config.max_in_flight, count.remaining)
            if self._owner.in_flight >= allowed:
                handler.flush()

    async def gave_up(self, batch: Batch) -> None:
        """Pass it on; a message that was given up does not count."""
        await self._owner.handler.gave_up(batch)

    async def close(self, *, at_once: bool = False) -> None:
        """Let the handler settle what it holds of the topic."""
        self.joined = False
        try:
            await self._owner.handler.drain(self._name)
        except NSQError as error:
            self._owner.not_drained(self._name, error)

    async def _join(self) -> None:
        """Let the handler get ready, which may mean to wait for a lock: an interrupt ends that."""
        joining = self._owner.handler.join(self._name)
        self.joined = await interruptible(joining, self.interrupted) or self.joined

    async def _find(self) -> Iterable[Address]:
        """The nsqds that nsqlookupds name; once the topic was reached their silence is no error."""
        from nsqtools.engine.lookup import Lookups  # loads net.http

        silence = self._owner.silence
        lookups = Lookups(self.subscription, self._owner.config, silence)
        try:
            async with self._owner.descriptors.requests:
                found = await lookups.producers()
        except UnreachableError as error:
            if not self._reached:
                raise
            silence.nobody(error)
            return ()
        self._owner.reserve(self._name, len(found))
        return found

    def _was_reached(self) -> None:
        if self.error:
            log.info("topic %s: consumed from now on", self._name)
        self._reached = True
        self.error = None
        self._owner.reached()
