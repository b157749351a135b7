"""The consumers of one command, one per topic: each starts, fails and ends by itself."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from nsqtools.config.units import counted, format_duration
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.limit import Limit
from nsqtools.engine.stats import ConsumerStats
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
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from nsqtools.cli.run import Sink
    from nsqtools.config import ConsumerConfig
    from nsqtools.engine.handler import Batch, Handler
    from nsqtools.engine.lookup import Silence
    from nsqtools.engine.membership import Subscription
    from nsqtools.names import Address
    from nsqtools.net.connection import Dial

log = logging.getLogger(__name__)

# Descriptors for what is open anyway, and for directories, programs and name look-ups now and then.
_SPARE = 24
# Of all descriptors this part is for requests over HTTP, of so many topics at a time at most.
_SHARE, _AT_ONCE = 16, 32
_COUNTERS = [each.name for each in fields(ConsumerStats) if type(each.default) is int]


@dataclass(slots=True, eq=False)
class _Topic:
    """A topic and its consumer of now, if there is one.

    ``joined``: the sink has it. ``reached``: some nsqd took us, or nsqlookupd knows of none that
    has the topic. ``nsqds``: for how many of them, at least 1, files are reserved. ``error`` is why
    the last start failed.
    """

    subscription: Subscription
    consumer: Consumer | None = None
    wanted: bool = True
    nsqds: int = 0
    joined: bool = False
    reached: bool = False
    error: NSQError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Consumers:
    """Consumes topics into one sink, each with a Consumer.

    A topic that cannot be reached at its start, or that the sink cannot take, is logged and tried
    again every ``retry`` seconds, unless there is no other one: with ``all_fail`` the first error
    ends everything once every topic has failed; without, only if another process has the locks of
    all. ``count`` stops everything after so many messages; 0 is no limit. ``on_reached`` is called
    whenever some topic was reached.

    The process may have ``limit`` files open. Some are reserved, so that files to write to can
    always be opened: ``files`` for each topic, one for each of its nsqds, and a share for requests
    over HTTP, each to ``servers`` at once. A topic for which too few are left fails.
    """

    def __init__(
        self,
        sink: Sink,
        config: ConsumerConfig,
        *,
        count: int,
        retry: float,
        all_fail: bool,
        on_reached: Callable[[], object],
        silence: Silence | None,
        limit: int = sys.maxsize,
        files: int = 0,
        servers: int = 1,
        dial: Dial = Connection.open,
    ) -> None:
        self.requests = asyncio.Semaphore(max(1, min(_AT_ONCE, limit // _SHARE // servers)))
        """Held during a request over HTTP that is made for each topic."""
        self._limit = limit
        self._files = files
        self._dial = dial
        self._sink = sink
        self._config = config
        self._retry = retry
        self._all_fail = all_fail
        self._on_reached = on_reached
        self._silence = silence
        self._handler: Handler = sink
        self._left: int | None = None
        if count:
            self._left = count
            self._handler = Limit(sink, count, self._remaining, self.stop)
        self._topics: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._past = ConsumerStats()
        self._past_of: dict[str, ConsumerStats] = {}
        self._any_reached = False
        self.out_of_time = False
        """Whether a limit of time, and no signal, is why it stops."""
        self.stopping = asyncio.Event()
        """Set once no more messages are to come."""
        self.errors: list[BaseException] = []
        """What ended everything, or went wrong in the end, first things first."""
        self.undrained: set[str] = set()
        """Topics that were dropped, of which the sink could not settle all."""

    def check(self, nsqds: Sequence[int]) -> None:
        """Raise ConfigError if too few files may be open for topics on so many nsqds each."""
        needed = _SPARE + sum(self._files + max(1, count) for count in nsqds)
        if needed > self._limit - self._limit // _SHARE:
            topics = max(len(self._topics), len(nsqds))
            needed += (topics - len(nsqds)) * (self._files + 1)
            needed += needed // (_SHARE - 1) + 1
            raise ConfigError(
                f"{counted(topics, 'topic')} would need {needed} open files, and the limit is "
                f"{self._limit}: raise it with ulimit -n {needed}"
            )

    def add(self, subscription: Subscription) -> None:
        """Consume this topic, too; one that is being dropped starts again after that."""
        if self.stopping.is_set():
            return
        if known := self._topics.get(subscription.topic):
            known.wanted = True
            return
        topic = self._topics[subscription.topic] = _Topic(subscription)
        self._past_of.setdefault(subscription.topic, ConsumerStats())
        task = asyncio.get_running_loop().create_task(self._keep(topic))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def drop(self, name: str) -> None:
        """Drain this topic and forget it."""
        if topic := self._topics.get(name):
            topic.wanted = False
            _wake(topic)

    def stop(self) -> None:
        """Drain all topics; a second call changes nothing."""
        self.stopping.set()
        for topic in self._topics.values():
            _wake(topic)

    def leave(self) -> None:
        """Drop all connections at once."""
        self.stopping.set()
        for task in self._tasks:
            task.cancel()

    async def done(self) -> None:
        """Wait until all topics were drained, or dropped, after ``stop`` or ``leave``."""
        await self.stopping.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def totals(self) -> ConsumerStats:
        """Totals of all consumers there were; ``last_message`` is 0 until a message came."""
        total = ConsumerStats()
        _add(total, self._past)
        for topic in self._topics.values():
            if topic.consumer:
                _add(total, topic.consumer.stats())
        return total

    def by_topic(self) -> dict[str, ConsumerStats]:
        """Totals of each topic that there was, also of such as were dropped."""
        totals = {}
        for name, past in self._past_of.items():
            total = totals[name] = replace(past)
            topic = self._topics.get(name)
            if topic and topic.consumer:
                _add(total, topic.consumer.stats())
        return totals

    @property
    def topics(self) -> int:
        """How many topics there are now."""
        return len(self._topics)

    def subscriptions(self) -> list[Subscription]:
        """Those of the topics of now, but for such as cannot be reached."""
        return [topic.subscription for topic in self._topics.values() if not topic.error]

    def unreached(self) -> list[str]:
        """Topics that could not be consumed at any time."""
        return [name for name, topic in self._topics.items() if topic.error]

    async def _keep(self, topic: _Topic) -> None:
        while not self.stopping.is_set():
            if topic.wanted:
                topic.changed.clear()
                if error := await self._try(topic):
                    self._failed(topic, error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._retry):
                            await topic.changed.wait()
            elif topic.joined:  # it was never consumed
                await self._drain(topic)
            else:
                break
        if not topic.wanted:
            del self._topics[topic.subscription.topic]

    def _reserve(self, topic: _Topic, nsqds: int) -> None:
        """Reserve files for a topic that so many nsqds have; raises ConfigError."""
        others = [each.nsqds for each in self._topics.values() if each.nsqds and each != topic]
        self.check([nsqds, *others])
        topic.nsqds = max(1, nsqds)

    async def _try(self, topic: _Topic) -> NSQError | None:
        """Consume to the end, or return why that could not begin; other errors end everything."""
        try:
            self._reserve(topic, len(topic.subscription.nsqds))
            await self._join(topic)
        except (LockedError, OutputError, ConfigError) as error:
            if not topic.joined:
                topic.nsqds = 0
            return error
        if not topic.changed.is_set():
            try:
                await self._consume(topic)
            except (PeerError, ConfigError) as error:
                return error
            if self.out_of_time and not topic.reached:
                return UnreachableError("no nsqd let us in before the time was over")
        return None

    async def _consume(self, topic: _Topic) -> None:
        consumer = topic.consumer = Consumer(
            topic.subscription,
            _Part(self._handler, handled=self._hurry, drain=lambda: self._drain(topic)),
            self._config,
            dial=self._dialler(topic),
            find=self._finder(topic),
        )
        if self._left is not None:
            consumer.set_max_in_flight(min(self._config.max_in_flight, self._left))
        try:
            await consumer.run()
        finally:
            topic.consumer = None
            past = consumer.stats()
            past.connections = past.in_flight = past.backoff_level = 0
            for total in (self._past, self._past_of[topic.subscription.topic]):
                _add(total, past)

    async def _join(self, topic: _Topic) -> None:
        """Let the sink get ready, which may mean to wait for a lock: being stopped ends that."""
        loop = asyncio.get_running_loop()
        joining = loop.create_task(self._sink.join(topic.subscription.topic))
        changed = loop.create_task(topic.changed.wait())
        try:
            await asyncio.wait((joining, changed), return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()
        finally:
            changed.cancel()
            if not joining.done():
                joining.cancel()
                await asyncio.wait((joining,))
            if not joining.cancelled() and not joining.exception():
                topic.joined = True

    async def _drain(self, topic: _Topic) -> None:
        """Let the sink settle what it holds; what it cannot, nsqd delivers again."""
        topic.joined = False
        name = topic.subscription.topic
        try:
            await self._sink.drain(name)
        except NSQError as error:
            if self.stopping.is_set():
                self.errors.append(error)
            else:
                log.error("topic %s: %s", name, error)
                self.undrained.add(name)

    def _dialler(self, topic: _Topic) -> Any:
        async def dial(address: Address, *args: Any, **options: Any) -> Connection:
            connection = await self._dial(address, *args, **options)
            self._reached(topic)
            return connection

        return dial

    def _finder(self, topic: _Topic) -> Callable[[], Awaitable[Iterable[Address]]] | None:
        if not topic.subscription.lookupds:
            return None
        from nsqtools.engine.lookup import Lookups, Silence  # loads httpx

        silence = self._silence or Silence()
        lookups = Lookups(topic.subscription, self._config, silence)

        async def find() -> Iterable[Address]:
            try:
                async with self.requests:
                    found = await lookups.producers()
            except UnreachableError as error:
                if not topic.reached:
                    raise
                silence.nobody(error)
                return ()
            self._reserve(topic, len(found))
            if not found:
                self._reached(topic)
            return found

        return find

    def _reached(self, topic: _Topic) -> None:
        if topic.error:
            log.info("topic %s: consumed from now on", topic.subscription.topic)
        self._any_reached = topic.reached = True
        topic.error = None
        self._on_reached()

    def _failed(self, topic: _Topic, error: NSQError) -> None:
        known = str(topic.error) == str(error)
        topic.error = error
        errors = [each.error for each in self._topics.values() if each.error]
        locked = not self._any_reached and all(isinstance(each, LockedError) for each in errors)
        if (self._all_fail or locked) and len(errors) == len(self._topics):
            raise errors[0]
        name = topic.subscription.topic
        log.log(logging.INFO if known else logging.ERROR, "topic %s: %s", name, error)
        log.info("topic %s: next try in %s", name, format_duration(self._retry))

    def _remaining(self, count: int) -> None:
        self._left = count
        for topic in self._topics.values():
            if topic.consumer:
                topic.consumer.set_max_in_flight(min(self._config.max_in_flight, count))

    def _hurry(self) -> None:
        """With a count RDY has fallen to what is left: what is held may keep that from coming."""
        if self._left is not None:
            allowed = min(self._config.max_in_flight, self._left)
            if self.totals().in_flight >= allowed:
                self._sink.flush()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)
            self.stop()


class _Part:
    """A topic's part in the sink, as its consumer's handler: closing drains that topic alone."""

    def __init__(
        self,
        handler: Handler,
        *,
        handled: Callable[[], object],
        drain: Callable[[], Awaitable[None]],
    ) -> None:
        self._handler = handler
        self._handled = handled
        self._drain = drain
        self.gave_up = handler.gave_up

    async def handle(self, batch: Batch) -> None:
        """As Handler."""
        await self._handler.handle(batch)
        self._handled()

    async def close(self) -> None:
        """As Handler."""
        await self._drain()


def _wake(topic: _Topic) -> None:
    topic.changed.set()
    if topic.consumer:
        topic.consumer.stop()


def _add(total: ConsumerStats, part: ConsumerStats) -> None:
    for name in _COUNTERS:
        setattr(total, name, getattr(total, name) + getattr(part, name))
    if part.received:  # else it is the time of the start
        total.last_message = max(total.last_message, part.last_message)
