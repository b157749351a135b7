"""The connections of a consumer, and the control of their RDY."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqtools.policy.backoff import Backoff, requeue_delay
from nsqtools.policy.rdy import ByteBudget, Mode, Peer, RdyPlanner, is_starved
from nsqtools.proto.commands import MAX_DELAY
from nsqtools.tasks import end

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.engine.totals import ConsumerStats
    from nsqtools.names import Address
    from nsqtools.net.connection import Connection
    from nsqtools.proto.messages import Message

log = logging.getLogger(__name__)

# nsqd answers CLS at once or not at all: after the first answer the other nsqds have less time.
_CLS_TIMEOUT, _CLS_GRACE = 2.0, 0.5


class ConsumerConnection:
    """A connection of a consumer: it settles batches, and knows the facts for planning RDY.

    ``stats`` are the totals of the consumer. Times are the event loop's.
    """

    def __init__(
        self,
        connection: Connection,
        rdy: RdyController,
        config: ConsumerConfig,
        stats: ConsumerStats,
    ) -> None:
        self.connection = connection
        self.last_finish = 0.0
        """Time of the last FIN; 0 before the first."""
        self._rdy = rdy
        self._config = config
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._is_fresh = True
        self._counts_down = connection.features.counts_rdy_down
        self._last_message = self._rdy_since = self._loop.time()
        self._served = float("-inf")

    @property
    def is_starved(self) -> bool:
        """Whether nsqd is about to stop sending until messages are settled."""
        connection = self.connection
        return not connection.closing and is_starved(connection.in_flight, connection.ready)

    # Called by batches, as their Settler.

    def is_lost(self, deadline: float) -> bool:
        """Whether the connection has ended or ``deadline`` has passed."""
        return self.connection.is_lost or self._loop.time() > deadline

    def finish(self, messages: Sequence[Message]) -> None:
        """Send FIN."""
        self.last_finish = self._loop.time()
        self._stats.finished += len(messages)
        self._stats.failing = 0
        if not self._rdy.is_running:
            self._rdy.record(finished=len(messages))
        self.connection.settle(finish=[message.id for message in messages])
        self._plan_if_paused()

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        """Send REQ with ``delay`` seconds, or with the configured delay."""
        count = len(messages)
        self._stats.failing += count * backoff
        if self.connection.is_lost:
            return
        self._stats.requeued += count
        self._rdy.record(failed=count * backoff, requeued=count * (not backoff))
        delay_of = self._requeue_delay
        delay = None if delay is None else min(delay, MAX_DELAY)
        delays = [
            (message.id, round(1000 * (delay_of(message.attempts) if delay is None else delay)))
            for message in messages
        ]
        self.connection.settle(requeue=delays)
        self._plan_if_paused()

    def touch(self, messages: Sequence[Message]) -> None:
        """Send TOUCH, unless the connection is lost."""
        if not self.connection.is_lost:
            self._stats.touched += len(messages)
            self.connection.settle(touch=[message.id for message in messages])

    def forget(self, messages: Sequence[Message]) -> None:
        """Send nothing, but count the messages as timed out and no longer in flight."""
        self._stats.too_late += len(messages)
        if not self.connection.is_lost:
            self.connection.forget(len(messages))
            self._plan_if_paused()

    def _plan_if_paused(self) -> None:
        """Plan RDY for a connection at 0: with few messages in flight it may get RDY again."""
        if not self.connection.ready:
            self._rdy.plan()

    def _requeue_delay(self, attempts: int) -> float:
        """The configured delay of a REQ in seconds; 0 if the next delivery gives the message up."""
        config = self._config
        if attempts == config.max_attempts:
            return 0.0
        default, longest = config.default_requeue_delay, config.max_requeue_delay
        return requeue_delay(attempts, default_delay=default, max_delay=longest)

    # For the distribution of RDY.

    def note_messages(self, now: float) -> bool:
        """Note a read of messages; return whether RDY may have to change."""
        was_fresh, self._is_fresh = self._is_fresh, False
        self._last_message = now
        connection = self.connection
        return (
            was_fresh
            or connection.in_flight > connection.ready
            or (self._counts_down and 4 * connection.received >= 3 * connection.ready)
        )

    def peer(self) -> Peer:
        """Return the current facts."""
        connection = self.connection
        return Peer(
            address=connection.address,
            rdy=connection.ready,
            max_rdy=connection.features.max_rdy_count,
            in_flight=connection.in_flight,
            received=connection.received,
            counts_down=self._counts_down,
            fresh=self._is_fresh,
            last_message=self._last_message,
            rdy_since=self._rdy_since,
            served=self._served,
            closing=connection.closing,
        )

    def set_ready(self, count: int, now: float) -> None:
        """Send RDY, and note the time if RDY changes."""
        connection = self.connection
        if count or connection.ready:
            self._served = now
        if count != connection.ready:
            self._rdy_since = now
        connection.set_ready(count)


class RdyController:
    """Sends RDY to the connections by the policies of backoff and distribution.

    The controller has no timer: call ``plan`` after each change, and ``check`` from time to time,
    at the latest at ``backoff_until``. After ``stop`` it sends nothing, because nsqd ignores RDY
    after CLS.
    """

    def __init__(self, config: ConsumerConfig, rng: Random) -> None:
        self.connections: dict[Address, ConsumerConnection] = {}
        self.check_soon = asyncio.Event()
        """Set when ``backoff_until`` changes."""
        self.budget = ByteBudget(config.max_in_flight_bytes, config.max_in_flight)
        self.is_running = True
        """True without backoff; then only a failure changes anything."""
        self.is_behind = False
        """Whether the handler is slow; RDY is then 0."""
        self._rng = rng
        self._planner = RdyPlanner(config.low_rdy_idle_timeout, config.low_rdy_timeout)
        self._backoff = Backoff(
            config.backoff_strategy, config.backoff_multiplier, config.max_backoff_duration
        )
        self._stopped = False

    @property
    def backoff_level(self) -> int:
        """Failures minus successes, at least 0."""
        return self._backoff.counter

    @property
    def backoff_until(self) -> float | None:
        """The time at which ``check`` ends the backoff wait; None without a wait."""
        return self._backoff.until

    def stop(self) -> None:
        """Send no more RDY."""
        self._stopped = True

    def plan(self) -> None:
        """Send the RDY values required by the current facts."""
        if self._stopped or not self.connections:  # without any, the event loop may not run yet
            return
        now = asyncio.get_running_loop().time()
        plan = self._planner.plan(
            [each.peer() for each in self.connections.values()],
            max_in_flight=self.budget.limit,
            mode=Mode.STOPPED if self.is_behind else self._backoff.mode,
            now=now,
            rng=self._rng,
        )
        for address, count in plan.items():
            self.connections[address].set_ready(count, now)

    def record(self, *, finished: int = 0, failed: int = 0, requeued: int = 0) -> None:
        """Count results for backoff before FIN and REQ are sent: a change of RDY goes out first."""
        if not failed and self.is_running:
            return
        change = self._backoff.record(
            succeeded=finished,
            failed=failed,
            neutral=requeued,
            now=asyncio.get_running_loop().time(),
            rng=self._rng,
        )
        if change:
            log.info("backoff: %s", change)
            self.is_running = self._backoff.mode is Mode.RUNNING
            self.plan()
            self.check_soon.set()

    def check(self, now: float) -> None:
        """End the backoff wait if its time is over."""
        if change := self._backoff.end_wait(now):
            log.info("backoff: %s", change)
            self.is_running = self._backoff.mode is Mode.RUNNING

    def fall_behind(self) -> None:
        """Stop new messages: other consumers may handle them sooner."""
        if not self.is_behind:
            log.warning("the handler is slow: no new messages until it has handled the queued ones")
        self.is_behind = True


async def stop_messages(connections: Sequence[Connection], *, within: float) -> None:
    """Send CLS, and wait a moment for the answers, at most ``within`` seconds for each step."""
    for connection in connections:
        connection.stop_messages()
    waiting = [asyncio.ensure_future(each.wait_closing()) for each in connections]
    left = set(waiting)
    try:
        for limit, until in (
            (_CLS_TIMEOUT, asyncio.FIRST_COMPLETED),
            (_CLS_GRACE, asyncio.ALL_COMPLETED),
        ):
            if left:
                timeout = min(limit, within)
                _, left = await asyncio.wait(left, timeout=timeout, return_when=until)
    finally:
        await end(waiting)
