"""The Runner: consumes many topics with one handler."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.config import ConsumerConfig, StopOptions
from nsqtools.engine.conditions import Conditions, Count
from nsqtools.engine.connector import Subscription, check_lookupds
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.handler import Handler, check_handler
from nsqtools.engine.outages import OutageLog
from nsqtools.engine.subscriptions import Subscriptions
from nsqtools.errors import ConfigError, NSQError, UnreachableError
from nsqtools.names import Address, check_list, check_name, check_seconds, check_type, is_ephemeral
from nsqtools.net.connection import Connection
from nsqtools.policy.stopping import Left
from nsqtools.tasks import Tasks, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from nsqtools.engine.consumer import ConsumerStats
    from nsqtools.engine.lookup import Backlog, TopicFinder
    from nsqtools.net.connection import Dial
    from nsqtools.policy.stopping import StopReason
    from nsqtools.policy.topics import Change

log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Maximum requests to one server at a time, so that many topics need few descriptors for them."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What ``Runner.run`` returns: why the run ended, what was consumed, and what was not.

    Fail if a message was lost or a topic was never reached::

        outcome = asyncio.run(runner.run())
        print(outcome.reason, outcome.totals.finished)
        if outcome.lost or outcome.unreached:
            sys.exit(f"lost {outcome.lost}, not reached: {outcome.unreached}")
    """

    reason: StopReason
    """The stop condition that was met, or "stopped"."""
    totals: ConsumerStats
    by_topic: Mapping[str, ConsumerStats]
    """By topic, dropped topics included."""
    lost: int
    """Messages that the handler gave up without storing them anywhere."""
    left_behind: int
    """Messages that stay in nsqd because no endpoint or consumer can take them."""
    left: int | None
    """Messages left if the channels were not empty in time, None if unknown; with --count, messages
    that nsqd delivers again because their FIN came too late.
    """
    unknown: Sequence[str]
    """Servers that do not say how many messages are left, each with the reason."""
    unreached: Sequence[str]
    """Topics that could never be consumed."""
    undrained: Sequence[str]
    """Topics that disappeared before the handler could settle all their messages."""


