"""The stop conditions that depend on time and on the messages left in nsqds."""

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
"""Logs the messages awaited by --until-empty."""

# Seconds between two requests for the depth of nsqds, and between two flushes of the handler.
_INTERVAL = 0.5
# Minimum interval between two checks of the stop conditions, in seconds.
_MIN_WATCH = 0.05
# Minimum interval between two status lines of --until-empty, in seconds.
_STATUS_INTERVAL = 30.0
# Maximum looks at the channels at the end, until nsqd has processed the last FINs.
_LEFT_LOOKS = 3


class Backlogs:
    """Asks nsqds for the messages left in a run's topics, a few topics at a time."""

    def __init__(self, config: ConsumerConfig, urls: Sequence[str], outages: OutageLog) -> None:
        self._config, self._urls, self._outages = config, urls, outages
        self._at_once = asyncio.Semaphore(MAX_REQUESTS)
        self._backlogs: dict[str, Backlog] = {}

    async def left(self, subscription: Subscription) -> Left:
        """Return the subscription's messages on all nsqds."""
        async with self._at_once:
            return await self._of(subscription).left()

    async def find(self, subscription: Subscription) -> tuple[bool, str]:
        """Return whether an nsqd has the topic, and a warning if consuming would lose messages."""
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

    With a topic pattern, ``finder`` names the servers with unknown topics.
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
        """Wait until a condition is met, and return it; return None at once without conditions."""
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
                # Messages still collected by the handler keep the channel from being empty.
                self._handler.flush()
            if rule.until_empty or (busy and quiet):
                due = min(now + _INTERVAL, due or float("inf"))
            if due is None:
                return None
            await asyncio.sleep(max(due - now, _MIN_WATCH))
            if rule.until_empty:
                limit = rule.next_check(started=started, last_message=alive)
                try:  # a hanging server must not make the run longer
                    async with asyncio.timeout_at(limit) as timeout:
                        await self._look()
                except TimeoutError:
                    if not timeout.expired():
                        raise

    async def left(self) -> Left:
        """Return the messages of all topics now on the nsqds."""
        found = await call_each(self._topics.active, self._backlogs.left)
        return sum(found, Left(unknown=self._finder.unknown if self._finder else ()))

    async def left_at_end(self) -> Left | None:
        """Return the messages left after draining all topics; None if they cannot be known."""
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
        """Count consecutive checks with every channel empty; note since when servers are silent."""
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
        """Warn once of each server unknown in two consecutive checks."""
        self._warned.intersection_update(unknown)
        for server in unknown:
            if server in self._unknown and server not in self._warned:
                log.warning("--until-empty: unknown whether the channel is empty: %s", server)
                self._warned.add(server)
        self._unknown = unknown

    def _log_status(self, left: Left) -> None:
        """Log the awaited messages, unless a message has come since the previous check."""
        last, now = self._topics.stats().last_message, asyncio.get_running_loop().time()
        if (
            last == self._last_message
            and str(left) != self._last_status
            and now >= self._next_status
        ):
            status.info("--until-empty: waiting for messages: %s", left)
            self._last_status, self._next_status = str(left), now + _STATUS_INTERVAL
        self._last_message = last
