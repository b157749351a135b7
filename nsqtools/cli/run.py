"""Runs the engine for a command: its topics, signals, and the outcome as an exit code."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nsqtools.cli.consumers import Consumers
from nsqtools.cli.exits import Exit
from nsqtools.cli.metrics import of_consumers, served
from nsqtools.cli.peers import addresses, with_secret
from nsqtools.cli.signals import Signals
from nsqtools.cli.watch import Watch
from nsqtools.config import ArchiveSourceOptions
from nsqtools.engine.membership import Subscription
from nsqtools.errors import ConfigError, NSQError
from nsqtools.metrics import Measured
from nsqtools.names import listening_address
from nsqtools.net.connection import Connection
from nsqtools.net.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from typing import Any

    from nsqtools.config import ConsumerConfig, MetricsOptions, SourceOptions, StopOptions
    from nsqtools.engine.handler import Batch
    from nsqtools.engine.lookup import Silence
    from nsqtools.engine.topics import TopicFinder
    from nsqtools.metrics import Metric
    from nsqtools.net.connection import Dial

log = logging.getLogger(__name__)

# Objects that may be made, net, before the garbage collector looks for cycles.
_MANY_OBJECTS = 100_000
# How often a topic that failed at its start is tried again.
_RETRY = 60.0


class Sink(Protocol):
    """Where all topics of a command go. Several consumers call ``handle`` at the same time.

    One that is Measured has its metrics served beside those of the consumers.
    """

    @property
    def lost(self) -> int:
        """How many messages were given up without being safe anywhere."""

    @property
    def failed(self) -> asyncio.Future[None]:
        """Ends with the error after which nothing can be written; from ``open`` on."""

    async def open(self) -> None:
        """Called once the event loop runs; cancelled, it need not end before its work can."""

    async def join(self, topic: str) -> None:
        """Messages of this topic are to come.

        Raises LockedError if others have what it needs, OutputError or ConfigError if it cannot
        be written; it is called again then.
        """

    async def handle(self, batch: Batch) -> None:
        """As Handler."""

    async def gave_up(self, batch: Batch) -> None:
        """As Handler."""

    async def drain(self, topic: str) -> None:
        """This topic's consumer gets no more: settle what is held of it, and forget it.

        Connections are still open. Messages of the topic may come again later. Raises OutputError
        if something could not be settled.
        """

    def flush(self) -> None:
        """Settle soon what is held only to be gathered with more."""

    async def close(self, *, at_once: bool = False) -> None:
        """Called once, at the very end, even if ``open`` failed; connections are closed.

        ``at_once``: drop what is held, nobody waits for it any more.
        """


async def consume(
    source: SourceOptions,
    channel: str,
    config: ConsumerConfig,
    stop: StopOptions,
    sink: Sink,
    *,
    metrics: MetricsOptions | None = None,
    hangup: Callable[[], object] | None = None,
    files: int = 0,
    dial: Dial | None = None,
) -> int:
    """Consume topics into one sink until a stop condition or a signal; an exit code.

    The topics are those named, or those that match the pattern of ArchiveSourceOptions, as they
    come and go. ``metrics`` says where metrics are served, from before the sink is opened until it
    is closed. ``hangup`` is called for SIGHUP, which else stops. ``files`` is how many descriptors
    the sink takes for each topic. ``dial`` is for another way to connect than the usual one.

    Raises ConfigError if the topics named need more descriptors than the process may have,
    UnreachableError if nothing could be reached at the start, and the sink's own errors:
    of ``open``, ``failed`` and ``close``, of ``join`` if that is so of all topics named, and of
    ``drain`` at the end.
    """
    _spare_the_collector()
    config = with_secret(config)
    if not config.max_in_flight:
        raise ConfigError("--max-in-flight: 0 would never receive a message")
    if stop.count:
        config = config.with_values(max_in_flight=min(config.max_in_flight, stop.count))
    run = _Run(source, channel, config, stop, sink, hangup, files, dial or Connection.open)
    async with served(listening_address(metrics.metrics_address) if metrics else None, run.metrics):
        return await run.until_closed()


def _spare_the_collector() -> None:
    """Messages are in no cycles: to walk over those in flight took a seventh of the time."""
    import gc

    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS)


def _allow_many_files() -> int:
    """Raise the soft limit of open files to the hard one, as Go's runtime does; returns it."""
    import resource

    with suppress(OSError, ValueError):  # macOS has an unlimited one that it does not take
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


