"""Flow control: the RDY of each connection of a consumer, and the settling of messages.

Messages received, lost connections and timers come in as plain calls. Each ends in ``plan``, which
asks the RDY planner of ``policy`` which RDY to send.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import MessageSizeError
from nsqtools.net.connection import Listener
from nsqtools.policy.backoff import Backoff, requeue_delay
from nsqtools.policy.rdy import ByteBudget, Mode, Peer, RdyPlanner
from nsqtools.tasks import end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from nsqtools.config import ConsumerConfig
    from nsqtools.engine.consumer import ConsumerStats
    from nsqtools.errors import PeerError, ServerError
    from nsqtools.names import Address
    from nsqtools.net.connection import Connection
    from nsqtools.policy.backoff import BackoffChange
    from nsqtools.proto.messages import Message

log = logging.getLogger(__name__)

_USUAL_MSG_TIMEOUT = 60.0

# nsqd answers CLS at once, or not at all: after the first answer the others have less time.
_CLS_TIMEOUT = 2.0
_CLS_GRACE = 0.5


class Link(Listener):
    """One connection: it settles its batches and keeps the facts for planning its RDY."""

    __slots__ = (
        *("_flow", "_fresh", "_last_message", "_rdy_since", "_served"),
        *("connection", "last_finish", "stale"),
    )

    connection: Connection

    def __init__(self, flow: Flow) -> None:
        self.stale = False
        self.last_finish = 0.0
        """Event loop time of the last FIN; 0 for none."""
        self._flow = flow
        self._fresh = True
        self._last_message = self._rdy_since = 0.0
        self._served = float("-inf")

    def take_part(self, connection: Connection, now: float) -> None:
        """Set the connection, which was made at ``now``."""
        self.connection = connection
        self._last_message = self._rdy_since = now

    def peer(self) -> Peer:
        """Return the current facts."""
        connection = self.connection
        return Peer(
            address=connection.address,
            rdy=connection.ready,
            max_rdy=connection.features.max_rdy_count,
            in_flight=connection.in_flight,
            received=connection.received,
            counts_down=connection.features.counts_rdy_down,
            fresh=self._fresh,
            last_message=self._last_message,
            rdy_since=self._rdy_since,
            served=self._served,
            closing=connection.closing,
        )

    def set_ready(self, count: int, now: float) -> None:
        """Send RDY and note the time if it changes."""
        if count or self.connection.ready:
            self._served = now
        if count != self.connection.ready:
            self._rdy_since = now
        self.stale = False
        self.connection.set_ready(count)

    def needs_plan(self, now: float) -> bool:
        """Note that messages came; returns whether RDY may have to change."""
        self._last_message = now
        connection = self.connection
        if self._fresh:
            self._fresh = False
            return True
        return (
            self.stale
            or connection.in_flight > connection.ready
            or (
                connection.features.counts_rdy_down
                and 4 * connection.received >= 3 * connection.ready
            )
        )

    # Called by the connection, as its Listener.

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """Pass on the messages of one read."""
        self._flow.received(self, messages)

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """Count it; it is no failure of the handler, so there is no backoff (go-nsq#116)."""
        log.debug("%s", error)
        if error.code == "E_TOUCH_FAILED":  # nsqd names the message (protocol_v2.go, TOUCH)
            address, late = connection.address, error.text.split()[2:3]
            self._flow.touch_refused.update((address, word.encode()) for word in late)
            return
        self._flow.stats.too_late += 1
        if error.code == "E_FIN_FAILED":
            self._flow.stats.finished -= 1
            self._flow.refused(1)
        elif error.code == "E_REQ_FAILED":
            self._flow.stats.requeued -= 1

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """Share the connection's RDY among the others."""
        self._flow.lost(self, connection.address, error)

    # Called by batches, as their Settle.

    def finish(self, messages: Sequence[Message]) -> None:
        """Send FIN."""
        self.last_finish = self._flow.now()
        self._flow.settled(finished=len(messages))
        self.connection.settle(finish=[message.id for message in messages])
        self._settled()

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        """Send REQ with ``delay`` seconds, or with the configured delay."""
        if self.connection.is_lost:
            return
        if backoff:
            self._flow.settled(failed=len(messages))
        else:
            self._flow.settled(requeued=len(messages))
        if delay is None:
            requeue_ms = self._flow.requeue_ms
            delays = [(message.id, requeue_ms(message.attempts)) for message in messages]
        else:
            delays = [(message.id, round(delay * 1000)) for message in messages]
        self.connection.settle(requeue=delays)
        self._settled()

    def touch(self, messages: Sequence[Message]) -> None:
        """Send TOUCH, unless the connection is lost."""
        if not self.connection.is_lost:
            self._flow.stats.touched += len(messages)
            self.connection.settle(touch=[message.id for message in messages])

    def forget(self, messages: Sequence[Message]) -> None:
        """Send nothing, but count the messages as timed out and no longer in flight."""
        if not self.connection.is_lost:
            self._flow.stats.too_late += len(messages)
            self.connection.forget(len(messages))
            self._settled()

    def _settled(self) -> None:
        """A connection at RDY 0 may get RDY again once few messages are in flight."""
        if not self.connection.ready:
            self._flow.plan()


class Flow:
    """The connections of a consumer, in ``links`` by address, and their RDY.

    ``deliver`` is called with the messages of one read and the size of their bodies in bytes,
    ``refused`` with the number of FINs that nsqd refused, and ``broken`` with the error of a bug in
    planning: without a plan the consumer must stop.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        stats: ConsumerStats,
        *,
        rng: Random,
        deliver: Callable[[Link, list[Message], int], object],
        refused: Callable[[int], object],
        broken: Callable[[Exception], object],
    ) -> None:
        self.links: dict[Address, Link] = {}
        self.stats = stats
        self.handling_since: float | None = None
        """When the handler got its current batch; None while it has none."""
        self._config = config
        self._rng = rng
        self.touch_refused: set[tuple[Address, bytes]] = set()
        """The nsqds and ids of messages that timed out before they were touched."""
        self.refused = refused
        self._deliver = deliver
        self._broken = broken
        self._max_in_flight = self._limit = config.max_in_flight
        self._budget = ByteBudget(config.max_in_flight_bytes)
        self._planner = RdyPlanner(config.low_rdy_idle_timeout, config.low_rdy_timeout)
        self._backoff = Backoff(
            config.backoff_strategy, config.backoff_multiplier, config.max_backoff_duration
        )
        self._oversize: set[Address] = set()
        self._behind = False
        self._stopped = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Start checking RDY and the handler at regular intervals."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def stop(self) -> None:
        """Send no more RDY; nsqd ignores it after CLS."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()

    def add(self, link: Link, connection: Connection) -> None:
        """Add an open connection."""
        link.take_part(connection, self._loop.time())
        self.links[connection.address] = link
        self.plan()

    def set_max_in_flight(self, n: int) -> None:
        """Change ``max_in_flight`` and share it among the connections, at once."""
        self._max_in_flight = n
        self._set_limit()
        self.plan()

    def caught_up(self) -> None:
        """Resume after the handler has emptied the queue."""
        self.handling_since = None
        if self._behind:
            self._behind = False
            self.plan()

    def peers(self) -> list[Peer]:
        """Return the current facts of each connection."""
        return [link.peer() for link in self.links.values()]

    @property
    def msg_timeout(self) -> float:
        """The shortest timeout of an unsettled message on any connection, in seconds."""
        timeouts = [link.connection.features.msg_timeout for link in self.links.values()]
        return min(timeouts, default=_USUAL_MSG_TIMEOUT)

    def totals(self) -> ConsumerStats:
        """Return a copy of the totals, with the current values."""
        return replace(
            self.stats,
            connections=len(self.links),
            in_flight=sum(link.connection.in_flight for link in self.links.values()),
            backoff_level=self._backoff.counter,
        )

    # Called by links.

    def received(self, link: Link, messages: list[Message]) -> None:
        """Count and deliver the messages of one read."""
        now = self._loop.time()
        count = len(messages)
        size = sum([len(message.body) for message in messages])
        stats = self.stats
        stats.received += count
        stats.received_bytes += size
        stats.last_message = now
        self._budget.note(count, size)
        self._set_limit()
        self._deliver(link, messages, size)
        if link.needs_plan(now):
            self.plan()

    def settled(self, *, finished: int = 0, failed: int = 0, requeued: int = 0) -> None:
        """Count results before FIN and REQ are sent, so that a change of RDY goes out first."""
        self.stats.finished += finished
        self.stats.requeued += failed + requeued
        if failed or self._backoff.mode is not Mode.RUNNING:
            now = self._loop.time()
            if change := self._backoff.record(
                succeeded=finished, failed=failed, neutral=requeued, now=now, rng=self._rng
            ):
                self._backoff_changed(change)

    def requeue_ms(self, attempts: int) -> int:
        """Return the configured delay of a REQ, in ms; 0 if the next delivery only gives up."""
        if attempts == self._config.max_attempts:
            return 0
        default, most = self._config.default_requeue_delay, self._config.max_requeue_delay
        return round(requeue_delay(attempts, default_delay=default, max_delay=most) * 1000)

    def now(self) -> float:
        """Return the event loop time."""
        return self._loop.time()

    def lost(self, link: Link, address: Address, error: PeerError | None) -> None:
        """Remove a connection and share its RDY among the others."""
        if self.links.get(address) is not link:
            return
        del self.links[address]
        if error and link.last_finish >= link.connection.last_read:
            self.stats.unconfirmed += 1  # it may not have read the last FINs
        if self._stopped or error is None:
            return
        level = logging.WARNING
        if isinstance(error, MessageSizeError):
            level = logging.INFO if address in self._oversize else logging.ERROR
            self._oversize.add(address)
        log.log(level, "connection lost: %s", error)
        self.plan()

    def plan(self) -> None:
        """Send the RDY values that the current facts require."""
        if self._stopped or not self.links:
            return
        now = self._loop.time()
        mode = Mode.STOPPED if self._behind else self._backoff.mode
        plan = self._planner.plan(
            self.peers(), max_in_flight=self._limit, mode=mode, now=now, rng=self._rng
        )
        for address, count in plan.items():
            self.links[address].set_ready(count, now)

    def _set_limit(self) -> None:
        limit = self._budget.limit(self._max_in_flight)
        if limit != self._limit:
            self._limit = limit
            for link in self.links.values():
                link.stale = True

    def _backoff_changed(self, change: BackoffChange) -> None:
        log.info("backoff: %s", change)
        if timer := self._timers.pop("backoff", None):
            timer.cancel()
        if self._backoff.until is not None:
            self._call_at(self._backoff.until, "backoff", self._backoff_due)
        self.plan()

    def _backoff_due(self) -> None:
        # A timer may fire slightly early.
        if change := self._backoff.due(max(self._loop.time(), self._backoff.until or 0.0)):
            self._backoff_changed(change)

    def _tick(self) -> None:
        """Check RDY and the handler.

        If the handler has kept a batch for a quarter of msg_timeout, RDY goes to 0: other consumers
        of the channel can have what would only wait here.
        """
        patience = self.msg_timeout / 4
        now = self._loop.time()
        if self.handling_since is not None and now - self.handling_since > patience:
            if not self._behind:
                log.warning(
                    "the handler is slow: no new messages until it has handled the queued ones"
                )
            self._behind = True
        self.plan()
        interval = min(self._config.rdy_redistribute_interval, patience / 2)
        self._call_at(now + interval, "tick", self._tick)

    def _call_at(self, when: float, name: str, work: Callable[[], None]) -> None:
        if self._stopped:
            return

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._broken(error)

        self._timers[name] = self._loop.call_at(when, run)


async def stop_messages(connections: Sequence[Connection], *, within: float) -> None:
    """Send CLS, and wait for the answers for a moment."""
    for connection in connections:
        connection.stop_messages()
    waiting = [asyncio.ensure_future(each.wait_closing()) for each in connections]
    left = set(waiting)
    try:
        for most, until in (
            (_CLS_TIMEOUT, asyncio.FIRST_COMPLETED),
            (_CLS_GRACE, asyncio.ALL_COMPLETED),
        ):
            if left:
                timeout = min(most, within)
                _, left = await asyncio.wait(left, timeout=timeout, return_when=until)
    finally:
        await end(waiting)
