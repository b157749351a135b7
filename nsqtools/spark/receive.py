"""A quota of messages from one nsqd into the staging of a partition; runs on executors.

A message is finished when the segment it is in is durable and still ours (``Claim.add``), never
before. So whatever dies, nothing is lost, and what comes twice is at most what was staged and not
yet finished: the window of the partition. What cannot be staged is given back to nsqd at once, so
that the next attempt finds it.

The quota is exact: RDY never promises more than what is not finished of it, and a lower RDY is sent
before the FINs that make room. So nothing beyond the quota is ever in flight here, to be missing
elsewhere until it has timed out.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from nsqtools.errors import (
    AuthError,
    ConfigError,
    ConnectError,
    NSQError,
    PeerError,
    ProtocolError,
)
from nsqtools.names import Address
from nsqtools.net.connection import Connection
from nsqtools.spark.ledger import ROW_SCHEMA
from nsqtools.spark.options import respelled, with_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.config import ConsumerConfig
    from nsqtools.errors import ServerError
    from nsqtools.proto.messages import Message
    from nsqtools.spark.ledger import Claim
    from nsqtools.spark.options import SourceSettings
    from nsqtools.spark.plans import Quota

log = logging.getLogger(__name__)

# Messages that nothing follows for this long are staged, few as they may be.
_QUIET = 0.05
_CLS_TIMEOUT = 2.0
_MOST_LINKS = 8
# Arrow's offsets of binary are 32 bits.
_MOST_BYTES = 1 << 30


def receive(quota: Quota, settings: SourceSettings, claim: Claim) -> None:
    """Stage what is left of a quota: ``quota.count`` less the rows that ``claim`` has adopted.

    Returns early, with fewer, when nothing came for ``idle_timeout``, after ``max_read``, and when
    nsqd cannot be reached or is lost: its messages are still there. Raises what the query must
    fail of: UnreachableError or ProtocolError when nsqd would not have us, ConfigError for files
    of TLS or secret, and what ``claim.add`` raises.
    """
    if quota.count > claim.rows:
        with _no_collection():
            asyncio.run(_run(quota, settings, claim))


async def _run(quota: Quota, settings: SourceSettings, claim: Claim) -> None:
    await _Pull(quota, settings, claim).run()


class Rows:
    """Makes rows of ROW_SCHEMA; column by column, as Arrow takes lists faster than anything."""

    def __init__(self, topic: str, channel: str, nsqd: str) -> None:
        self._names = (topic, channel, nsqd)
        self._repeated: tuple[pa.Array, ...] = ()

    def make(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """One row a message. Raises ProtocolError for an id that is not text."""
        count = len(messages)
        if not self._repeated or len(self._repeated[0]) < count:
            self._repeated = tuple(pa.repeat(name, count) for name in self._names)
        try:
            ids = pa.array([message.id for message in messages], pa.string())
        except pa.ArrowInvalid as error:
            nsqd = Address.parse(self._names[2])
            raise ProtocolError("sent a message id that is not text: not nsqd", nsqd) from error
        nanoseconds = pa.array([message.timestamp for message in messages], pa.int64())
        timestamps = nanoseconds.view(pa.timestamp("ns", "UTC"))
        columns = [
            *(each.slice(0, count) for each in self._repeated),
            ids,
            timestamps.cast(pa.timestamp("us", "UTC"), safe=False),
            nanoseconds,
            pa.array([message.attempts for message in messages], pa.int32()),
            pa.array([message.body for message in messages], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Messages are in no cycles: to walk over them takes a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Link:
    """One connection, and its part of the quota: ``left`` at the start, ``finished`` of that.

    It listens to its connection; ``pending`` is what waits to be staged, of ``size`` bytes, and
    ``taken`` what is being staged.
    """

    def __init__(self, wake: asyncio.Event) -> None:
        self.connection: Connection
        self.error: PeerError | None = None
        self.pending: list[Message] = []
        self.taken: list[Message] = []
        self.size = 0
        self.left = self.received = self.finished = self.too_late = 0
        self.last = 0.0
        self._received_bytes = 0
        self._in_flight = (1, 1)
        self._wake = wake
        self._now = asyncio.get_running_loop().time

    def begin(self, left: int, in_flight: tuple[int, int]) -> None:
        """Ask for the first messages; ``in_flight`` may be so many, and of so many bytes."""
        self.left, self._in_flight = left, in_flight
        self.last = self._now()
        self._renew_ready()

    @property
    def is_done(self) -> bool:
        """Whether nothing more can come, but for what is pending."""
        return self.received >= self.left or self.connection.is_lost

    def take(self, most_bytes: int) -> list[Message]:
        """What is pending, or so much of it; nothing of a connection that is lost.

        nsqd will deliver that again, so to stage it would only make it twice.
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
        """Send FINs for what was taken, and before them the RDY that holds after them."""
        taken, self.taken = self.taken, []
        if self.connection.is_lost and taken:
            log.warning(
                "%s: connection lost: %d messages are staged but not finished, and come again",
                *(self.connection.address, len(taken)),
            )
        elif taken:
            self.finished += len(taken)
            self._renew_ready()
            self.connection.settle(finish=[message.id for message in taken])
            self.last = self._now()

    def give_back(self) -> None:
        """Requeue all that is not finished."""
        if not self.connection.is_lost:
            left = [*self.taken, *self.pending]
            self.connection.settle(requeue=[(message.id, 0) for message in left])

    async def stop_messages(self) -> None:
        """CLS; when this returns, all that was under way has come."""
        if not self.connection.is_lost:
            self.connection.stop_messages()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLS_TIMEOUT):
                    await self.connection.wait_closing()

    def _renew_ready(self) -> None:
        """RDY for the window that count and bytes allow, and never more than what is to be had.

        It begins with 1: how large messages are is known only from the first.
        """
        connection, (messages, size) = self.connection, self._in_flight
        count = 1
        if self.received:
            mean = max(1, self._received_bytes // self.received)
            count = min(max(1, size // mean), messages, connection.features.max_rdy_count)
        count = min(count, max(0, self.left - self.finished))
        if count != connection.ready and not connection.closing:
            connection.set_ready(count)

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """As Listener."""
        is_first = not self.received
        size = sum([len(message.body) for message in messages])
        self.pending += messages
        self.size += size
        self.received += len(messages)
        self._received_bytes += size
        self.last = self._now()
        if is_first:
            self._renew_ready()
        self._wake.set()

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """As Listener."""
        self.too_late += 1

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """As Listener."""
        self.error = error
        self._wake.set()


class _Pull:
    """What a partition's attempt does; made in the loop.

    nsqd bounds what is in flight on a connection (``--max-rdy-count``), and the time of a segment
    is that of the disk, not of its bytes. So a window that one connection may not have is had by
    several, whose messages share segments.
    """

    def __init__(self, quota: Quota, settings: SourceSettings, claim: Claim) -> None:
        self._quota = quota
        self._settings = settings
        self._claim = claim
        self._left = quota.count - claim.rows
        self._rows = Rows(quota.topic, settings.channel, quota.nsqd)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._links: list[_Link] = []
        self._end = 0.0

    async def run(self) -> None:
        """Connect, pull, hang up."""
        try:
            config = with_secret(self._settings)
            await self._connect(config)
        except NSQError as error:
            respelled(error)
            if refuses(error):
                raise
            self._tell(f"cannot be reached: {getattr(error, 'text', error)}", logging.WARNING)
            return
        try:
            self._end = self._loop.time() + (self._settings.max_read or float("inf"))
            self._begin(config)
            reason = await self._pull()
            await asyncio.gather(*(link.stop_messages() for link in self._links))
            while any(link.pending and not link.connection.is_lost for link in self._links):
                await self._stage()
        except Exception:
            await asyncio.gather(*(link.stop_messages() for link in self._links))
            for link in self._links:
                link.give_back()
            raise
        finally:
            await asyncio.gather(*(link.connection.close() for link in self._links))
        self._tell_end(reason)

    async def _connect(self, config: ConsumerConfig) -> None:
        """Open one connection, and as many more as the window needs; raises as Connection.open."""
        self._links.append(await self._open(config))
        most = self._links[0].connection.features.max_rdy_count
        window = min(self._settings.max_in_flight, self._left)
        number = min(-(-window // most), _MOST_LINKS)
        others = [self._open(config) for _ in range(1, number)]
        for each in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(each, _Link):
                self._links.append(each)
            elif isinstance(each, NSQError):
                log.info("%s: one connection less: %s", self._quota.nsqd, each)
            else:
                raise each

    async def _open(self, config: ConsumerConfig) -> _Link:
        link = _Link(self._wake)
        link.connection = await Connection.open(
            Address.parse(self._quota.nsqd),
            config,
            link,
            subscription=(self._quota.topic, self._settings.channel),
            auth_secret=config.auth_secret,
        )
        return link

    def _begin(self, config: ConsumerConfig) -> None:
        """Share quota and window among the connections."""
        number = len(self._links)
        each, more = divmod(self._left, number)
        window = -(-self._settings.max_in_flight // number)
        for index, link in enumerate(self._links):
            share = (window, max(1, config.max_in_flight_bytes // number))
            link.begin(each + (index < more), share)

    async def _pull(self) -> str:
        """Stage segments until all is there, or until a reason not to go on, which is returned."""
        while True:
            reason = await self._next_segment()
            await self._stage()
            if reason or all(link.is_done and not link.pending for link in self._links):
                return reason
            if all(link.connection.is_lost for link in self._links):
                return "connection lost"

    async def _next_segment(self) -> str:
        """Wait until there is enough for one, or a reason to stop: then with what there is."""
        while not self._is_segment():
            now, last = self._loop.time(), max(link.last for link in self._links)
            quiet = last + _QUIET
            idle = last + self._settings.idle_timeout
            waits = any(link.pending for link in self._links)
            if now >= self._end:
                return "maxReadMs is over"
            if waits and now >= quiet:
                break
            if now >= idle:
                return "idleTimeoutMs passed without a message"
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(quiet if waits else idle, self._end)):
                    await self._wake.wait()
        return ""

    def _is_segment(self) -> bool:
        """Whether half the window waits, so that nsqd can fill the other half meanwhile."""
        links = [link for link in self._links if not link.is_done or link.pending]
        return (
            2 * sum(len(link.pending) for link in links)
            >= sum(link.connection.ready for link in links)
            or 2 * sum(link.size for link in links) >= self._settings.config.max_in_flight_bytes
            or all(link.is_done for link in links)
        )

    async def _stage(self) -> None:
        """Make what is pending durable, then finish it."""
        most = _MOST_BYTES // len(self._links)
        segment = [message for link in self._links for message in link.take(most)]
        if segment:
            await self._loop.run_in_executor(None, self._write, segment)
            for link in self._links:
                link.finish()

    def _write(self, segment: Sequence[Message]) -> None:
        self._claim.add(self._rows.make(segment))

    def _tell_end(self, reason: str) -> None:
        """Log how it ended, unless it is as planned."""
        if too_late := sum(link.too_late for link in self._links):
            log.warning(
                "%s: %d messages timed out before they were staged and come again: raise "
                "nsq.msg_timeout or lower maxInFlight",
                *(self._quota.nsqd, too_late),
            )
        errors = [link.error for link in self._links if link.error]
        if errors:
            self._tell(f"connection lost: {errors[0].text}", logging.WARNING)
        elif reason:
            self._tell(reason, logging.INFO)

    def _tell(self, reason: str, level: int) -> None:
        log.log(
            level,
            "%s: topic %s: %d of %d messages in this partition: %s",
            *(self._quota.nsqd, self._quota.topic, self._claim.rows, self._quota.count, reason),
        )


def refuses(error: NSQError) -> bool:
    """Whether nsqd is there but would not have us, now or at the next try; else it may be back."""
    if isinstance(error, AuthError | ConfigError | ProtocolError):
        return True
    cause: BaseException | None = error.__cause__
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ if cause.__cause__ is not cause else None
    if cause is not None:
        return hasattr(cause, "library")  # ssl.SSLError, which only net knows
    return isinstance(error, ConnectError) and not error.text.startswith("closed by")