class _Run:
    """The consumers of one command, and who looks after them; made inside the running loop."""

    def __init__(
        self,
        source: SourceOptions,
        channel: str,
        config: ConsumerConfig,
        stop: StopOptions,
        sink: Sink,
        hangup: Callable[[], object] | None,
        files: int,
        dial: Dial,
    ) -> None:
        self._hangup = hangup
        self._signals = Signals(  # first, as what follows loads modules
            self._interrupted,
            lambda: self._consumers.leave(),
            "nsqd delivers what was in flight again",
            hangup=self._hung_up if hangup else None,
        )
        self._channel = channel
        self._lookupds = source.lookupd_http_address
        self._nsqds = () if self._lookupds else addresses(source.nsqd_tcp_address)
        silence: Silence | None = None
        if self._lookupds:
            from nsqtools.engine.lookup import Silence  # loads httpx

            silence = Silence()
        self._finder: TopicFinder | None = None
        self._refresh = _RETRY
        names: Sequence[str] = source.topic
        if isinstance(source, ArchiveSourceOptions):
            self._refresh = source.topic_refresh
            names, self._finder = _by_pattern(source, config, silence)
        self._named = [self._subscription(name) for name in dict.fromkeys(names)]
        self._sink = sink
        self._is_open = False
        self._notifier = Notifier()
        self._errors: list[BaseException] = []
        self._consumers = Consumers(
            sink,
            config,
            count=stop.count,
            retry=self._refresh,
            all_fail=self._finder is None,
            limit=_allow_many_files(),
            files=files,
            servers=len(self._lookupds) or len(self._nsqds),
            on_reached=self._notifier.ready,
            silence=silence,
            dial=dial,
        )
        self._consumers.check([len(self._nsqds)] * len(self._named))
        self._watch = Watch(
            stop,
            config,
            self._consumers,
            flush=sink.flush,
            complete=lambda: self._finder is None or self._finder.answered,
            silence=silence,
        )

    async def until_closed(self) -> int:
        """An exit code; raises what ended it too soon."""
        signals = self._signals
        reporting = self._spawn(self._report())
        try:
            code = await self._work() if await self._open() else Exit.DONE
        except BaseException:
            try:
                await self._sink.close(at_once=signals.urgent)
            except NSQError as error:  # the first one is the cause
                log.error("%s", error)
            raise
        else:
            await self._sink.close(at_once=signals.urgent)
        finally:
            reporting.cancel()
        return signals.exit_code(code) if signals.seen else code

    def metrics(self) -> Iterator[Metric]:
        """What the consumers and the sink count, for Prometheus."""
        yield from of_consumers(self._consumers.by_topic(), self._channel)
        if isinstance(self._sink, Measured):
            yield from self._sink.metrics()

    async def _open(self) -> bool:
        """Open the sink, which may take long; False if a signal came before that was done."""
        loop = asyncio.get_running_loop()
        opening = loop.create_task(self._sink.open())
        stopped = loop.create_task(self._consumers.stopping.wait())
        try:
            await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not opening.done():
                self._notifier.stopping()
                opening.cancel()
                await asyncio.wait((opening,))
        if not opening.cancelled():
            opening.result()
        self._is_open = not self._consumers.stopping.is_set()
        return self._is_open

    async def _work(self) -> int:
        """Consume until a stop condition or a signal; the exit code if there was no signal."""
        consumers, failed = self._consumers, self._sink.failed
        failed.add_done_callback(lambda _: consumers.stop())
        for subscription in self._named:
            consumers.add(subscription)
        working = [self._spawn(self._watch.run())]
        if self._finder:
            working.append(self._spawn(self._discover(self._finder)))
        try:
            await consumers.stopping.wait()
            self._notifier.stopping()
            for task in working:
                task.cancel()
            await consumers.done()
        finally:
            consumers.leave()
            for task in working:
                task.cancel()
        if failed.done():
            failed.result()
        if errors := (*self._errors, *consumers.errors):
            for error in errors[1:]:
                log.error("%s", error)
            raise errors[0]
        return await self._exit_code(cut_short=self._watch.cut_short and not self._signals.seen)

    def _subscription(self, topic: str) -> Subscription:
        return Subscription(
            topic=topic, channel=self._channel, nsqds=self._nsqds, lookupds=self._lookupds
        )

    async def _discover(self, finder: TopicFinder) -> None:
        """Let topics come and go, as nsqlookupds know them."""
        told = False
        while True:
            change = await finder.look()
            for topic in change.gone:
                log.info("topic %s: gone", topic)
                self._consumers.drop(topic)
            for topic in change.appeared:
                log.info("topic %s: found", topic)
                self._consumers.add(self._subscription(topic))
            if not self._consumers.topics:
                if not told:
                    log.warning("--topic-pattern: no topic matches it")
                told = True
                self._notifier.ready()
            await asyncio.sleep(self._refresh)

    async def _report(self) -> None:
        """Tell systemd, if that started us, how we are."""
        interval = self._notifier.interval
        while interval:
            self._notifier.beat(self._status())
            await asyncio.sleep(interval)

    def _status(self) -> str:
        if not self._is_open:
            return "waiting for a lock, or for the recovery of what an earlier run left"
        totals = self._consumers.totals()
        return (
            f"{self._consumers.topics} topics, {totals.connections} connections, "
            f"{totals.finished} messages finished, {totals.in_flight} in flight"
        )

    async def _exit_code(self, *, cut_short: bool) -> int:
        totals = self._consumers.totals()
        log.info("%d messages finished, %d requeued", totals.finished, totals.requeued)
        if totals.too_late:
            log.warning(
                "%d messages had timed out before they were finished: they come again",
                totals.too_late,
            )
        behind = False
        if cut_short and (left := await self._watch.left()) != 0:
            behind = True
            log.error(
                "--max-duration was over before --until-empty: %s",
                "how much is left is not known" if left is None else f"{left} messages are left",
            )
        failed = bool(totals.abandoned)
        for trouble, topics in (
            ("never consumed", self._consumers.unreached()),
            ("not all was written", sorted(self._consumers.undrained)),
        ):
            if topics:
                failed = True
                log.error("%s: %s", trouble, " ".join(topics))
        if failed:
            return Exit.FAILURE
        return Exit.PARTIAL if self._sink.lost or behind else Exit.DONE

    def _hung_up(self) -> None:
        if self._hangup and self._is_open:
            self._hangup()

    def _interrupted(self) -> None:
        in_flight = self._consumers.totals().in_flight
        if in_flight and sys.stderr.isatty():
            log.warning("draining %d messages, Ctrl-C again to leave now", in_flight)
        self._consumers.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)
            self._consumers.stop()


def _by_pattern(
    source: ArchiveSourceOptions, config: ConsumerConfig, silence: Silence | None
) -> tuple[Sequence[str], TopicFinder | None]:
    """The named topics that match the pattern, or else who finds topics (``topic_discoverer.go``).

    Raises ConfigError if none of the named matches.
    """
    import re

    from nsqtools.policy.topics import grace, matching

    if not source.topic_pattern:
        return source.topic, None
    pattern = re.compile(source.topic_pattern)
    if source.topic:
        if names := matching(pattern, source.topic):
            return names, None
        raise ConfigError(f"--topic-pattern {source.topic_pattern!r}: no --topic matches it")
    from nsqtools.engine.topics import TopicFinder

    finder = TopicFinder(
        source.lookupd_http_address,
        pattern,
        config,
        grace=grace(source.topic_refresh),
        connect_timeout=source.http_client_connect_timeout,
        request_timeout=source.http_client_request_timeout,
        silence=silence,
    )
    return (), finder
