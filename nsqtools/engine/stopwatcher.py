"""The stop conditions of a run that depend on time and on what nsqds hold."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqtools.engine.connector import MAX_REQUESTS
from nsqtools.names import is_ephemeral
from nsqtools.policy.stopping import Left, StopRule
from nsqtools.tasks import call_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.consuming import StopOptions
    from nsqtools.engine.connector import Subscription
    from nsqtools.engine.consumedtopics import ConsumedTopics
    from nsqtools.engine.handler import Handler
    from nsqtools.engine.lookup import Backlog, TopicFinder
    from nsqtools.engine.outages import OutageLog
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


class Backlogs:
    """Asks nsqds what they hold for the topics of a run, a few at a time."""

    def __init__(self, config: ConsumerConfig, urls: Sequence[str], outages: OutageLog) -> None:
        self._config, self._urls, self._outages = config, urls, outages
        self._at_once = asyncio.Semaphore(MAX_REQUESTS)
        self._backlogs: dict[str, Backlog] = {}

    async def left(self, subscription: Subscription) -> Left:
        """Return what nsqds hold for a subscription."""
        async with self._at_once:
            return await self._of(subscription).left()

    async def find(self, subscription: Subscription) -> tuple[bool, str]:
        """Return whether an nsqd has the topic, and a warning of what a consumer would do to it."""
        backlog = self._of(subscription)
        async with self._at_once:
            return await backlog.exists(), backlog.warning

    def forget(self, topic: str) -> None:
        """Forget the nsqds of a topic."""
        self._backlogs.pop(topic, None)

    def _of(self, subscription: Subscription) -> Backlog:
        from nsqtools.engine.lookup import Backlog  # loads net.http

        if not (backlog := self._backlogs.get(subscription.topic)):
            backlog = Backlog(subscription, self._config, self._urls, self._outages)
            self._backlogs[subscription.topic] = backlog
        return backlog


class StopWatcher:
    """Decides when duration, idle time or empty channels end a run, and counts remaining messages.

    A ``finder``, if topics match a pattern, names the servers whose topics are not known.
    """

    def __init__(
        self,
        options: StopOptions,
        topics: ConsumedTopics,
        handler: Handler,
        backlogs: Backlogs,
        finder: TopicFinder | None,
    ) -> None:
        self._topics = topics
        self._handler = handler
        self._backlogs = backlogs
        self._finder = finder
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
        self._last_status = ""
        self._next_status = 0.0

    async def met(self) -> StopReason | None:
        """Wait for the first condition that is met; returns None at once if there is none."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            now, rule, totals = loop.time(), self._rule, self._topics.stats()
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
                self._handler.flush()
            if rule.until_empty or (busy and quiet):
                due = min(now + _INTERVAL, due or float("inf"))
            if due is None:
                return None
            await asyncio.sleep(max(due - now, _MIN_WATCH))
            if rule.until_empty:
                limit = rule.next_check(started=started, last_message=alive)
                try:  # a server that hangs does not make the run longer
                    async with asyncio.timeout_at(limit) as timeout:
                        await self._look()
                except TimeoutError:
                    if not timeout.expired():
                        raise

    async def left(self) -> Left:
        """Return what the nsqds hold for all topics now."""
        found = await call_each(self._topics.active, self._backlogs.left)
        return sum(found, Left(unknown=self._finder.unknown if self._finder else ()))

    async def left_at_end(self) -> Left | None:
        """Return what is left after all topics were drained; None if it cannot be known."""
        if any(is_ephemeral(each.channel) for each in self._topics.active):
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
        if not self._topics.in_flight:
            left = await self.left()
        if left is None or self._topics.in_flight:
            self._empties, self._silent_since = 0, None
            return
        self._warn(left.unknown)
        if left.messages:
            self._empties, self._silent_since = 0, None
            self._log_status(left)
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

    def _log_status(self, left: Left) -> None:
        """Say what is waited for, if no message came since the check before."""
        last, now = self._topics.stats().last_message, asyncio.get_running_loop().time()
        if (
            last == self._last_message
            and str(left) != self._last_status
            and now >= self._next_status
        ):
            status.info("--until-empty: waiting for messages: %s", left)
            self._last_status, self._next_status = str(left), now + _STATUS_INTERVAL
        self._last_message = last
