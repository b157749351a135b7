"""A command that runs as a service: signals, systemd, metrics, limits, and its exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import resource
import signal
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.prometheus import of_consumers, served
from nsqtools.cli.remotes import addresses, with_secret
from nsqtools.config import ArchiveSourceOptions
from nsqtools.engine.concurrency import end
from nsqtools.errors import ConfigError, NSQError
from nsqtools.metrics import Measured
from nsqtools.names import listening_address
from nsqtools.net.systemd import Notifier
from nsqtools.policy.topics import matching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from nsqtools.cli.prometheus import Collect
    from nsqtools.config import ConsumerConfig, MetricsOptions, SourceOptions, StopOptions
    from nsqtools.engine.handler import Handler
    from nsqtools.engine.runner import Runner, RunOutcome
    from nsqtools.metrics import Metric
    from nsqtools.names import Address

log = logging.getLogger(__name__)

# How long a second signal lets the event loop end by itself.
_LEAVE_TIMEOUT = 0.5

# Objects that may be made, net, before the garbage collector looks for cycles.
_MANY_OBJECTS = 100_000

# Bytes of freed memory that the process may keep for the next messages.
_KEPT_MEMORY = 32 << 20

# timeout(1) sends its signal to the command and then to the group, in which it is, too.
_SAME = 0.1


class Signals:
    """SIGINT, SIGTERM and SIGHUP stop; a second one leaves at once, unless it is the first again.

    With ``hangup`` SIGHUP calls that, each time, and counts as none of them. A signal that was
    ignored when the program started, as in a shell's background job, stays so. ``consequence`` is
    what is said when a second one comes.
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
        self._loop = _listen(self._caught)

    @property
    def seen(self) -> bool:
        """Whether any came."""
        return bool(self._seen)

    @property
    def urgent(self) -> bool:
        """Whether a second one came."""
        return len(self._seen) > 1

    def exit_code(self, drained: int) -> int:
        """The exit code after a signal; ``drained`` is that of SIGTERM if everything was done."""
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
        log.warning("leaving at once: %s", self._consequence)
        self._leave()
        # A thread that hangs in a look-up of a name would be waited for.
        self._loop.call_later(_LEAVE_TIMEOUT, os._exit, self.exit_code(Exit.FAILURE))


def _listen(caught: Callable[[int], object]) -> asyncio.AbstractEventLoop:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, caught, number)
    return loop


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run work until it is done or a signal comes; later signals are ignored.

    Raises Ended after SIGINT.
    """
    came: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def caught(number: int) -> None:
        if not came.done():
            came.set_result(signal.Signals(number))

    loop = _listen(caught)
    working = loop.create_task(work)
    await asyncio.wait((working, came), return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
        return
    await end((working,))
    if not working.cancelled() and (error := working.exception()):
        if not isinstance(error, OSError | NSQError):
            raise error
        # As of a terminal that was closed.
        log.debug("at the end: %s", error)
    code = Exit.INTERRUPTED if came.result() is signal.SIGINT else Exit.DONE
    # A thread that hangs in a look-up of a name would be waited for.
    loop.call_later(_LEAVE_TIMEOUT, os._exit, code)
    if code:
        raise Ended(code)


@asynccontextmanager
async def supervised(
    notifier: Notifier,
    status: Callable[[], str],
    address: Address | None,
    collect: Collect,
    option: str = "--metrics-address",
) -> AsyncIterator[None]:
    """Tell systemd how we are, if that started us, and serve metrics if there is an address.

    Raises ConfigError, naming the ``option``, if nobody can listen at the address.
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


