"""Controls the RDY of a consumer's connections, with backoff and for slow handlers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqtools.net.connection import Listener
from nsqtools.policy.backoff import Backoff
from nsqtools.policy.rdy import ByteBudget, Mode, Peer, RdyPlanner
from nsqtools.tasks import end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.names import Address
    from nsqtools.net.connection import Connection

log = logging.getLogger(__name__)

# nsqd answers CLS at once or not at all: after the first answer the other nsqds have less time.
_CLS_TIMEOUT, _CLS_GRACE = 2.0, 0.5


class RdyLink(Listener):
    """A connection with controlled RDY, and the facts for the planner."""

    __slots__ = ("_rdy_since", "_served", "connection", "counts_down", "is_fresh", "last_message")

    connection: Connection

    def __init__(self) -> None:
        self.is_fresh = True
        """Whether the first message is still to come."""
        self._served = float("-inf")

    def begin(self, connection: Connection, now: float) -> None:
        """Set the connection, made at ``now``."""
        self.connection = connection
        self.counts_down = connection.features.counts_rdy_down
        self.last_message = self._rdy_since = now

    def peer(self) -> Peer:
        """Return the current facts."""
        connection = self.connection
        return Peer(
            address=connection.address,
            rdy=connection.ready,
            max_rdy=connection.features.max_rdy_count,
            in_flight=connection.in_flight,
            received=connection.received,
            counts_down=self.counts_down,
            fresh=self.is_fresh,
            last_message=self.last_message,
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
    """Sends RDY by the policies of backoff and distribution. Times are the event loop's.

    The controller has no timer: call ``plan`` after each change, and ``check`` from time to time.
    After ``stop`` it sends nothing, because nsqd ignores RDY after CLS.
    """

    def __init__(self, config: ConsumerConfig, rng: Random) -> None:
        self.budget = ByteBudget(config.max_in_flight_bytes, config.max_in_flight)
        self.is_running = True
        """True without backoff; results then change RDY only if messages failed."""
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

    def plan(self, links: Mapping[Address, RdyLink], now: float) -> None:
        """Send the RDY values required by the current facts."""
        if self._stopped:
            return
        plan = self._planner.plan(
            [each.peer() for each in links.values()],
            max_in_flight=self.budget.limit,
            mode=Mode.STOPPED if self.is_behind else self._backoff.mode,
            now=now,
            rng=self._rng,
        )
        for address, count in plan.items():
            links[address].set_ready(count, now)

    def record(self, *, finished: int, failed: int, requeued: int, now: float) -> bool:
        """Count results for backoff; return whether to plan RDY again."""
        change = self._backoff.record(
            succeeded=finished, failed=failed, neutral=requeued, now=now, rng=self._rng
        )
        if change:
            log.info("backoff: %s", change)
            self.is_running = self._backoff.mode is Mode.RUNNING
        return bool(change)

    def check(self, now: float) -> None:
        """End the backoff wait if its time is over."""
        if change := self._backoff.end_wait(now):
            log.info("backoff: %s", change)

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
