"""The stop conditions of a run: a number of messages, a time, silence, or empty channels."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.engine.concurrency import call_each
from nsqtools.errors import UnreachableError
from nsqtools.names import is_ephemeral
from nsqtools.policy.stopping import StopRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.config import StopOptions
    from nsqtools.engine.handler import Batch
    from nsqtools.engine.lookup import Backlog
    from nsqtools.engine.membership import Subscription
    from nsqtools.engine.subscriptions import Subscriptions
    from nsqtools.policy.stopping import Reason

log = logging.getLogger(__name__)

# How often an nsqd is asked whether its channel is empty, and a handler whether it settled all.
_INTERVAL = 0.5
# Shortest time between two looks at the stop conditions.
_MIN_WATCH = 0.05
# Stands in for --until-empty where no HTTP API answers.
_EMPTY_IDLE = 5.0
# How long an nsqd may take to hear of the last messages that were finished, and to say so.
_LEFT_TIMEOUT = 5.0
_LEFT_LOOKS = 3


class Count:
    """Lets a number of messages be finished, and no more: what comes beyond goes back at once.

    Only what was finished counts, however late that is: what is requeued, or was delivered on a
    connection that is lost by then, makes room for as many others.

    ``on_remaining`` hears how many may still be taken, before those that were are finished: a
    consumer that sets its max_in_flight to that is sent no message too many by a single nsqd,
    because the RDY leaves ahead of the FINs. ``on_done`` is called once all are finished.
    """

    def __init__(
        self, count: int, on_remaining: Callable[[int], object], on_done: Callable[[], object]
    ) -> None:
        self.remaining = count
        self._unfinished = count
        self._on_remaining = on_remaining
        self._on_done = on_done

    def take(self, batch: Batch) -> bool:
        """Cut a batch down to what may still be taken; whether that is anything."""
        if len(batch) > self.remaining:
            batch.keep(self.remaining)
        if taken := len(batch):
            self.remaining -= taken
            self._on_remaining(self.remaining)
            batch.watch(self._settled)
        return bool(taken)

    def _settled(self, finished: int, returned: int) -> None:
        if returned:
            self.remaining += returned
            self._on_remaining(self.remaining)
        self._unfinished -= finished
        if finished and not self._unfinished:
            self._on_done()


class Conditions:
    """Knows when time, silence or empty channels end a run, and what is left in channels.

    ``complete`` says whether all topics are known.
    """

    def __init__(
        self, options: StopOptions, subscriptions: Subscriptions, *, complete: Callable[[], bool]
    ) -> None:
        self._options = options
        self._subscriptions = subscriptions
        self._complete = complete
        self._rule = StopRule(
            max_duration=options.max_duration or None,
            idle_timeout=options.idle_timeout or None,
            until_empty=options.until_empty,
        )
        self._backlogs: dict[Subscription, Backlog] = {}
        self._empties = 0

    async def met(self) -> Reason | None:
        """Wait for the first that is met; None, at once, if there is none to wait for."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            now, rule, totals = loop.time(), self._rule, self._subscriptions.stats()
            # While messages are in flight a slow reader, not the topic, is what is silent.
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
                # What is only gathered keeps a topic from being empty, and is no sign of life.
                self._subscriptions.handler.flush()
            if rule.until_empty or (busy and quiet):
                due = min(now + _INTERVAL, due or float("inf"))
            if due is None:
                return None
            await asyncio.sleep(max(due - now, _MIN_WATCH))
            if rule.until_empty:
                await self._look()

    async def backlog(self) -> int:
        """How many messages nsqds hold: waiting, in flight and deferred; raises UnreachableError.

        A channel that nsqd has not made yet counts as one.
        """
        from nsqtools.engine.lookup import Backlog  # loads net.http

        topics, urls = self._subscriptions, self._options.nsqd_http_address
        self._backlogs = {
            each: self._backlogs.get(each) or Backlog(each, topics.config, urls, topics.silence)
            for each in topics.current()
        }

        async def count(backlog: Backlog) -> int:
            async with topics.descriptors.requests:
                return await backlog.count()

        return sum(await call_each(self._backlogs.values(), count))

    async def left(self) -> int | None:
        """The backlog after all topics were drained; None if it cannot be known."""
        if any(is_ephemeral(each.channel) for each in self._subscriptions.current()):
            return None  # it went with us, and its messages
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
        """Count looks in a row at which everything was empty."""
        try:
            self._empties = 0 if await self._is_any_left() else self._empties + 1
        except UnreachableError as error:
            idle = min(self._options.idle_timeout or _EMPTY_IDLE, _EMPTY_IDLE)
            log.warning(
                "--until-empty cannot see the depth (%s): "
                "stopping after %g s without a message instead",
                error,
                idle,
            )
            self._rule = replace(self._rule, until_empty=False, idle_timeout=idle)

    async def _is_any_left(self) -> bool:
        # What is in flight with us need not be asked for.
        if self._subscriptions.in_flight or not self._complete():
            return True
        left = await self.backlog()
        return bool(left or self._subscriptions.in_flight)
