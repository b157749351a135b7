"""The quotas of a task, of messages from nsqds into the staging of a partition; on executors.

A message is finished once its segment is durable and the partition is still ours (``Claim.add``),
never before. So no crash loses a message. A staged message without FIN comes again, at once or much
later, and is finished without being staged again (``Claim.staged``). Messages that cannot be staged
are given back to nsqd at once, for the next attempt. After a lost connection or a late FIN the
whole task ends, so that all doubtful messages are among its last rows.

Small quotas are received many at once, and share segments, because a segment costs a request to the
store, or a sync of the disk.

A quota is exact: RDY never exceeds the unfinished rest of the quota, and a lower RDY is sent
before the FINs that would make room. So no message beyond the quota is ever in flight here, missing
elsewhere until its timeout. Messages arriving after the decision to end are given back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import deque
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import (
    AuthError,
    ConfigError,
    NSQError,
    PeerError,
    ProtocolError,
    RefusedError,
)
from nsqtools.names import Address
from nsqtools.net.connection import Connection, Listener
from nsqtools.spark.rows import make_segment
from nsqtools.spark.source.sourceoptions import respelled, with_secret
from nsqtools.spark.staging.partitions import Ending
from nsqtools.spark.staging.redelivered import MAX_IN_FLIGHT

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence, Set

    from nsqtools.errors import ServerError
    from nsqtools.proto.messages import Message
    from nsqtools.spark.source.plans import Quota, TopicOnNsqd
    from nsqtools.spark.source.sourceoptions import SourceSettings
    from nsqtools.spark.staging.partitions import Claim
    from nsqtools.spark.staging.redelivered import MessageKey

log = logging.getLogger(__name__)

# After this long without another message, even a few messages are staged.
_QUIET = 0.05
_CLS_TIMEOUT = 2.0
_MOST_LINKS = 8
_MOST_PULLS = 32
_MOST_NOTES = 20
# Arrow's offsets of binary are 32 bits.
_MOST_BYTES = 1 << 30
# Other errors of a connection may be temporary.
_REFUSALS = (AuthError, ConfigError, ProtocolError, RefusedError)


def receive(quotas: Sequence[Quota], settings: SourceSettings, claim: Claim) -> Ending:
    """Stage the rest of each quota: its ``count`` minus the rows adopted by ``claim``.

    Returns how the attempt ended. A quota ends early, with fewer messages, after ``idle_timeout``
    or ``max_read``, and if nsqd is unreachable; all do if a connection is lost, or messages time
    out. Other errors fail the query: UnreachableError or ProtocolError if nsqd refuses the
    connection, ConfigError for files of TLS or secret, and errors of ``claim``.
    """
    with _no_collection():
        return asyncio.run(_Task(quotas, settings, claim).run())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, a tenth of the time here: messages are in no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _QuotaLink(Listener):
    """One connection with its share of the quota: ``left`` messages, ``finished`` of them.

    Listens to its connection. ``pending`` are the messages waiting for staging, ``size`` their
    bytes, and ``taken`` the messages being staged.
    """

    def __init__(self, wake: asyncio.Event) -> None:
        self.connection: Connection
        self.error: PeerError | None = None
        self.pending: list[Message] = []
        self.taken: list[Message] = []
        self.size = 0
        self.left = self.received = self.finished = self.too_late = 0
        self.settled = False
        self.last = 0.0
        self._received_bytes = 0
        self._in_flight = (1, 1)
        self._granted = 0
        self._stopped = False
        self._wake = wake
        self._now = asyncio.get_running_loop().time

    def begin(self, left: int, in_flight: tuple[int, int]) -> None:
        """Ask for the first messages; ``in_flight`` limits their number and their bytes."""
        self.left, self._in_flight = left, in_flight
        self.last = self._now()
        self._renew_ready()

    def stop(self) -> None:
        """Ask for no more messages."""
        self._stopped = True
        if not self.connection.is_lost:
            self._renew_ready()

    @property
    def is_done(self) -> bool:
        """Whether no message can follow the pending ones."""
        return self.received >= self.left or self.connection.is_lost

    def take(self, most_bytes: int) -> list[Message]:
        """Return pending messages of at most so many bytes, or a single larger message.

        Returns none after a lost connection: nsqd will deliver them again, and staging them would
        make duplicates.
        """
        if self.connection.is_lost:
            self.pending, self.size = [], 0
        taken, self.pending = self.pending, []
        if self.size > most_bytes:
            sizes = accumulate(len(message.body) for message in taken)
            count = max(1, sum(size <= most_bytes for size in sizes))
            taken, self.pending = taken[:count], taken[count:]
        self.size = sum(len(message.body) for message in self.pending)
        self.taken = taken
        return taken

    def finish(self) -> None:
        """Send FINs for the taken messages, preceded by the RDY to apply after the FINs."""
        taken, self.taken = self.taken, []
        if taken and not self.connection.is_lost:
            self.finished += len(taken)
            self._renew_ready()
            self.connection.settle(finish=[message.id for message in taken])
            self.last = self._now()

    def give_back(self) -> None:
        """Requeue all unfinished messages."""
        if not self.connection.is_lost:
            left = [*self.taken, *self.pending]
            self.connection.settle(requeue=[(message.id, 0) for message in left])

    async def stop_messages(self) -> None:
        """Send CLS; on return all messages under way have arrived.

        nsqd processes commands in order, so its response confirms all earlier FINs.
        """
        if not self.connection.is_lost:
            self.connection.stop_messages()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLS_TIMEOUT):
                    await self.connection.wait_closing()
                    self.settled = not self.connection.is_lost

    def _renew_ready(self) -> None:
        """Send RDY within the limits on messages in flight, on their bytes, and on the quota.

        Begins with 1: the size of messages is unknown until the first arrives.
        """
        connection, (messages, size) = self.connection, self._in_flight
        count = 1
        if self.received:
            mean = max(1, self._received_bytes // self.received)
            count = min(max(1, size // mean), messages, connection.features.max_rdy_count)
        count = 0 if self._stopped else min(count, max(0, self.left - self.finished))
        if count != connection.ready and not connection.closing:
            connection.set_ready(count)
            self._granted = max(self._granted, count)

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """As Listener."""
        size = sum([len(message.body) for message in messages])
        self.pending += messages
        self.size += size
        self.received += len(messages)
        self._received_bytes += size
        self.last = self._now()
        if len(messages) == self.received:  # the first
            self._renew_ready()
        # nsqd never exceeds RDY: messages have timed out, and more would while the disk stalls.
        if self.received - self.finished > self._granted and not self.too_late:
            self.too_late += 1
            self.stop()
        self._wake.set()

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """As Listener."""
        self.too_late += 1
        self._wake.set()

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """As Listener."""
        self.error = error
        self._wake.set()


class _Staged(NamedTuple):
    """Messages that wait for their segment; ``done`` gets the number of redelivered ones."""

    queue: TopicOnNsqd
    messages: Sequence[Message]
    done: asyncio.Future[int]


class _Segments:
    """Writes one segment at a time; what arrives meanwhile shares the next one."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._waiting: list[_Staged] = []
        self._writes = asyncio.Lock()

    async def stage(self, queue: TopicOnNsqd, messages: Sequence[Message]) -> int:
        """Make messages durable; return how many were staged before. Raises as ``Claim.add``."""
        staged = _Staged(queue, messages, asyncio.get_running_loop().create_future())
        self._waiting.append(staged)
        async with self._writes:
            if not staged.done.done():
                await self._write(self._next())
        return await staged.done

    def _next(self) -> list[_Staged]:
        """Take what waits, at most what a segment may hold."""
        sizes = accumulate(sum(len(each.body) for each in part.messages) for part in self._waiting)
        count = max(1, sum(size <= _MOST_BYTES for size in sizes))
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _write(self, parts: Sequence[_Staged]) -> None:
        loop = asyncio.get_running_loop()
        try:
            counts = await loop.run_in_executor(None, self._add, parts)
        except Exception as error:
            for part in parts:
                part.done.set_exception(error)
        else:
            for part, count in zip(parts, counts, strict=True):
                part.done.set_result(count)

    def _add(self, parts: Sequence[_Staged]) -> list[int]:
        """Add the messages that are not staged yet; return how many of each part are."""
        again = {
            _key(part.queue, message)
            for part in parts
            for message in part.messages
            if message.attempts > 1
        }
        staged = self._claim.staged(again) if again else set()
        fresh = [(part.queue, _once(part, staged) if again else part.messages) for part in parts]
        if any(messages for _, messages in fresh):
            self._claim.add(make_segment([each for each in fresh if each[1]]))
        return [
            len(part.messages) - len(messages)
            for part, (_, messages) in zip(parts, fresh, strict=True)
        ]


