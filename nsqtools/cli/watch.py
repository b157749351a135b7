"""Asks the stop rule whenever its answer may have changed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import UnreachableError
from nsqtools.names import is_ephemeral
from nsqtools.policy.stopping import StopRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.cli.consumers import Consumers
    from nsqtools.config import ConsumerConfig, StopOptions
    from nsqtools.engine.lookup import Backlog, Silence
    from nsqtools.engine.membership import Subscription

log = logging.getLogger(__name__)

# How often an nsqd is asked whether its channel is empty, and a sink whether it has settled all.
_INTERVAL = 0.5
# Shortest time between two looks at the stop conditions.
_MIN_WATCH = 0.05
# Stands in for --until-empty where no HTTP API answers.
_EMPTY_IDLE = 5.0
# How long an nsqd may take to hear of the last messages that were finished, and to say so.
_LEFT_TIMEOUT = 5.0
_LEFT_LOOKS = 3


class Watch:
    """Stops ``consumers`` when a limit is reached.

    ``flush`` asks the sink to settle soon what it only gathers: such messages keep a topic from
    being empty, and are no sign of life of one that is silent. ``complete`` says whether all
    topics are known.
    """

    def __init__(
        self,
        options: StopOptions,
        config: ConsumerConfig,
        consumers: Consumers,
        *,
        flush: Callable[[], object],
        complete: Callable[[], bool],
        silence: Silence | None,
    ) -> None:
        self._options = options
        self._config = config
        self._consumers = consumers
        self._flush = flush
        self._complete = complete
        self._silence = silence
        self._rule = StopRule(
            max_duration=options.max_duration or None,
            idle_timeout=options.idle_timeout or None,
            until_empty=options.until_empty,
        )
        self._backlogs: dict[Subscription, Backlog] = {}
        self._empties = 0
        self.cut_short = False
        """Whether the time was over before the topics were seen empty, as was asked for."""

    async def run(self) -> None:
        """Watch until a limit is reached, or return at once if there is none."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            due = self._decide(started, now := loop.time())
            if due is None:
                return
            await asyncio.sleep(max(due - now, _MIN_WATCH))
            if self._rule.until_empty:
                await self._look()

    async def left(self) -> int | None:
        """How many messages nsqds still hold, after all topics were drained; None if unknown."""
        count = 0
        try:
            async with asyncio.timeout(_LEFT_TIMEOUT):
                for look in range(_LEFT_LOOKS):
                    if look:
                        await asyncio.sleep(_INTERVAL / 2)
                    subscriptions = self._consumers.subscriptions()
                    if any(is_ephemeral(each.channel) for each in subscriptions):
                        return None  # it went with us, and its messages
                    if not (count := await self._ask(subscriptions)):
                        return 0
        except (UnreachableError, TimeoutError):
            return None
        return count

    def _decide(self, started: float, now: float) -> float | None:
        """When to look again, or None; it has stopped everything if a limit is reached."""
        rule = self._rule
        totals = self._consumers.totals()
        # While messages are in flight a slow reader, not the topic, is what is silent.
        busy = bool(totals.in_flight)
        last = max(started, totals.last_message)
        alive = now if busy else last
        if reason := rule.decide(
            started=started, last_message=alive, empties=self._empties, now=now
        ):
            log.info("stopping: %s", reason)
            self.cut_short = reason == "max-duration" and self._options.until_empty
            self._consumers.out_of_time = True
            self._consumers.stop()
            return None
        quiet = rule.idle_timeout is not None and now >= last + rule.idle_timeout
        due = rule.next_check(started=started, last_message=alive if quiet else last)
        if busy and (quiet or rule.until_empty):
            self._flush()
        if rule.until_empty or (busy and quiet):
            due = min(now + _INTERVAL, due or float("inf"))
        return due

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
        if self._consumers.totals().in_flight or not self._complete():
            return True
        left = await self._ask(self._consumers.subscriptions())
        return bool(left or self._consumers.totals().in_flight)

    async def _ask(self, subscriptions: list[Subscription]) -> int:
        from nsqtools.engine.lookup import Backlog

        urls = self._options.nsqd_http_address
        self._backlogs = {
            each: self._backlogs.get(each) or Backlog(each, self._config, urls, self._silence)
            for each in subscriptions
        }

        async def count(backlog: Backlog) -> int:
            async with self._consumers.requests:
                return await backlog.count()

        return sum(await asyncio.gather(*map(count, self._backlogs.values())))