class Runner:
    """Consumes topics with one handler until a stop condition is met, or until ``stop``.

    ``topics`` are names, or a pattern: then all topics of ``lookupds`` that match it are consumed,
    as they come and go. Give either ``nsqds`` or ``lookupds``, not both. Every ``refresh`` seconds
    topics whose start failed are retried and a pattern is matched again; ``timeouts`` are for the
    connection and for the whole request of that lookup, in seconds. With ``patient``, as the
    commands have it if no condition stops them, the run waits for servers that cannot be reached at
    the start.

    ``on_reached`` is called whenever a topic is reached, or no topic exists, and ``on_stopping``
    once, when the run begins to stop.

    Raises ConfigError for invalid names, addresses and values.

    Consume two topics until their channels are empty, for at most a minute::

        stop = StopOptions(until_empty=True, max_duration=60.0)
        nsqds = [Address("127.0.0.1", 4150)]
        runner = Runner(["events", "users"], "print", handler, nsqds=nsqds, stop=stop)
        outcome = asyncio.run(runner.run())
        print(outcome.totals.finished, "messages", outcome.reason)
    """

    def __init__(
        self,
        topics: Sequence[str] | re.Pattern[str],
        channel: str,
        handler: Handler,
        config: ConsumerConfig | None = None,
        *,
        nsqds: Sequence[Address] = (),
        lookupds: Sequence[str] = (),
        stop: StopOptions | None = None,
        refresh: float = 60.0,
        timeouts: tuple[float, float] = (2.0, 5.0),
        patient: bool = False,
        rng: Random | None = None,
        on_reached: Callable[[], object] = lambda: None,
        on_stopping: Callable[[], object] = lambda: None,
        dial: Dial = Connection.open,
    ) -> None:
        # size: a run has many arguments, and all are checked before anything begins
        config = ConsumerConfig() if config is None else config
        stop = StopOptions() if stop is None else stop
        check_handler(handler)
        check_type("config", config, ConsumerConfig)
        check_type("stop", stop, StopOptions)
        check_name("channel", channel)
        check_list("nsqds", nsqds, Address)
        check_lookupds(lookupds)
        check_seconds("refresh", refresh)
        check_type("timeouts", timeouts, tuple)
        check_seconds("timeouts", *timeouts)
        _check_http(stop, nsqds)
        self._config = config = _within(stop, config)
        self._channel = channel
        self._nsqds, self._lookupds = tuple(nsqds), tuple(lookupds)
        self._handler = handler
        self._outages = OutageLog()
        self._make_consumer = partial(
            Consumer, config=config, rng=rng, dial=dial, outages=self._outages, patient=patient
        )
        self._stop_options, self._refresh = stop, refresh
        self._on_reached, self._on_stopping, self._patient = on_reached, on_stopping, patient
        self._requests = defaultdict[str, asyncio.Semaphore](partial(asyncio.Semaphore, _AT_ONCE))
        self._backlogs: dict[str, Backlog] = {}
        self._finder: TopicFinder | None = None
        self._named: list[Subscription] = []
        if isinstance(topics, re.Pattern):
            self._finder = self._find_by(topics, timeouts)
        else:
            check_list("topics", topics, str)
            self._named = [self._subscription(name) for name in dict.fromkeys(topics)]
            if not topics:
                raise ConfigError("topics: expected at least one")
        self._subscriptions = self._subscribe()
        self._conditions = Conditions(
            stop,
            self._subscriptions,
            left_of=self._left_of,
            unlisted=lambda: self._finder.unknown if self._finder else (),
        )
        self._tasks = Tasks(self._fail)
        self._errors: list[BaseException] = []
        self._ending = asyncio.Event()
        self._reason: StopReason = "stopped"
        self._stop_asked = self._at_once = self._is_open = False
        self._left: Left | None = Left()
        self._warnings: dict[str, str] = {}
        """Warnings of what happens once a topic is reached, by topic."""

    async def run(self) -> RunOutcome:
        """Open the handler, consume until the end, close the handler.

        Raises UnreachableError if no topic can be reached at the start, unless ``patient``, and
        the handler's errors: those of ``open``, ``failed`` and ``close``, of ``join`` if no topic
        could be joined, and of the final ``drain``. Cancelling drops the connections and all
        unsettled messages.
        """
        try:
            is_open = await interruptible(self._handler.open(), self._ending)
            self._is_open = is_open and not self._ending.is_set()
            if self._is_open:
                await self._consume()
        except BaseException as error:
            at_once = self._at_once or isinstance(error, asyncio.CancelledError)
            try:
                await self._handler.close(at_once=at_once)
            except NSQError as another:  # the first error is raised
                log.error("%s", another)
            raise
        await self._handler.close(at_once=self._at_once)
        left = self._left
        return RunOutcome(
            reason=self._reason,
            totals=self._subscriptions.stats(),
            by_topic=self._subscriptions.by_topic(),
            lost=self._handler.lost,
            left_behind=self._handler.left_behind,
            left=left.messages if left and not left.unknown else None,
            unknown=left.unknown if left else (),
            unreached=self._subscriptions.unreached(),
            undrained=sorted(self._subscriptions.undrained),
        )

    def stop(self) -> None:
        """Drain all topics and let ``run`` return; a second call has no effect."""
        self._stop_asked = True
        self._end("stopped")

    def leave(self) -> None:
        """Let ``run`` return at once; nsqd redelivers the messages in flight."""
        self._at_once = True
        self.stop()
        self._subscriptions.leave()

    @property
    def is_open(self) -> bool:
        """Whether the handler is open, so that messages may arrive."""
        return self._is_open

    @property
    def topic_count(self) -> int:
        """The current number of topics."""
        return len(self._subscriptions)

    def stats(self) -> ConsumerStats:
        """Return the totals of all topics."""
        return self._subscriptions.stats()

    def by_topic(self) -> dict[str, ConsumerStats]:
        """Return the totals by topic, dropped topics included."""
        return self._subscriptions.by_topic()

    async def backlog(self) -> int:
        """Return the depth + in flight + deferred of the channel over all nsqds.

        Raises UnreachableError if an nsqd does not answer over HTTP, or does not have the channel.
        """
        left = await self._conditions.left()
        if left.unknown:
            raise UnreachableError("; ".join(left.unknown))
        return left.messages

    async def _consume(self) -> None:
        subscriptions, failed = self._subscriptions, self._handler.failed
        if failed:
            failed.add_done_callback(lambda _: self._end("stopped"))
        try:
            for subscription in self._named:
                subscriptions.add(subscription)
            self._tasks.begin(self._watch())
            if self._finder:
                self._tasks.begin(self._discover(self._finder))
            await self._ending.wait()
            await self._tasks.close()
            await subscriptions.stop(out_of_time=self._reason not in ("stopped", "count"))
        finally:
            await self._tasks.close()
            subscriptions.leave()
            await subscriptions.stop()
        if failed and failed.done():
            failed.result()
        if self._errors:
            for error in self._errors[1:]:
                is_ours = isinstance(error, NSQError)
                log.error("%s", error, exc_info=None if is_ours else error)
            raise self._errors[0]
        if self._reason == "count" and self._subscriptions.count:
            self._left = Left(self._subscriptions.count.unfinished)
        is_early = self._reason in ("max-duration", "unknown") and not self._stop_asked
        if self._stop_options.until_empty and is_early:
            self._left = await self._conditions.left_at_end()

    async def _watch(self) -> None:
        if reason := await self._conditions.met():
            log.info("stopping: %s", reason)
            self._end(reason)

    async def _discover(self, finder: TopicFinder) -> None:
        """Add and drop topics as nsqlookupds list them."""
        told, pause = False, 0.5
        while True:
            await finder.look(self._follow, patient=self._patient)
            if not self._subscriptions:
                if finder.answered and not told:
                    log.warning("--topic-pattern: no topic matches")
                    told = True
                self._on_reached()
            pause = self._refresh if finder.answered else min(2 * pause, self._refresh)
            await asyncio.sleep(pause)

    def _follow(self, change: Change) -> None:
        for topic in change.gone:
            log.info("topic %s: no longer listed by nsqlookupd", topic)
            self._subscriptions.drop(topic)
            self._backlogs.pop(topic, None)
        for topic in change.appeared:
            log.info("topic %s: listed by nsqlookupd", topic)
            self._subscriptions.add(self._subscription(topic))

    def _subscription(self, topic: str) -> Subscription:
        return Subscription(
            topic=topic, channel=self._channel, nsqds=self._nsqds, lookupds=self._lookupds
        )

    def _find_by(self, pattern: re.Pattern[str], timeouts: tuple[float, float]) -> TopicFinder:
        check_type("topics", pattern.pattern, str)
        if self._nsqds or not self._lookupds:
            raise ConfigError("a topic pattern needs nsqlookupd addresses, and no nsqd addresses")
        from nsqtools.engine.lookup import TopicFinder  # loads net.http

        return TopicFinder(
            self._lookupds,
            pattern,
            self._config,
            refresh=self._refresh,
            timeouts=timeouts,
            outages=self._outages,
        )

    def _subscribe(self) -> Subscriptions:
        count: Count | None = None
        if number := self._stop_options.count:
            count = Count(
                number,
                on_remaining=lambda: self._subscriptions.limit(),
                on_done=lambda: self._end("count"),
            )
        return Subscriptions(
            self._handler,
            self._consumer_for,
            max_in_flight=self._config.max_in_flight,
            retry=self._refresh,
            all_fail=self._finder is None,
            on_reached=self._on_reached,
            on_error=self._fail,
            count=count,
            exists=self._exists,
        )

    def _consumer_for(
        self, subscription: Subscription, handler: Handler, on_reached: Callable[[], object]
    ) -> Consumer:
        def reached() -> None:
            if warning := self._warnings.pop(subscription.topic, ""):
                log.warning("%s", warning)
            on_reached()

        return self._make_consumer(
            subscription,
            handler,
            find=partial(self._find, subscription.topic),
            on_reached=reached,
        )

    async def _find(self, topic: str, lookupd: str) -> Iterable[Address]:
        """The nsqds that an nsqlookupd lists."""
        from nsqtools.engine.lookup import producers_at  # loads net.http

        async with self._requests[lookupd]:
            return await producers_at(lookupd, topic, self._config, self._outages)

    async def _exists(self, subscription: Subscription) -> bool:
        """Whether an nsqd has the topic; only looked up where it matters, otherwise true."""
        until_empty = self._stop_options.until_empty
        if self._finder or not (until_empty or is_ephemeral(self._channel)):
            return True
        backlog = self._backlog(subscription)
        async with self._requests["/stats"]:
            exists = await backlog.exists()
        self._warnings[subscription.topic] = backlog.warning
        return exists or not until_empty

    async def _left_of(self, subscription: Subscription) -> Left:
        async with self._requests["/stats"]:
            return await self._backlog(subscription).left()

    def _backlog(self, subscription: Subscription) -> Backlog:
        from nsqtools.engine.lookup import Backlog  # loads net.http

        if not (known := self._backlogs.get(subscription.topic)):
            urls = self._stop_options.nsqd_http_address
            known = Backlog(subscription, self._config, urls, self._outages)
            self._backlogs[subscription.topic] = known
        return known

    def _end(self, reason: StopReason) -> None:
        """Begin to stop; the first reason is reported."""
        if not self._ending.is_set():
            self._reason = reason
            self._ending.set()
            self._on_stopping()

    def _fail(self, error: BaseException) -> None:
        """Begin to stop because of an error; ``run`` raises the first one."""
        self._errors.append(error)
        self._end("stopped")


def _check_http(stop: StopOptions, nsqds: Sequence[Address]) -> None:
    given, needed = len(set(stop.nsqd_http_address)), len(set(nsqds))
    if stop.until_empty and 0 < given < needed:
        raise ConfigError(f"--nsqd-http-address is given for {given} of {needed} nsqds")


def _within(stop: StopOptions, config: ConsumerConfig) -> ConsumerConfig:
    """The configuration with no more messages in flight than are to be consumed."""
    if not config.max_in_flight:
        raise ConfigError(
            f"{config.spelled('max_in_flight')}: 0 receives no messages: give 1 or more"
        )
    if not stop.count:
        return config
    return config.with_values(max_in_flight=min(config.max_in_flight, stop.count))
