"""The sink for archives of topics: batches are collected, synced together, and then finished.

Files are written in threads, so that reading and heartbeats never wait for the disk. Each topic has
one task and one archive. Batches that arrive during a sync are collected for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from resource import RLIMIT_NOFILE, getrlimit
from typing import TYPE_CHECKING

from nsqtools.clock import wall_ns
from nsqtools.config.topicpattern import compiled
from nsqtools.config.units import counted
from nsqtools.errors import OutputError
from nsqtools.metrics import Metric, Sample
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.store import Archives
from nsqtools.sinks.files.topicarchive import Arrival, OwedError
from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.sinks.threads import Threads, as_output_error, without_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.files import ArchiveOptions, ArchiveSourceOptions
    from nsqtools.engine.handler import Batch
    from nsqtools.sinks.files.topicarchive import ArchiveEnding
    from nsqtools.sinks.files.workfile import Part

log = logging.getLogger(__name__)

_THREADS = 4
_NSQDS = 2
"""How many nsqds a topic is expected to have, if nsqlookupd knows them."""
_FILES_OF_A_TOPIC = 2
"""Its lock, and the file under way."""
_OTHER_FILES = 32
"""Open for short times in threads, for nsqlookupds, uploads, commands and metrics."""
_REST = 3600.0
"""Maximum seconds an idle topic waits before reading the clock again, in case it was set."""
_SHARE = 4
"""A sync starts when 1/4 of max_in_flight waits, and includes all waiting messages."""
_SYNC_SIZE = 4 << 20
"""Bytes of bodies that start a sync, whatever the number of messages; larger bodies use more
memory.
"""
_LONGEST_REST = 32
"""Maximum seconds between attempts to complete after failures; new messages cause an attempt at
once.
"""
_PAUSE = 1.0
"""Seconds after a failed write in which no batch is accepted, so that even without backoff messages
do not go to and fro between nsqd and a full disk. Backoff waits longer.
"""
_QUIET = 60.0
"""Minimum seconds from the line that writing succeeds again to the next one that it fails. On a
disk that is almost full, both happen several times a second.
"""


def file_sink(
    source: ArchiveSourceOptions, options: ArchiveOptions, config: ConsumerConfig
) -> FileSink:
    """Return the sink for these topics; raises ConfigError before it changes anything."""
    rules = Rules.of(options, config.max_msg_size)
    if source.topic_pattern or len(set(source.topic)) > 1:
        rules.check_several_topics()
    topics = compiled(source.topic_pattern) if source.topic_pattern else source.topic
    nsqds = len(set(source.nsqd_tcp_address)) or _NSQDS
    return FileSink(Archives(rules, topics), max_in_flight=config.max_in_flight, nsqds=nsqds)


class FileSink(HoldingHandler):
    """A handler for archives of topics, each in files of its own.

    A sync starts when a quarter of ``max_in_flight`` waits, so that more messages
    arrive meanwhile, or when a batch is ``starved``. The maximum wait is ``--sync-interval``, or
    half of the batches' ``msg_timeout`` if that is shorter. Messages that cannot be written are
    requeued with backoff; with ``--fail-fast`` the error ends the run instead.

    A topic whose files and connections to so many ``nsqds`` would exceed the limit of open files is
    refused, so that the others can go on.
    """

    def __init__(
        self,
        archives: Archives,
        *,
        max_in_flight: int,
        nsqds: int = _NSQDS,
        threads: Threads | None = None,
    ) -> None:
        self.archives = archives
        self._nsqds = nsqds
        self.max_in_flight = max_in_flight
        self._options = archives.rules.options
        self._topics: dict[str, _TopicQueue] = {}
        self.threads = threads or Threads(_THREADS, "archive")
        self.write_failures: Counter[str] = Counter()

    async def open(self) -> None:
        """Take the locks shared by all topics, and recover the files left by a crash."""
        await super().open()
        self.archives.lock("")
        await self.threads.run(self.archives.open)

    async def join(self, topic: str) -> None:
        """Prepare for a topic; raises LockedError, OutputError or ConfigError."""
        if work := self._topics.get(topic):
            if not work.is_ending:
                return
            await self.drain(topic)  # an earlier drain was cancelled
        self._check_open_files()
        try:
            self.archives.lock(topic)
            self._topics[topic] = _TopicQueue(self, topic)
        except Exception as error:
            self.archives.leave(topic)
            if isinstance(error, OSError):
                raise as_output_error(error) from error
            raise
        self.write_failures[topic] += 0

    def _check_open_files(self) -> None:
        limit, _ = getrlimit(RLIMIT_NOFILE)
        most = (limit - _OTHER_FILES) // (_FILES_OF_A_TOPIC + self._nsqds)
        if limit >= 0 and len(self._topics) >= max(most, 1):
            raise OutputError(
                f"at most {limit} files may be open, enough for {counted(max(most, 1), 'topic')}: "
                "raise the limit with ulimit -n"
            )

    async def handle(self, batch: Batch) -> None:
        """Accept a batch; it is settled when its records are safe."""
        work = self._topics[batch.topic]
        await work.pause()
        work.add(batch)

    async def drain(self, topic: str) -> None:
        """Sync and complete the files of a topic; raises OutputError on failure.

        If it is cancelled, the work continues, and ``join`` or ``close`` wait for it.
        """
        if work := self._topics.get(topic):
            await work.end()
            if self._topics.pop(topic, None):
                self.archives.leave(topic)
            work.result()

    def flush(self) -> None:
        """Sync waiting messages soon."""
        for work in self._topics.values():
            work.flush()

    def reopen(self) -> None:
        """Complete all open files; the next message begins a new one."""
        for work in self._topics.values():
            work.reopen()

    async def close(self, *, at_once: bool = False) -> None:
        """Complete all files and release locks and threads; raises OutputError if files remain.

        With ``at_once`` nothing more is synced or completed, and work files remain for the next
        start.
        """
        try:
            if at_once:
                await asyncio.gather(*(work.leave() for work in self._topics.values()))
                return
            drained = await asyncio.gather(
                *map(self.drain, list(self._topics)), return_exceptions=True
            )
            try:
                await self.threads.run(self.archives.close)
            finally:
                for outcome in drained:
                    if outcome is not None:
                        raise outcome
        finally:
            self.archives.unlock()
            self.threads.close()

    def metrics(self) -> Iterator[Metric]:
        """Yield counts of completed or recovered files, waiting files, and failed writes."""
        counts = self.archives.aftercare.counts()
        for topic, failures in self.write_failures.items():
            counts["write_failures", topic] = failures
        topics = sorted({topic for _, topic in counts})
        for name, text in (
            ("files", "Files that were completed."),
            ("records", "Records in completed files."),
            ("bytes", "Size of completed files."),
            ("write_failures", "Failed attempts to write."),
        ):
            samples = [Sample({"topic": topic}, counts[name, topic]) for topic in topics]
            yield Metric(f"nsqtools_archive_{name}_total", "counter", text, samples)
        waiting = self.archives.waiting()
        text = "Completed files that wait for --upload or --on-rotate."
        samples = [Sample({"topic": topic}, waiting[topic]) for topic in topics]
        yield Metric("nsqtools_archive_waiting_files", "gauge", text, samples)

    # Methods for _TopicQueue.

    def interval_for(self, batch: Batch) -> float:
        """Return the maximum seconds for the batch to wait for a sync."""
        return min(self._options.sync_interval, batch.msg_timeout / 2)

    def cannot_write(self, error: Exception) -> bool:
        """Whether to continue after a failed write of messages."""
        if isinstance(error, OSError | OutputError) and not self._options.fail_fast:
            return True
        self.fail(as_output_error(error))
        return False


class _TopicQueue:
    """The waiting batches of a topic, and the task to write them."""

    def __init__(self, sink: FileSink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._archive = sink.archives.topic(name, self._synced, now=self._loop.time())
        self._held = Held()
        self._arrivals: list[Arrival] = []
        self._count = self._size = 0
        self._due = math.inf
        self._urgent = False
        self._ending: ArchiveEnding = ""
        self._wake = asyncio.Event()
        self._error: Exception | None = None
        self._failures = 0
        self._rest_until = self._quiet_until = self._pause_until = 0.0
        self._complained = False
        self._task = self._loop.create_task(self._work_or_fail())

    async def pause(self) -> None:
        """Wait until a failed write is ``_PAUSE`` ago."""
        if (left := self._pause_until - self._loop.time()) > 0:
            await asyncio.wait([self._task], timeout=left)

    def add(self, batch: Batch) -> None:
        """Queue a batch for writing."""
        self._held.add(batch)
        if self._task.done():
            self._held.give_back(batch)
            return
        due = self._loop.time() + self._sink.interval_for(batch)
        if due < self._due:
            self._due = due
            self._wake.set()
        self._arrivals.append(Arrival(wall_ns(), batch))
        self._count += len(batch)
        self._size += batch.size
        full = _SHARE * self._count >= self._sink.max_in_flight or self._size >= _SYNC_SIZE
        if batch.starved or full:
            self.flush()

    def flush(self) -> None:
        """Write waiting batches soon."""
        if self._arrivals:
            self._urgent = True
            self._wake.set()

    def reopen(self) -> None:
        """Complete the open files."""
        if not self._ending:
            self._ending = "reopen"
        self._wake.set()

    @property
    def is_ending(self) -> bool:
        """Whether the queue accepts no more batches."""
        return self._ending == "close"

    async def end(self) -> None:
        """Write all waiting batches and complete the files."""
        self._ending = "close"
        self._wake.set()
        await asyncio.shield(self._task)

    def result(self) -> None:
        """Raise the error of a failed write."""
        if self._error:
            raise as_output_error(self._error)

    async def leave(self) -> None:
        """Finish the current write and write nothing more."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work_or_fail(self) -> None:
        try:
            try:
                await self._work()
            finally:
                self._archive.release()
        except Exception as error:
            self._error = error
            self._sink.fail(as_output_error(error))
            self._give_back_waiting()

    def _give_back_waiting(self) -> None:
        for _, batch in self._arrivals:
            self._held.give_back(batch)

    async def _work(self) -> None:
        while True:
            await self._until_due()
            ending = self._ending
            if ending == "reopen":
                self._ending = ""
            if not await self._step(ending) or ending == "close":
                break
        self._give_back_waiting()  # arrived during the failed step

    async def _until_due(self) -> None:
        while not (self._urgent or self._ending):
            now = self._loop.time()
            due = self._archive.next_due(now=now, wall=wall_ns())
            due = min(self._due, max(min(due, now + _REST), self._rest_until))
            if due <= now:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _step(self, ending: ArchiveEnding) -> bool:
        """Let the archive do one step; return whether to continue."""
        arrivals, self._arrivals = self._arrivals, []
        self._count, self._size, self._due, self._urgent = 0, 0, math.inf, False
        try:
            wrote = await self._sink.threads.run(self._call, arrivals, ending)
        except Exception as error:
            return self._failed(error, arrivals, ending)
        if wrote:  # a step that had nothing to write proves nothing
            self._succeeded()
        return True

    def _call(self, arrivals: list[Arrival], ending: ArchiveEnding) -> bool:
        if not arrivals:
            self._sink.archives.aftercare.prune()
        now, wall = self._loop.time(), wall_ns()
        return self._archive.step(arrivals, now=now, wall=wall, ending=ending)

    def _synced(self, safe: list[Part]) -> None:
        """Finish synced messages while the thread continues.

        The loop runs this before the end of the thread is reported.
        """
        self._loop.call_soon_threadsafe(self._finish, safe)

    def _finish(self, safe: list[Part]) -> None:
        for batch, messages in safe:
            self._held.finish(batch, messages)

    def _succeeded(self) -> None:
        """End the state of failure."""
        self._failures, self._rest_until = 0, 0.0
        if self._complained:
            log.warning("topic %s: writing succeeds again", self._name)
            self._complained, self._quiet_until = False, self._loop.time() + _QUIET

    def _failed(self, error: Exception, arrivals: list[Arrival], ending: ArchiveEnding) -> bool:
        """Requeue unsafe messages; return whether to continue."""
        self._sink.write_failures[self._name] += 1
        goes_on = self._sink.cannot_write(error)
        is_news = not self._complained and self._loop.time() >= self._quiet_until
        if goes_on and is_news and ending != "close":
            self._complained = True
            log.error(
                "topic %s: cannot write, messages are requeued until writing succeeds: %s",
                self._name,
                as_output_error(error),
            )
        if not goes_on or (ending == "close" and not isinstance(error, OwedError)):
            self._error = without_frames(error)  # a later run writes what is owed
        self._rest_until = self._loop.time() + min(2**self._failures, _LONGEST_REST)
        self._failures += 1
        if arrivals:
            self._pause_until = self._loop.time() + _PAUSE
        for _, batch in arrivals:
            self._held.requeue(batch, delay=0, backoff=ending != "close")
        return goes_on
