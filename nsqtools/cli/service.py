"""A command that runs as a service: signals, systemd, metrics, limits, and its exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.logs import is_watched, report_end, show_status
from nsqtools.cli.prometheus import of_consumers, served
from nsqtools.cli.remotes import fixed_nsqds, with_secret
from nsqtools.config.units import counted, format_duration
from nsqtools.errors import NSQError
from nsqtools.metrics import Measured
from nsqtools.names import listening_address
from nsqtools.net.systemd import Notifier
from nsqtools.tasks import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

    from nsqtools.cli.prometheus import Collect
    from nsqtools.cli.workers import Worker
    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.consuming import MetricsOptions, SourceOptions, StopOptions
    from nsqtools.engine.handler import Handler
    from nsqtools.engine.runner import Runner, RunOutcome
    from nsqtools.engine.totals import ConsumerStats
    from nsqtools.metrics import Metric
    from nsqtools.names import Address, TopicPattern

log = logging.getLogger(__name__)

# Seconds for the event loop to end by itself after a second signal.
_LEAVE_TIMEOUT = 0.5

# Net number of new objects before the garbage collector looks for cycles.
_MANY_OBJECTS = 100_000

# Bytes of freed memory kept for later messages.
_KEPT_MEMORY = 32 << 20

_PROGRESS_INTERVAL = 0.25
_SPINNER_WIDTH = 2
_SHOW_CURSOR = b"\x1b[?25h"

# Seconds within which equal signals count once: timeout(1) signals the command, then its group.
_SAME = 0.1


class Signals:
    """SIGINT, SIGTERM and SIGHUP stop the run; a second signal ends it at once.

    The same signal within 0.1 s counts once. With ``hangup``, each SIGHUP calls it instead of
    stopping the run. Signals ignored at the start, as in a shell's background job, stay ignored. A
    second signal logs ``consequence``.
    """

    def __init__(
        self,
        stop: Callable[[], object],
        leave: Callable[[], object],
        consequence: str,
        *,
        hangup: Callable[[], object] | None = None,
    ) -> None:
        self._stop = stop
        self._leave = leave
        self._hangup = hangup
        self._consequence = consequence
        self._seen: list[signal.Signals] = []
        self._came = 0.0
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._caught, number)

    @property
    def seen(self) -> bool:
        """Whether a signal has arrived."""
        return bool(self._seen)

    @property
    def urgent(self) -> bool:
        """Whether a second signal has arrived."""
        return len(self._seen) > 1

    def exit_code(self, drained: int) -> int:
        """INTERRUPTED if SIGINT came first, FAILURE after a second signal, else ``drained``."""
        if not self._seen:
            return drained
        if self._seen[0] is signal.SIGINT:
            return Exit.INTERRUPTED
        return Exit.FAILURE if self.urgent else drained

    def _caught(self, number: int) -> None:
        if self._hangup and number == signal.SIGHUP:
            self._hangup()
            return
        now = self._loop.time()
        if number in self._seen and now - self._came < _SAME:
            return
        self._came = now
        self._seen.append(signal.Signals(number))
        if not self.urgent:
            self._stop()
            return
        log.warning("ending at once: %s", self._consequence)
        self._leave()
        # Otherwise a thread hanging in a DNS look-up would delay the exit.
        self._loop.call_later(_LEAVE_TIMEOUT, _exit_at_once, self.exit_code(Exit.FAILURE))


def _exit_at_once(code: int) -> None:
    """Exit without waiting for threads; show the cursor again, hidden by ``progress``."""
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)
    os._exit(code)


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run work until it is done, or until a signal cancels it. Raises Ended after SIGINT."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    signals = Signals(working.cancel, lambda: None, "the command does not end by itself")
    await asyncio.wait([working])
    if not signals.seen:
        working.result()
        return
    if not working.cancelled() and (error := working.exception()):
        if not isinstance(error, OSError | NSQError):
            raise error
        # For example, the terminal was closed.
        log.debug("at the end: %s", error)
    code = signals.exit_code(Exit.DONE)
    # Otherwise a thread hanging in a DNS look-up would delay the exit.
    loop.call_later(_LEAVE_TIMEOUT, os._exit, code)
    if code:
        raise Ended(code)


@asynccontextmanager
async def progress(line: Callable[[], str], *, enabled: bool = True) -> AsyncIterator[None]:
    """Keep showing a line on the terminal, below the log lines, and clear it at the end.

    It is not shown without a terminal, with -q, or with JSON log lines. It is written through a
    descriptor of its own, because standard error is redirected while Spark starts.
    """
    if not (enabled and is_watched()):
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    async def draw() -> None:
        while True:
            text = Text(line())
            text.truncate(console.width - _SPINNER_WIDTH, overflow="ellipsis")
            spinner.update(text=text)
            await asyncio.sleep(_PROGRESS_INTERVAL)

    with os.fdopen(os.dup(2), "w", encoding="utf-8") as terminal:
        spinner = Spinner("dots")
        console = Console(file=terminal, soft_wrap=True)  # does not break the log lines above
        with Live(spinner, console=console, redirect_stdout=False, transient=True):
            drawing = asyncio.get_running_loop().create_task(draw())
            try:
                yield
            finally:
                await end((drawing,))
                if not drawing.cancelled():
                    drawing.result()


@asynccontextmanager
async def supervised(
    notifier: Notifier,
    status: Callable[[], str],
    address: Address | None,
    collect: Collect,
    option: str = "--metrics-address",
) -> AsyncIterator[None]:
    """Report the status to systemd, and serve metrics if there is an address.

    Raises ConfigError, naming ``option``, if the address cannot be used.
    """

    async def beat() -> None:
        while interval := notifier.interval:
            notifier.beat(status())
            await asyncio.sleep(interval)

    beating = asyncio.get_running_loop().create_task(beat())
    try:
        async with served(address, collect, option):
            yield
    finally:
        await end((beating,))
        if not beating.cancelled():
            beating.result()


async def consume(
    source: SourceOptions,
    channel: str,
    config: ConsumerConfig,
    stop: StopOptions,
    handler: Handler,
    *,
    topics: Sequence[str] | TopicPattern | None = None,
    metrics: MetricsOptions | None = None,
    worker: Worker | None = None,
    hangup: Callable[[], object] | None = None,
    refresh: float = 60.0,
    timeouts: tuple[float, float] = (2.0, 5.0),
    patient: bool | None = None,
) -> None:
    """Consume topics into one handler until a stop condition or a signal.

    ``topics``, names or a pattern, replaces the topics of the source. ``refresh``,
    ``timeouts`` and ``patient`` are Runner's; by default a run without a stop condition is patient.
    ``metrics`` has the address for metrics, served from before the handler opens until it has
    closed; a ``worker`` sends them to its parent instead. SIGHUP calls ``hangup`` if it is given,
    and otherwise stops the run. Raises Runner's errors, and Ended for every exit code but 0.
    """

    # size: a run has many arguments
    def hung_up() -> None:
        if hangup and runner.is_open:
            hangup()

    signals = Signals(  # first, because a Runner loads modules
        lambda: _drain(runner),
        lambda: runner.leave(),
        "nsqd delivers the messages in flight again",
        hangup=hung_up if hangup else None,
    )
    tune_memory()
    if stop.until_empty and sys.stderr.isatty():
        show_status("waiting")
    from nsqtools.engine.runner import Runner  # other commands only need signals

    allow_many_files()
    notifier = worker or Notifier()
    runner = Runner(
        source.topic if topics is None else topics,
        channel,
        handler,
        with_secret(config),
        nsqds=fixed_nsqds(source),
        lookupds=source.lookupd_http_address,
        stop=stop,
        on_ready=notifier.ready,
        on_stopping=notifier.stopping,
        refresh=refresh,
        timeouts=timeouts,
        patient=stop.is_endless if patient is None else patient,
    )
    collect = partial(_metrics, runner, channel, handler)
    address = listening_address(metrics.metrics_address) if metrics else None
    status = partial(_status, runner, handler)
    beside = worker.attached(collect) if worker else supervised(notifier, status, address, collect)
    async with beside:
        outcome = await _run(runner, handler)
    if code := signals.exit_code(_exit_code(outcome)):
        raise Ended(code)


async def _run(runner: Runner, handler: Handler) -> RunOutcome:
    """Run, and report what was done, even before an error."""
    started = time.monotonic()
    try:
        outcome = await runner.run()
    except NSQError:
        if (totals := runner.stats()).received:
            _report(totals, handler, time.monotonic() - started)
        raise
    _report(outcome.totals, handler, time.monotonic() - started)
    return outcome


def _drain(runner: Runner) -> None:
    in_flight = runner.stats().in_flight
    if in_flight and sys.stderr.isatty():
        log.warning("draining %s, Ctrl-C again to end now", counted(in_flight, "message"))
    runner.stop()


def _metrics(runner: Runner, channel: str, handler: Handler) -> Iterator[Metric]:
    yield from of_consumers(runner.by_topic(), channel)
    if isinstance(handler, Measured):
        yield from handler.metrics()


def _status(runner: Runner, handler: Handler) -> str:
    """The status of a run, for systemd."""
    if not runner.is_open:
        return "recovering files of an earlier run"
    totals = runner.stats()
    return (
        f"{counted(runner.topic_count, 'topic')}, {counted(totals.connections, 'connection')}, "
        f"{_done(totals, handler)}, {totals.in_flight} in flight"
    )


def _report(totals: ConsumerStats, handler: Handler, seconds: float) -> None:
    received = counted(totals.received_bytes, "byte")
    took = format_duration(round(seconds, 2))
    report_end(f"{_done(totals, handler)}, {received} received, in {took}")


def _done(totals: ConsumerStats, handler: Handler) -> str:
    """The messages by what became of them; only those safe at their destination are finished."""
    others = ((handler.dead_lettered, "dead-lettered"), (handler.lost, "lost"))
    finished = max(0, totals.finished - handler.dead_lettered - handler.lost)
    facts = ((totals.requeued, "requeued"), *others)
    text = "".join(f", {count:,} {name}" for count, name in facts if count)
    return f"{counted(finished, 'message')} finished{text}"


def _exit_code(outcome: RunOutcome) -> Exit:
    """Log what a run did not do; returns its exit code if no signal ended it."""
    totals = outcome.totals
    if totals.too_late:
        log.warning(
            "redelivered by nsqd, because of the message timeout: %s",
            counted(totals.too_late, "message"),
        )
    is_confirmed = not (outcome.reason == "count" and totals.unconfirmed)
    if not is_confirmed:
        silent = counted(totals.unconfirmed, "nsqd")
        log.error("--count: %s did not answer, and may deliver finished messages again", silent)
    if outcome.unfinished:
        unfinished = counted(outcome.unfinished, "message")
        log.error("--count: not finished before the message timeout: %s", unfinished)
    elif outcome.unknown:
        servers = "; ".join(outcome.unknown)
        log.error("--until-empty: unknown whether the channel is empty: %s", servers)
    elif outcome.left != 0:
        left = counted(outcome.left, "message") if outcome.left else "an unknown number of messages"
        log.error("--until-empty: the run ended before the channel was empty: %s left", left)
    failing = [topic for topic, each in outcome.by_topic.items() if each.failing]
    for trouble, topics in (
        ("not consumed", outcome.unreached),
        ("not completely written", outcome.undrained),
        ("the last messages failed, and were requeued", failing),
    ):
        if topics:
            log.error("%s: %s", trouble, " ".join(topics))
    if totals.abandoned or outcome.unreached or outcome.undrained or failing:
        return Exit.FAILURE
    if outcome.lost or outcome.left_behind or outcome.left != 0:
        return Exit.PARTIAL
    if outcome.unfinished or not is_confirmed:
        return Exit.PARTIAL
    return Exit.DONE


def tune_memory() -> None:
    """Prepare the process for many messages.

    Messages form no reference cycles, so the collector scans them less often; scanning took a
    seventh of the time. Memory of finished bodies is reused for new bodies, without page faults:
    glibc keeps up to twice the size of the largest block ever freed (mallopt(3), M_MMAP_THRESHOLD
    and M_TRIM_THRESHOLD). The block freed here is never touched.
    """
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS)
    bytes(_KEPT_MEMORY // 2)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit, as Go's runtime does."""
    with suppress(OSError, ValueError):  # the hard limit may be above fs.nr_open
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
