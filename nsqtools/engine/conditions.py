"""The stop conditions of a run: number of messages, duration, idle time, empty channels."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import UnreachableError
from nsqtools.names import is_ephemeral
from nsqtools.policy.stopping import StopRule
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.config import StopOptions
    from nsqtools.engine.handler import Batch
    from nsqtools.engine.membership import Subscription
    from nsqtools.engine.subscriptions import Subscriptions
    from nsqtools.policy.stopping import StopReason

log = logging.getLogger(__name__)

# How often nsqds are asked for the depth, and the handler to flush, in seconds.
_INTERVAL = 0.5
# Minimum interval between two checks of the stop conditions.
_MIN_WATCH = 0.05
# Replaces --until-empty where no HTTP API answers: an idle timeout in seconds.
_EMPTY_IDLE = 5.0
# How long nsqd may take to process the last FINs and to report it.
_LEFT_TIMEOUT = 5.0
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

    ``backlog_of`` asks nsqds how many messages they hold for a subscription, or raises
    UnreachableError. ``complete()`` says whether all topics are known.
    """

    def __init__(
        self,
        options: StopOptions,
        subscriptions: Subscriptions,
        *,
        backlog_of: Callable[[Subscription], Awaitable[int]],
        complete: Callable[[], bool],
    ) -> None:
        self._options = options
        self._subscriptions = subscriptions
        self._backlog_of = backlog_of
        self._complete = complete
        self._rule = StopRule(
            max_duration=options.max_duration or None,
            idle_timeout=options.idle_timeout or None,
            until_empty=options.until_empty,
        )
        self._empties = 0

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
                started=started, last_message=alive, empties=self._empties, now=now
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
                await self._look()

    async def backlog(self) -> int:
        """Return depth + in flight + deferred over all nsqds; raises UnreachableError.

        A channel that nsqd has not created yet counts as one message.
        """
        return sum(await call_each(self._subscriptions.current(), self._backlog_of))

    async def left(self) -> int | None:
        """Return the backlog after all topics were drained; None if it is unknown."""
        if any(is_ephemeral(each.channel) for each in self._subscriptions.current()):
            return None  # nsqd has deleted the channel with our connection
        count = 0
        try:
            async with asyncio.timeout(_LEFT_TIMEOUT):
                for look in range(_LEFT_LOOKS):
                    if look:
                        await asyncio.sleep(_INTERVAL / 2)
                    if not (count := await self.backlog()):
                        break
        except (UnreachableError, TimeoutError):
            return None
        return count

    async def _look(self) -> None:
        """Count consecutive checks that find every channel empty."""
        try:
            self._empties = 0 if await self._is_any_left() else self._empties + 1
        except UnreachableError as error:
            idle = min(self._options.idle_timeout or _EMPTY_IDLE, _EMPTY_IDLE)
            log.warning(
                "--until-empty: the depth is unknown (%s): "
                "stopping after %g s without a message instead",
                error,
                idle,
            )
            self._rule = replace(self._rule, until_empty=False, idle_timeout=idle)

    async def _is_any_left(self) -> bool:
        # While messages are in flight here, there is no need to ask.
        if self._subscriptions.in_flight or not self._complete():
            return True
        left = await self.backlog()
        return bool(left or self._subscriptions.in_flight)
