"""Runs the engine for a command: stop conditions, and the outcome as an exit code."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsqtools.cli.exits import Exit
from nsqtools.cli.peers import addresses, with_secret
from nsqtools.cli.signals import Signals
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.limit import Limit
from nsqtools.engine.membership import Subscription
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.policy.stopping import StopRule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nsqtools.config import ClientConfig, ConsumerConfig, SourceOptions, StopOptions
    from nsqtools.engine.handler import Batch, Handler, Message
    from nsqtools.engine.lookup import Backlog

log = logging.getLogger(__name__)

C = TypeVar("C", bound="ClientConfig")

# How often an nsqd is asked whether its channel is empty.
_EMPTY_INTERVAL = 0.5
# Shortest time between two looks at the stop conditions.
_MIN_WATCH = 0.05
# Stands in for --until-empty where no HTTP API answers.
_EMPTY_IDLE = 5.0


class Sink(Protocol):
    """A handler that a command opens, and that says when it can write no more."""

    @property
    def failed(self) -> asyncio.Future[None]:
        """Ends with the error after which nothing can be written; from ``open`` on."""

    async def open(self) -> None:
        """Called once the event loop runs."""

    async def handle(self, batch: Batch) -> None:
        """As Handler."""

    async def close(self) -> None:
        """As Handler."""

    async def gave_up(self, messages: Sequence[Message]) -> None:
        """As Handler."""


class _Shared:
    """One sink for several consumers: a batch at a time, and closed once all of them drain.

    The first to drain waits for the last, so that the sink can settle what it holds of anyone.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._lock = asyncio.Lock()
        self._consumers = 0
        self._all_drain = asyncio.Event()
        self._closed = False

    def join(self) -> _Member:
        """A handler for one more consumer."""
        self._consumers += 1
        return _Member(self)

    def leave(self) -> None:
        """A consumer drains, or has ended without."""
        self._consumers -= 1
        if not self._consumers:
            self._all_drain.set()

    async def handle(self, batch: Batch) -> None:
        async with self._lock:
            await self._handler.handle(batch)

    async def gave_up(self, messages: Sequence[Message]) -> None:
        await self._handler.gave_up(messages)

    async def close(self) -> None:
        await self._all_drain.wait()
        async with self._lock:
            if not self._closed:
                self._closed = True
                await self._handler.close()


class _Member:
    """A consumer's part in a shared sink."""

    def __init__(self, shared: _Shared) -> None:
        self.handle = shared.handle
        self.gave_up = shared.gave_up
        self._shared = shared
        self._left = False

    def leave(self) -> None:
        """The consumer drains or has ended; the second call does nothing."""
        if not self._left:
            self._left = True
            self._shared.leave()

    async def close(self) -> None:
        """As Handler."""
        self.leave()
        await self._shared.close()


async def consume(
    source: SourceOptions, channel: str, config: ConsumerConfig, stop: StopOptions, sink: Sink
) -> int:
    """Consume all topics into one sink until a stop condition or a signal; an exit code.

    Raises UnreachableError if nothing could be reached at the start, and the sink's own error.
    """
    config = with_secret(config)
    if not config.max_in_flight:
        raise ConfigError("--max-in-flight: 0 would never receive a message")
    await sink.open()
    run = _Run(sink, config, stop)
    nsqds = () if source.lookupd_http_address else addresses(source.nsqd_tcp_address)
    for topic in dict.fromkeys(source.topic):
        run.add(
            Subscription(
                topic=topic, channel=channel, nsqds=nsqds, lookupds=source.lookupd_http_address
            )
        )
    try:
        return await run.until_done()
    finally:
        await sink.close()


