"""The stop conditions of a run: number of messages, duration, idle time, empty channels."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from nsqtools.names import is_ephemeral
from nsqtools.policy.stopping import Left, StopRule
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.config import StopOptions
    from nsqtools.engine.connector import Subscription
    from nsqtools.engine.handler import Batch
    from nsqtools.engine.subscriptions import Subscriptions
    from nsqtools.policy.stopping import StopReason

log = logging.getLogger(__name__)
status = logging.getLogger("nsqtools.waiting")
"""What --until-empty waits for."""

# How often nsqds are asked for the depth, and the handler to flush, in seconds.
_INTERVAL = 0.5
# Minimum interval between two checks of the stop conditions.
_MIN_WATCH = 0.05
# Minimum interval between two lines about what is waited for.
_STATUS_INTERVAL = 30.0
# How often a channel is looked at until nsqd has processed the last FINs.
_LEFT_LOOKS = 3


class Count:
    """Lets ``count`` messages be finished, and requeues those beyond it at once.

    Only finished messages count, however late they are finished. Messages that are requeued, or
    whose connection is lost, make room for others.

    ``on_remaining`` is called when ``remaining`` has changed, before the taken messages are
    finished. A consumer that sets its max_in_flight to it gets no message too many from a single
    nsqd, because RDY is sent before FIN. ``on_done`` is called once all are finished.
    """

    def __init__(
        self, count: int, on_remaining: Callable[[], object], on_done: Callable[[], object]
    ) -> None:
        self.remaining = count
        self._unfinished = count
        self._on_remaining = on_remaining
        self._on_done = on_done

    def take(self, batch: Batch) -> bool:
        """Cut the batch down to the remaining count; returns whether any message is left in it."""
        if len(batch) > self.remaining:
            batch.keep(self.remaining)
        if taken := len(batch):
            self.remaining -= taken
            self._on_remaining()
            batch.watch(self._settled)
        return bool(taken)

    def refused(self, count: int) -> None:
        """Note that messages counted as finished are not: nsqd refused their FIN."""
        self._unfinished += count
        self._settled(0, count)

    @property
    def unfinished(self) -> int:
        """How many messages are still to be finished."""
        return self._unfinished

    def _settled(self, finished: int, returned: int) -> None:
        if returned:
            self.remaining += returned
            self._on_remaining()
        self._unfinished -= finished
        if finished and not self._unfinished:
            self._on_done()


class Conditions:
    """Decides when duration, idle time or empty channels end a run, and counts remaining messages.

    ``left_of`` asks nsqds how many messages they hold for a subscription. ``unlisted()`` names the
    servers whose topics are not known.
    """

    def __init__(
        self,
        options: StopOptions,
        subscriptions: Subscriptions,
        *,
        left_of: Callable[[Subscription], Awaitable[Left]],
        unlisted: Callable[[], tuple[str, ...]],
    ) -> None:
        self._subscriptions = subscriptions
        self._left_of = left_of
        self._unlisted = unlisted
        self._rule = StopRule(
            max_duration=options.max_duration or None,
            idle_timeout=options.idle_timeout or None,
            until_empty=options.until_empty,
        )
        self._empties = 0
        self._silent_since: float | None = None
        self._unknown: tuple[str, ...] = ()
        self._warned: set[str] = set()
        self._last_message = 0.0
        self._said = ""
        self._say_at = 0.0

    async def met(self) -> StopReason | None:
        """Wait for the first condition that is met; returns None at once if there is none."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            now, rule, totals = loop.time(), self._rule, self._subscriptions.stats()
            # While messages are in flight the handler is slow, and the topic is not idle.
            busy = bool(totals.in_flight)
            last = max(started, totals.last_message)
            alive = now if busy else last
            if reason := rule.decide(
                started=started,
                last_message=alive,
                empties=self._empties,
                now=now,
                silent_since=self._silent_since,
            ):
                return reason
            quiet = rule.idle_timeout is not None and now >= last + rule.idle_timeout
            due = rule.next_check(started=started, last_message=alive if quiet else last)
            if busy and (quiet or rule.until_empty):
                # Messages that the handler only collects keep the channel from being empty.
                self._subscriptions.handler.flush()
            if rule.until_empty or (busy and quiet):
                due = min(now + _INTERVAL, due or float("inf"))
            if due is None:
                return None
            await asyncio.sleep(max(due - now, _MIN_WATCH))
            if rule.until_empty:
                limit = rule.next_check(started=started, last_message=alive)
                with suppress(TimeoutError):  # a server that hangs does not make the run longer
                    async with asyncio.timeout_at(limit):
                        await self._look()

    async def left(self) -> Left:
        """Return what the nsqds hold for all topics now."""
        found = await call_each(self._subscriptions.current(), self._left_of)
        return sum(found, Left(unknown=self._unlisted()))

    async def left_at_end(self) -> Left | None:
        """Return what is left after all topics were drained; None if it cannot be known."""
        if any(is_ephemeral(each.channel) for each in self._subscriptions.current()):
            return None  # nsqd has deleted the channel with our connection
        left = await self.left()
        for _ in range(_LEFT_LOOKS - 1):
            if left.unknown or not left.messages:
                break
            await asyncio.sleep(_INTERVAL / 2)
            left = await self.left()
        return left

    async def _look(self) -> None:
        """Note how many consecutive checks find every channel empty, or servers silent."""
        # While messages are in flight here, there is no need to ask.
        left = None
        if not self._subscriptions.in_flight:
            left = await self.left()
        if left is None or self._subscriptions.in_flight:
            self._empties, self._silent_since = 0, None
            return
        self._warn(left.unknown)
        if left.messages:
            self._empties, self._silent_since = 0, None
            self._say(left)
        elif left.unknown:
            self._empties = 0
            if self._silent_since is None:
                self._silent_since = asyncio.get_running_loop().time()
        else:
            self._empties, self._silent_since = self._empties + 1, None

    def _warn(self, unknown: tuple[str, ...]) -> None:
        """Warn once of each server that two checks in a row got no answer from."""
        self._warned.intersection_update(unknown)
        for server in unknown:
            if server in self._unknown and server not in self._warned:
                log.warning("--until-empty: unknown whether the channel is empty: %s", server)
                self._warned.add(server)
        self._unknown = unknown

    def _say(self, left: Left) -> None:
        """Say what is waited for, if no message came since the check before."""
        last, now = self._subscriptions.stats().last_message, asyncio.get_running_loop().time()
        if last == self._last_message and str(left) != self._said and now >= self._say_at:
            status.info("--until-empty: waiting for messages: %s", left)
            self._said, self._say_at = str(left), now + _STATUS_INTERVAL
        self._last_message = last
