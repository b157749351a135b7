"""Runs the engine for a command: signals, stop conditions, and the outcome as an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsqtools.cli.exits import Exit
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.limit import Limit
from nsqtools.engine.membership import Subscription
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.names import NSQD_TCP_PORT, Address
from nsqtools.policy.stopping import StopRule

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from nsqtools.config import ClientConfig, ConsumerConfig, SourceOptions, StopOptions
    from nsqtools.engine.consumer import ConsumerStats
    from nsqtools.engine.handler import Batch, Handler, Message
    from nsqtools.engine.lookup import Backlog

log = logging.getLogger(__name__)

C = TypeVar("C", bound="ClientConfig")

# How often an nsqd is asked whether its channel is empty.
_EMPTY_INTERVAL = 0.5
# Stands in for --until-empty where no HTTP API answers.
_EMPTY_IDLE = 5.0


class Sink(Protocol):
    """A handler that a command opens, and that says when it can write no more."""

    failed: asyncio.Future[None]

    async def open(self) -> None:
        """Called once the event loop runs."""

    async def handle(self, batch: Batch) -> None:
        """As Handler."""

    async def close(self) -> None:
        """As Handler."""

    async def gave_up(self, messages: Sequence[Message]) -> None:
        """As Handler."""


class Signals:
    """SIGINT, SIGTERM and SIGHUP stop; a second one stops at once.

    A signal that was ignored when the program started, as in a shell's background job, stays so.
    """

    def __init__(self, stop: Callable[[], None], leave: Callable[[], None]) -> None:
        self._stop = stop
        self._leave = leave
        self._seen: list[signal.Signals] = []
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._caught, number)

    @property
    def interrupted(self) -> bool:
        """Whether SIGINT was the first."""
        return self._seen[:1] == [signal.SIGINT]

    @property
    def seen(self) -> bool:
        """Whether any came."""
        return bool(self._seen)

    @property
    def urgent(self) -> bool:
        """Whether a second one came."""
        return len(self._seen) > 1

    def _caught(self, number: signal.Signals) -> None:
        self._seen.append(signal.Signals(number))
        (self._leave if self.urgent else self._stop)()


class _Shared:
    """One sink for several consumers: a batch at a time, and not closed by the first to stop."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._lock = asyncio.Lock()

    async def handle(self, batch: Batch) -> None:
        async with self._lock:
            await self._handler.handle(batch)

    async def gave_up(self, messages: Sequence[Message]) -> None:
        await self._handler.gave_up(messages)

    async def close(self) -> None:
        """Left to the run."""


def addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """nsqd addresses of ``--nsqd-tcp-address``, with the default where there are none."""
    if not texts:
        return (Address("127.0.0.1", NSQD_TCP_PORT),)
    return tuple(Address.parse(text, NSQD_TCP_PORT) for text in texts)


def with_secret(config: C) -> C:
    """The configuration with the secret of ``--auth-secret-file`` read.

    Raises ConfigError if it cannot be; warns if others may read it.
    """
    path = config.auth_secret_file
    if not path:
        return config
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                log.warning("%s may be read by others: chmod 600 it", path)
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"--auth-secret-file {path}: {reason}") from error
    if not secret:
        raise ConfigError(f"--auth-secret-file {path}: empty")
    return config.with_values(auth_secret=secret)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine to its exit code."""
    return asyncio.run(main)


async def consume(
    source: SourceOptions, channel: str, config: ConsumerConfig, stop: StopOptions, sink: Sink
) -> int:
    """Consume all topics into one sink until a stop condition or a signal; an exit code.

    Raises UnreachableError if nothing could be reached at the start, and the sink's own error.
    """
    config = with_secret(config)
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
        self._tasks: list[asyncio.Task[ConsumerStats]] = []
        self._handler: Handler = _Shared(sink)
        if stop.count:
            self._handler = _Shared(Limit(sink, stop.count, self._remaining))
            self._config = config.with_values(max_in_flight=min(config.max_in_flight, stop.count))

    def add(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)
        self._consumers.append(Consumer(subscription, self._handler, self._config))

    async def until_done(self) -> int:
        loop = asyncio.get_running_loop()
        signals = Signals(self._interrupted, self._leave)
        self._tasks = [loop.create_task(consumer.run()) for consumer in self._consumers]
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

    def _exit_code(self, signals: Signals) -> int:
        totals = [consumer.stats() for consumer in self._consumers]
        log.info(
            "%d messages finished, %d requeued",
            sum(s.finished for s in totals),
            sum(s.requeued for s in totals),
        )
        if signals.interrupted:
            return Exit.INTERRUPTED
        if signals.urgent:
            return Exit.FAILURE
        return Exit.PARTIAL if any(s.given_up for s in totals) else Exit.DONE

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
            last = max(started, *(c.stats().last_message for c in self._consumers))
            reason = rule.decide(
                finished=0, started=started, last_message=last, empties=empties, now=now
            )
            if reason:
                log.info("stopping: %s", reason)
                self._stop()
                return
            due = rule.next_check(started=started, last_message=last)
            if rule.until_empty:
                due = min(now + _EMPTY_INTERVAL, due or float("inf"))
            if due is None:
                return
            await asyncio.sleep(due - now)
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
        if count == 0:
            self._stop()

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