def _once(part: _Staged, staged: Set[MessageKey]) -> Sequence[Message]:
    """Return each message once, without redelivered messages already staged."""
    once = {_key(part.queue, message): message for message in part.messages}
    return [message for key, message in once.items() if key not in staged]


class _Task:
    """An attempt of a task: receives its quotas, the largest first, several at once.

    From the oldest quota still being received to the newest, all together may take max_in_flight
    messages, or a larger quota is received alone. So if the oldest turns out to have stalled, its
    messages are among the last rows, see ``redelivered``.
    """

    def __init__(self, quotas: Sequence[Quota], settings: SourceSettings, claim: Claim) -> None:
        self.settings = settings
        self.config = settings.config
        self._max_in_flight = min(settings.max_in_flight, MAX_IN_FLIGHT)
        self.unreachable: set[str] = set()
        """The nsqds that could not be reached: each takes a timeout."""
        self.is_stopped = False
        """Whether all quotas have to end."""
        self._claim = claim
        self._quotas = quotas
        self._pulls: dict[int, _Pull] = {}
        self._started: deque[tuple[asyncio.Task[None], int]] = deque()
        self._free = self._max_in_flight
        self._error: Exception | None = None

    async def run(self) -> Ending:
        """Receive; raises the first error, after all connections are closed."""
        adopted = self._claim.adopted()
        rest = [quota.count - adopted[quota.queue] for quota in self._quotas]
        segments = _Segments(self._claim)
        total = sum(left for left in rest if left > 0)
        if total:
            self.config = with_secret(self.settings)
        for number, (quota, left) in enumerate(zip(self._quotas, rest, strict=True)):
            if left <= 0:
                continue
            most = min(left, self._max_in_flight)
            # The bytes in flight are divided as the messages are.
            size = self.config.max_in_flight_bytes * most // min(total, self._max_in_flight)
            await self._wait_for_room(most)
            if self.is_stopped:
                break
            pull = _Pull(self, segments, quota, left, (most, max(1, size)))
            self._pulls[number] = pull
            self._free -= most
            self._started.append((asyncio.create_task(self._receive(pull)), most))
        await asyncio.gather(*(task for task, _ in self._started))
        if self._error:
            raise self._error
        return self._ending(adopted)

    async def _wait_for_room(self, messages: int) -> None:
        while True:
            while self._started and self._started[0][0].done():
                self._free += self._started.popleft()[1]
            running = [task for task, _ in self._started if not task.done()]
            if not running or (messages <= self._free and len(running) < _MOST_PULLS):
                return
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    async def _receive(self, pull: _Pull) -> None:
        try:
            await pull.run()
        except Exception as error:
            self._error = self._error or error
            self.stop()

    def stop(self) -> None:
        """End all quotas at once, without staging more."""
        self.is_stopped = True
        for pull in self._pulls.values():
            pull.wake.set()

    def _ending(self, adopted: Counter[TopicOnNsqd]) -> Ending:
        rows, silent = [adopted[quota.queue] for quota in self._quotas], []
        for number, pull in self._pulls.items():
            rows[number] += pull.rows
            if not rows[number] and pull.is_silent:
                silent.append(number)
        notes = dict.fromkeys(note for pull in self._pulls.values() for note in pull.notes)
        settled = all(pull.settled for pull in self._pulls.values())
        return Ending(settled, tuple(rows), tuple(silent), tuple(notes)[:_MOST_NOTES])