class _Run:
    """The consumers of one command."""

    def __init__(self, sink: Sink, config: ConsumerConfig, stop: StopOptions) -> None:
        self._sink = sink
        self._config = config
        self._options = stop
        self._consumers: list[Consumer] = []
        self._subscriptions: list[Subscription] = []
        self._members: list[_Member] = []
        self._tasks: list[asyncio.Task[None]] = []
        handler: Handler = sink
        if stop.count:
            handler = Limit(sink, stop.count, self._remaining, self._stop)
            self._config = config.with_values(max_in_flight=min(config.max_in_flight, stop.count))
        self._shared = _Shared(handler)

    def add(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)
        member = self._shared.join()
        self._members.append(member)
        self._consumers.append(Consumer(subscription, member, self._config))

    async def until_done(self) -> int:
        loop = asyncio.get_running_loop()
        signals = Signals(self._interrupted, self._leave, "nsqd delivers what was in flight again")
        self._tasks = [
            loop.create_task(self._run(consumer, member))
            for consumer, member in zip(self._consumers, self._members, strict=True)
        ]
        watch = loop.create_task(self._watch(loop.time()))
        failed = self._sink.failed
        try:
            waiting: set[asyncio.Future[Any]] = {*self._tasks, failed, watch}
            while waiting - {failed, watch}:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(not future.cancelled() and future.exception() for future in done):
                    self._stop()
        finally:
            watch.cancel()
        if failed.done():
            failed.result()
        totals = await asyncio.gather(*self._tasks, return_exceptions=True)
        if watch.done() and not watch.cancelled():
            watch.result()
        for outcome in totals:
            if isinstance(outcome, Exception):
                raise outcome
        return self._exit_code(signals)

    async def _run(self, consumer: Consumer, member: _Member) -> None:
        try:
            await consumer.run()
        finally:
            member.leave()

    def _exit_code(self, signals: Signals) -> int:
        totals = [consumer.stats() for consumer in self._consumers]
        log.info(
            "%d messages finished, %d requeued",
            sum(s.finished for s in totals),
            sum(s.requeued for s in totals),
        )
        if late := sum(s.too_late for s in totals):
            log.warning(
                "%d messages had timed out before they were finished: they come again", late
            )
        code = Exit.PARTIAL if any(s.given_up for s in totals) else Exit.DONE
        return signals.exit_code(code) if signals.seen else code

    async def _watch(self, started: float) -> None:
        """Ask the stop rule whenever its answer may have changed."""
        options = self._options
        rule = StopRule(
            max_duration=options.max_duration or None,
            idle_timeout=options.idle_timeout or None,
            until_empty=options.until_empty,
        )
        loop = asyncio.get_running_loop()
        backlogs: list[Backlog] = []
        if rule.until_empty:
            from nsqtools.engine.lookup import Backlog  # loads httpx

            urls = options.nsqd_http_address
            backlogs = [Backlog(s, self._config, urls) for s in self._subscriptions]
        empties = 0
        while True:
            now = loop.time()
            totals = [consumer.stats() for consumer in self._consumers]
            # While messages are in flight a slow reader, not the topic, is what is silent.
            busy = any(total.in_flight for total in totals)
            last = now if busy else max(started, *(total.last_message for total in totals))
            reason = rule.decide(started=started, last_message=last, empties=empties, now=now)
            if reason:
                log.info("stopping: %s", reason)
                self._stop()
                return
            due = rule.next_check(started=started, last_message=last)
            if rule.until_empty:
                due = min(now + _EMPTY_INTERVAL, due or float("inf"))
            if due is None:
                return
            await asyncio.sleep(max(due - now, _MIN_WATCH))
            if rule.until_empty:
                try:
                    empties = 0 if await self._backlog(backlogs) else empties + 1
                except UnreachableError as error:
                    idle = min(options.idle_timeout or _EMPTY_IDLE, _EMPTY_IDLE)
                    log.warning(
                        "--until-empty cannot see the depth (%s): "
                        "stopping after %g s without a message instead",
                        error,
                        idle,
                    )
                    rule = replace(rule, until_empty=False, idle_timeout=idle)

    async def _backlog(self, backlogs: Sequence[Backlog]) -> int:
        counts = await asyncio.gather(*(backlog.count() for backlog in backlogs))
        return sum(counts) + sum(consumer.stats().in_flight for consumer in self._consumers)

    def _remaining(self, count: int) -> None:
        for consumer in self._consumers:
            consumer.set_max_in_flight(min(self._config.max_in_flight, count))

    def _stop(self) -> None:
        for consumer in self._consumers:
            consumer.stop()

    def _interrupted(self) -> None:
        in_flight = sum(consumer.stats().in_flight for consumer in self._consumers)
        if in_flight and sys.stderr.isatty():
            log.warning("draining %d messages, Ctrl-C again to leave now", in_flight)
        self._stop()

    def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