async def consume(
    source: SourceOptions,
    channel: str,
    config: ConsumerConfig,
    stop: StopOptions,
    handler: Handler,
    *,
    metrics: MetricsOptions | None = None,
    hangup: Callable[[], object] | None = None,
) -> None:
    """Consume topics into one handler until a stop condition or a signal.

    The topics are those named, or those that match the pattern of ArchiveSourceOptions, as they
    come and go. ``metrics`` says where metrics are served, from before the handler is opened until
    it is closed. ``hangup`` is called for SIGHUP, which else stops. Raises as Runner does, and
    Ended unless all went well.
    """

    def interrupted() -> None:
        in_flight = runner.stats().in_flight
        if in_flight and sys.stderr.isatty():
            log.warning("draining %d messages, Ctrl-C again to leave now", in_flight)
        runner.stop()

    def hung_up() -> None:
        if hangup and runner.is_open:
            hangup()

    signals = Signals(  # first, as a Runner loads modules
        interrupted,
        lambda: runner.leave(),
        "nsqd delivers what was in flight again",
        hangup=hung_up if hangup else None,
    )
    _spare_the_collector()
    _keep_freed_memory()
    notifier = Notifier()
    runner = _make_runner(source, channel, config, stop, handler, notifier)

    def collect() -> Iterator[Metric]:
        yield from of_consumers(runner.by_topic(), channel)
        if isinstance(handler, Measured):
            yield from handler.metrics()

    address = listening_address(metrics.metrics_address) if metrics else None
    async with supervised(notifier, lambda: _status(runner), address, collect):
        outcome = await runner.run()
    code: int = _exit_code(outcome)
    if signals.seen:
        code = signals.exit_code(code)
    if code:
        raise Ended(code)


def _make_runner(
    source: SourceOptions,
    channel: str,
    config: ConsumerConfig,
    stop: StopOptions,
    handler: Handler,
    notifier: Notifier,
) -> Runner:
    """Raises ConfigError, also if no topic that was named matches the pattern."""
    from nsqtools.engine.runner import Runner  # not for commands that only need signals

    topics: Any = source.topic
    options: dict[str, Any] = {}
    if isinstance(source, ArchiveSourceOptions):
        timeouts = source.http_client_connect_timeout, source.http_client_request_timeout
        options = {"refresh": source.topic_refresh, "timeouts": timeouts}
        if source.topic_pattern:
            topics = re.compile(source.topic_pattern)
            if source.topic and not (topics := matching(topics, source.topic)):
                raise ConfigError(
                    f"--topic-pattern {source.topic_pattern!r}: no --topic matches it"
                )
    lookupds = source.lookupd_http_address
    return Runner(
        topics,
        channel,
        handler,
        with_secret(config),
        nsqds=() if lookupds else addresses(source.nsqd_tcp_address),
        lookupds=lookupds,
        stop=stop,
        max_files=_allow_many_files(),
        on_reached=notifier.ready,
        on_stopping=notifier.stopping,
        **options,
    )


def _status(runner: Runner) -> str:
    """What systemd shows of a run."""
    if not runner.is_open:
        return "recovering what an earlier run left"
    totals = runner.stats()
    return (
        f"{runner.topics} topics, {totals.connections} connections, "
        f"{totals.finished} messages finished, {totals.in_flight} in flight"
    )


def _exit_code(outcome: RunOutcome) -> Exit:
    """The exit code of a run that no signal ended, after what is to be said of it was logged."""
    totals = outcome.totals
    log.info("%d messages finished, %d requeued", totals.finished, totals.requeued)
    if totals.too_late:
        log.warning(
            "%d messages had timed out before they were finished: they come again", totals.too_late
        )
    if outcome.left != 0:
        log.error(
            "--max-duration was over before --until-empty: %s",
            "how much is left is not known"
            if outcome.left is None
            else f"{outcome.left} messages are left",
        )
    for trouble, topics in (
        ("never consumed", outcome.unreached),
        ("not all was written", outcome.undrained),
    ):
        if topics:
            log.error("%s: %s", trouble, " ".join(topics))
    if totals.abandoned or outcome.unreached or outcome.undrained:
        return Exit.FAILURE
    if outcome.lost or outcome.left_behind or outcome.left != 0:
        return Exit.PARTIAL
    return Exit.DONE


def _spare_the_collector() -> None:
    """Messages are in no cycles: to walk over those in flight took a seventh of the time."""
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS)


def _keep_freed_memory() -> None:
    """Let the bodies of the next messages have the memory of the last ones, without page faults.

    As much as twice the largest block that was ever freed is kept by glibc (mallopt(3),
    M_MMAP_THRESHOLD and M_TRIM_THRESHOLD), and this block is never touched.
    """
    bytes(_KEPT_MEMORY // 2)


def _allow_many_files() -> int:
    """Raise the soft limit of open files to the hard one, as Go's runtime does; returns it."""
    with suppress(OSError, ValueError):  # macOS has an unlimited one that it does not take
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