class _Pull:
    """The reception of one quota.

    nsqd limits the messages in flight on a connection (``--max-rdy-count``), and the time for a
    segment depends on the disk rather than on the bytes. So a max_in_flight too large for one
    connection is divided among several connections, whose messages share segments.
    """

    def __init__(
        self,
        task: _Task,
        segments: _Segments,
        quota: Quota,
        left: int,
        in_flight: tuple[int, int],
    ) -> None:
        """``in_flight`` limits the number and the bytes of messages in flight."""
        self.wake = asyncio.Event()
        self.rows = 0
        self.settled = True
        self.notes: list[str] = []
        self._task = task
        self._settings = task.settings
        self._segments = segments
        self._quota = quota
        self._left = left
        self._in_flight = in_flight
        self._links: list[_QuotaLink] = []
        self._loop = asyncio.get_running_loop()
        self._end = 0.0
        self._again = 0
        self._was_stopped = False

    @property
    def is_silent(self) -> bool:
        """Whether no message came, or nsqd could not be reached; not if the task ended early."""
        return not (self.rows or self._again or self._was_stopped)

    async def run(self) -> None:
        """Connect, pull, hang up. Raises errors as ``receive`` does."""
        nsqd = self._quota.nsqd
        if nsqd in self._task.unreachable:
            return
        try:
            await self._connect()
        except NSQError as error:
            respelled(error, flags=self._settings.flags)
            if isinstance(error, _REFUSALS):
                raise
            self._task.unreachable.add(nsqd)
            self._warn(f"cannot be reached: {getattr(error, 'text', error)}")
            return
        try:
            self._end = self._loop.time() + (self._settings.max_read or float("inf"))
            self._begin()
            reason = await self._pull()
        finally:
            await asyncio.gather(*(link.stop_messages() for link in self._links))
            for link in self._links:
                link.give_back()
            await asyncio.gather(*(link.connection.close() for link in self._links))
        self._finish(reason)

    async def _connect(self) -> None:
        """Open as many connections as max_in_flight needs; raises the errors of Connection.open."""
        self._links = [first := await self._open()]
        most = first.connection.features.max_rdy_count
        number = min(-(-self._in_flight[0] // most), _MOST_LINKS)
        others = [self._open() for _ in range(1, number)]
        for each in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(each, _QuotaLink):
                self._links.append(each)
            elif isinstance(each, NSQError):
                log.info("%s: could not open another connection: %s", self._quota.nsqd, each)
            else:
                raise each

    async def _open(self) -> _QuotaLink:
        link, config = _QuotaLink(self.wake), self._task.config
        link.connection = await Connection.open(
            Address.parse(self._quota.nsqd),
            config,
            link,
            subscription=(self._quota.topic, self._settings.channel),
            auth_secret=config.auth_secret,
        )
        return link

    def _begin(self) -> None:
        """Share quota and max_in_flight among the connections."""
        number = len(self._links)
        each, more = divmod(self._left, number)
        messages, size = self._in_flight
        share = -(-messages // number), max(1, size // number)
        for index, link in enumerate(self._links):
            link.begin(each + (index < more), share)

    async def _pull(self) -> str:
        """Stage segments until the quota is complete or a reason to stop, and return the reason."""
        while True:
            reason = await self._next_segment()
            if self._in_trouble:
                self._was_stopped = not self._is_in_doubt
                return reason
            for link in self._links if reason else ():
                link.stop()
            await self._stage()
            if reason or all(link.is_done and not link.pending for link in self._links):
                return reason

    @property
    def _is_in_doubt(self) -> bool:
        """Whether FINs of this quota are lost or were too late."""
        return any(link.connection.is_lost or link.too_late for link in self._links)

    @property
    def _in_trouble(self) -> bool:
        """Whether FINs of this task are lost or were too late: nothing more may be staged."""
        return self._task.is_stopped or self._is_in_doubt

    async def _next_segment(self) -> str:
        """Wait for a segment, or fewer messages in a pause; return a reason to stop, or ''."""
        while not (self._is_segment() or self._in_trouble):
            now, last = self._loop.time(), max(link.last for link in self._links)
            quiet = last + _QUIET
            idle = last + self._settings.idle_timeout
            waits = any(link.pending for link in self._links)
            if now >= self._end:
                return "maxReadMs has passed"
            if waits and now >= quiet:
                break
            if now >= idle:
                return "idleTimeoutMs has passed without a message"
            self.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(quiet if waits else idle, self._end)):
                    await self.wake.wait()
        return ""

    def _is_segment(self) -> bool:
        """Whether half of max_in_flight is pending: nsqd can fill the other half meanwhile."""
        links = [link for link in self._links if not link.is_done or link.pending]
        return (
            2 * sum(len(link.pending) for link in links)
            >= sum(link.connection.ready for link in links)
            or 2 * sum(link.size for link in links) >= self._in_flight[1]
            or all(link.is_done for link in links)
        )

    async def _stage(self) -> None:
        """Make what is pending durable, then finish it."""
        most = _MOST_BYTES // len(self._links)
        taken = [message for link in self._links for message in link.take(most)]
        if taken:
            again = await self._segments.stage(self._quota.queue, taken)
            self._again += again
            self.rows += len(taken) - again
            for link in self._links:
                link.finish()

    def _finish(self, reason: str) -> None:
        """Note how it ended, and log it unless it went as planned."""
        too_late = any(link.too_late for link in self._links)
        if too_late:
            fix = "raise nsq.msg_timeout or lower maxInFlight"
            if self._settings.flags:
                fix = "raise --msg-timeout or lower --max-in-flight"
            self._warn(f"messages timed out before they were finished: {fix}")
        if errors := [link.error for link in self._links if link.error]:
            self._warn(f"connection lost: {errors[0].text}")
        elif reason and not self.notes:
            self._log_reason(reason, logging.INFO)
        self.settled = not too_late and all(link.settled for link in self._links)
        if not self.settled:
            self._task.stop()

    def _warn(self, reason: str) -> None:
        """Log a reason, and note it for the driver; equal reasons give equal texts."""
        self._log_reason(reason, logging.WARNING)
        self.notes.append(f"{self._quota.nsqd}: topic {self._quota.topic}: {reason}")

    def _log_reason(self, reason: str, level: int) -> None:
        log.log(
            level,
            "%s: topic %s: %d of %d messages: %s",
            *(self._quota.nsqd, self._quota.topic, self.rows, self._left, reason),
        )


def _key(queue: TopicOnNsqd, message: Message) -> MessageKey:
    return *queue, message.id.decode("latin-1"), message.timestamp
