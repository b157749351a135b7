"""A quota of messages from one nsqd into the staging of a partition; runs on executors.

A message is finished once its segment is durable and the partition is still ours (``Claim.add``),
never before. So no crash loses a message. A staged message without FIN comes again, at once or much
later, and is finished without being staged again (``Claim.staged``). Messages that cannot be staged
are given back to nsqd at once, for the next attempt. After a lost connection or a late FIN the
partition ends, so that all doubtful messages are among its last rows.

The quota is exact: RDY never exceeds the unfinished rest of the quota, and a lower RDY is sent
before the FINs that would make room. So no message beyond the quota is ever in flight here, missing
elsewhere until its timeout. Messages arriving after the decision to end are given back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING

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
    from collections.abc import Iterator, Sequence

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.errors import ServerError
    from nsqtools.proto.messages import Message
    from nsqtools.spark.source.plans import Quota
    from nsqtools.spark.source.sourceoptions import SourceSettings
    from nsqtools.spark.staging.partitions import Claim
    from nsqtools.spark.staging.redelivered import MessageKey

log = logging.getLogger(__name__)

# After this long without another message, even a few messages are staged.
_QUIET = 0.05
_CLS_TIMEOUT = 2.0
_MOST_LINKS = 8
# Arrow's offsets of binary are 32 bits.
_MOST_BYTES = 1 << 30
# Other errors of a connection may be temporary.
_REFUSALS = (AuthError, ConfigError, ProtocolError, RefusedError)


def receive(quota: Quota, settings: SourceSettings, claim: Claim) -> Ending:
    """Stage the rest of a quota: ``quota.count`` minus the rows adopted by ``claim``.

    Returns how the attempt ended. It ends early, with fewer messages, after ``idle_timeout`` or
    ``max_read``, and if nsqd is unreachable, the connection is lost, or messages time out. Other
    errors fail the query: UnreachableError or ProtocolError if nsqd refuses the connection,
    ConfigError for files of TLS or secret, and errors of ``claim``.
    """
    if quota.count <= claim.rows:
        return Ending(settled=True)
    with _no_collection():
        return asyncio.run(_Pull(quota, settings, claim).run())


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


class _Pull:
    """A partition's attempt.

    nsqd limits the messages in flight on a connection (``--max-rdy-count``), and the time for a
    segment depends on the disk rather than on the bytes. So a max_in_flight too large for one
    connection is divided among several connections, whose messages share segments.
    """

    def __init__(self, quota: Quota, settings: SourceSettings, claim: Claim) -> None:
        self._quota = quota
        self._settings = settings
        self._claim = claim
        self._left = quota.count - claim.rows
        self._max_in_flight = min(settings.max_in_flight, MAX_IN_FLIGHT)
        self._wake = asyncio.Event()
        self._links: list[_QuotaLink] = []
        self._end = 0.0
        self._again = 0

    async def run(self) -> Ending:
        """Connect, pull, hang up."""
        self._loop = asyncio.get_running_loop()
        try:
            config = with_secret(self._settings)
            await self._connect(config)
        except NSQError as error:
            respelled(error, flags=self._settings.flags)
            if isinstance(error, _REFUSALS):
                raise
            reason = f"cannot be reached: {getattr(error, 'text', error)}"
            return Ending(settled=True, notes=(self._warn(reason),))
        try:
            self._end = self._loop.time() + (self._settings.max_read or float("inf"))
            self._begin(config)
            reason = await self._pull()
        finally:
            await asyncio.gather(*(link.stop_messages() for link in self._links))
            for link in self._links:
                link.give_back()
            await asyncio.gather(*(link.connection.close() for link in self._links))
        return self._ending(reason)

    async def _connect(self, config: ConsumerConfig) -> None:
        """Open as many connections as max_in_flight needs; raises the errors of Connection.open."""
        self._links = [first := await self._open(config)]
        most = first.connection.features.max_rdy_count
        number = min(-(-min(self._max_in_flight, self._left) // most), _MOST_LINKS)
        others = [self._open(config) for _ in range(1, number)]
        for each in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(each, _QuotaLink):
                self._links.append(each)
            elif isinstance(each, NSQError):
                log.info("%s: could not open another connection: %s", self._quota.nsqd, each)
            else:
                raise each

    async def _open(self, config: ConsumerConfig) -> _QuotaLink:
        link = _QuotaLink(self._wake)
        link.connection = await Connection.open(
            Address.parse(self._quota.nsqd),
            config,
            link,
            subscription=(self._quota.topic, self._settings.channel),
            auth_secret=config.auth_secret,
        )
        return link

    def _begin(self, config: ConsumerConfig) -> None:
        """Share quota and max_in_flight among the connections."""
        number = len(self._links)
        each, more = divmod(self._left, number)
        max_in_flight = -(-self._max_in_flight // number)
        for index, link in enumerate(self._links):
            share = (max_in_flight, max(1, config.max_in_flight_bytes // number))
            link.begin(each + (index < more), share)

    async def _pull(self) -> str:
        """Stage segments until the quota is complete or a reason to stop, and return the reason."""
        while True:
            reason = await self._next_segment()
            if self._in_trouble:
                return reason
            for link in self._links if reason else ():
                link.stop()
            await self._stage()
            if reason or all(link.is_done and not link.pending for link in self._links):
                return reason

    @property
    def _in_trouble(self) -> bool:
        """Whether FINs are lost or were too late: nothing more may be staged."""
        return any(link.connection.is_lost or link.too_late for link in self._links)

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
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(quiet if waits else idle, self._end)):
                    await self._wake.wait()
        return ""

    def _is_segment(self) -> bool:
        """Whether half of RDY is pending: nsqd can fill the other half meanwhile."""
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
            self._again += await self._loop.run_in_executor(None, self._write, segment)
            for link in self._links:
                link.finish()

    def _write(self, segment: Sequence[Message]) -> int:
        """Add those that are not staged yet; how many are."""
        fresh = self._fresh(segment)
        if fresh:
            self._claim.add(make_segment(fresh, self._quota.nsqd))
        return len(segment) - len(fresh)

    def _fresh(self, segment: Sequence[Message]) -> Sequence[Message]:
        """Return each message once, without redelivered messages already staged."""
        again = [message for message in segment if message.attempts > 1]
        if not again:
            return segment
        once = {_key(message): message for message in segment}
        staged = self._claim.staged({_key(message) for message in again})
        return [message for key, message in once.items() if key not in staged]

    def _ending(self, reason: str) -> Ending:
        """Return the ending, and log it unless the attempt went as planned."""
        notes = []
        too_late = any(link.too_late for link in self._links)
        if too_late:
            fix = "raise nsq.msg_timeout or lower maxInFlight"
            if self._settings.flags:
                fix = "raise --msg-timeout or lower --max-in-flight"
            notes.append(self._warn(f"messages timed out before they were finished: {fix}"))
        if errors := [link.error for link in self._links if link.error]:
            notes.append(self._warn(f"connection lost: {errors[0].text}"))
        elif reason and not notes:
            self._log_reason(reason, logging.INFO)
        settled = not too_late and all(link.settled for link in self._links)
        return Ending(settled, self._again, tuple(notes))

    def _warn(self, reason: str) -> str:
        """Log a reason, and return it for the driver; equal reasons give equal texts."""
        self._log_reason(reason, logging.WARNING)
        return f"{self._quota.nsqd}: topic {self._quota.topic}: {reason}"

    def _log_reason(self, reason: str, level: int) -> None:
        log.log(
            level,
            "%s: topic %s: %d of %d messages in this partition: %s",
            *(self._quota.nsqd, self._quota.topic, self._claim.rows, self._quota.count, reason),
        )


def _key(message: Message) -> MessageKey:
    return message.id.decode("latin-1"), message.timestamp
