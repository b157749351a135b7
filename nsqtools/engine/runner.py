"""The Runner: consumes many topics with one handler."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import StopOptions
from nsqtools.config.units import format_duration
from nsqtools.engine.connector import NsqdFinder, Subscription, check_lookupds
from nsqtools.engine.consumedtopics import ConsumedTopics
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.handler import check_handler, close_after_error
from nsqtools.engine.limit import MessageLimit
from nsqtools.engine.stopwatcher import Backlogs, StopWatcher
from nsqtools.errors import (
    ConfigError,
    LockedError,
    NSQError,
    OutputError,
    PeerError,
    UnreachableError,
)
from nsqtools.names import (
    Address,
    TopicPattern,
    check_list,
    check_name,
    check_seconds,
    check_type,
    is_ephemeral,
)
from nsqtools.net.connection import Connection
from nsqtools.policy.stopping import MAY_LEAVE_MESSAGES, OUT_OF_TIME, Left
from nsqtools.tasks import Tasks, interruptible, is_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from nsqtools.engine.consumedtopics import ConsumedTopic
    from nsqtools.engine.handler import Handler
    from nsqtools.engine.lookup import TopicFinder
    from nsqtools.engine.totals import ConsumerStats
    from nsqtools.net.connection import Dial
    from nsqtools.policy.stopping import StopReason
    from nsqtools.policy.topics import Change

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of ``Runner.run``: why the run ended, and which messages it consumed and left.

    Fail if a message was lost, a topic was never reached, or the last messages failed::

        outcome = asyncio.run(runner.run())
        print(outcome.reason, outcome.totals.finished)
        if outcome.lost or outcome.unreached or outcome.totals.failing:
            sys.exit(f"lost {outcome.lost}, not reached: {outcome.unreached}")
    """

    reason: StopReason
    """The stop condition that was met, or "stopped"."""
    totals: ConsumerStats
    by_topic: Mapping[str, ConsumerStats]
    """The totals by topic, dropped topics included."""
    lost: int
    """Messages given up by the handler without being stored anywhere."""
    left_behind: int
    """Messages staying in nsqd because no endpoint or consumer can take them."""
    left: int | None
    """Messages left if the channels were not empty in time, None if unknown."""
    unfinished: int
    """With a count, messages to be redelivered by nsqd because their FIN came too late."""
    unknown: Sequence[str]
    """Servers with an unknown number of messages left, each with the reason."""
    unreached: Sequence[str]
    """Topics not consumed because their start failed."""
    undrained: Sequence[str]
    """Topics dropped before the handler could settle all their messages."""


class Runner:
    """Consumes topics with one handler until a stop condition is met, or until ``stop``.

    ``topics`` are names, or a pattern: the run then consumes all matching topics of ``lookupds``,
    as they come and go. Give either ``nsqds`` or ``lookupds``, not both. Every ``refresh`` seconds
    the run retries topics after a failed start, and matches a pattern again; ``timeouts`` are for
    the connection and for the whole request of that lookup, in seconds. With ``patient`` the run
    waits for servers unreachable at the start; commands are patient unless a condition stops them.

    ``on_ready`` is called when a topic's consumer has started, and when no topic exists yet, so
    possibly several times. ``on_stopping`` is called once, when the run begins to stop.

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
        topics: Sequence[str] | TopicPattern,
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
        on_ready: Callable[[], object] = lambda: None,
        on_stopping: Callable[[], object] = lambda: None,
        dial: Dial = Connection.open,
    ) -> None:
        # size: checks a run's many arguments before anything begins
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
        self._nsqd_finder = NsqdFinder(config)
        self._outages = self._nsqd_finder.outages
        self._make_consumer = partial(
            Consumer, config=config, rng=rng, dial=dial, finder=self._nsqd_finder, patient=patient
        )
        self._stop_options, self._refresh = stop, refresh
        self._on_ready, self._on_stopping, self._patient = on_ready, on_stopping, patient
        self._finder: TopicFinder | None = None
        self._named: list[Subscription] = []
        if isinstance(topics, TopicPattern):
            self._finder = self._find_by(topics, timeouts)
        else:
            check_list("topics", topics, str)
            self._named = [self._subscription(name) for name in dict.fromkeys(topics)]
            if not topics:
                raise ConfigError("topics: expected at least one")
        self._topics = ConsumedTopics()
        self._limit = MessageLimit(stop.count, config.max_in_flight) if stop.count else None
        self._backlogs = Backlogs(config, stop.nsqd_http_address, self._outages)
        self._watcher = StopWatcher(stop, self._topics, handler, self._backlogs, self._finder)
        self._watching = Tasks(self._fail)
        self._consuming = Tasks(self._fail)
        self._errors: list[BaseException] = []
        self._ending = asyncio.Event()
        self._reason: StopReason = "stopped"
        self._stop_asked = self._is_open = self._any_started = self._has_run = False
        self._leaving = asyncio.Event()
        self._left: Left | None = Left()

    async def run(self) -> RunOutcome:
        """Open the handler, consume until the end, and close the handler.

        Raises UnreachableError if no topic can be reached at the start, unless ``patient``. Raises
        the handler's errors from ``open``, ``ended`` and ``close``, from the final ``drain``, and
        from ``join`` if no topic could be joined. Cancelling drops the connections and all
        unsettled messages.
        """
        if self._has_run:
            raise RuntimeError("a Runner runs once: make another one")
        self._has_run = True
        try:
            is_open = await interruptible(self._handler.open(), self._ending)
            self._is_open = is_open and not self._ending.is_set()
            if self._is_open:
                await self._consume()
        except BaseException as error:
            at_once = self._leaving.is_set() or is_cancelled()
            at_once = at_once or isinstance(error, asyncio.CancelledError)
            await close_after_error(self._handler, at_once=at_once)
            raise
        if self._leaving.is_set():
            await self._handler.close(at_once=True)
        else:
            await interruptible(self._handler.close(), self._leaving)
        left = self._left
        return RunOutcome(
            reason=self._reason,
            totals=self._topics.stats(),
            by_topic=self._topics.by_topic(),
            lost=self._handler.lost,
            left_behind=self._handler.left_behind,
            left=left.messages if left and not left.unknown else None,
            unfinished=self._limit.unfinished if self._limit and self._reason == "count" else 0,
            unknown=left.unknown if left else (),
            unreached=self._topics.unreached,
            undrained=sorted(self._topics.undrained),
        )

    def stop(self) -> None:
        """Drain all topics and let ``run`` return; a second call has no effect."""
        self._stop_asked = True
        self._end("stopped")

    def leave(self) -> None:
        """Let ``run`` return at once; nsqd redelivers the messages in flight."""
        self._leaving.set()
        self.stop()
        self._consuming.cancel()

    def set_max_in_flight(self, n: int) -> None:
        """Change ``max_in_flight`` of the consumers of all current topics, as Consumer does."""
        for topic in self._topics.current.values():
            if topic.consumer:
                topic.consumer.set_max_in_flight(n)

    @property
    def is_open(self) -> bool:
        """Whether the handler is open; messages may then arrive."""
        return self._is_open

    @property
    def topic_count(self) -> int:
        """The current number of topics."""
        return len(self._topics.current)

    def stats(self) -> ConsumerStats:
        """Return the totals of all topics."""
        return self._topics.stats()

    def by_topic(self) -> dict[str, ConsumerStats]:
        """Return the totals by topic, dropped topics included."""
        return self._topics.by_topic()

    async def _consume(self) -> None:
        ended = self._handler.ended
        if ended:
            ended.add_done_callback(lambda _: self._end("stopped"))
        try:
            for subscription in self._named:
                self._add(subscription)
            self._watching.begin(self._watch())
            if self._limit:
                self._watching.begin(self._count(self._limit))
            if self._finder:
                self._watching.begin(self._discover(self._finder))
            await self._ending.wait()
            await self._watching.close()
            for topic in self._topics.current.values():
                topic.interrupt()
            await self._consuming.wait()
        finally:
            await self._watching.close()
            await self._consuming.close()
        if ended and ended.done() and (error := ended.exception()):
            self._errors.insert(0, error)
        if self._errors:
            first, *others = self._errors
            for error in others:
                if str(error) != str(first):  # a write that failed also fails the drain
                    is_ours = isinstance(error, NSQError)
                    log.error("%s", error, exc_info=None if is_ours else error)
            raise first
        is_early = self._reason in MAY_LEAVE_MESSAGES and not self._stop_asked
        if self._stop_options.until_empty and is_early:
            self._left = await self._watcher.left_at_end()

    async def _watch(self) -> None:
        if reason := await self._watcher.met():
            self._end(reason)

    async def _count(self, limit: MessageLimit) -> None:
        await limit.done.wait()
        self._end("count")

    async def _discover(self, finder: TopicFinder) -> None:
        """Add and drop topics as nsqlookupds list them."""
        has_warned, pause = False, 0.5
        while True:
            await finder.look(self._follow, patient=self._patient)
            if not self._topics.current:
                if finder.answered and not has_warned:
                    log.warning("--topic-pattern: no topic matches")
                    has_warned = True
                self._on_ready()
            pause = self._refresh if finder.answered else min(2 * pause, self._refresh)
            await asyncio.sleep(pause)

    def _follow(self, change: Change) -> None:
        for topic in change.disappeared:
            log.info("topic %s: no longer listed by nsqlookupd", topic)
            self._drop(topic)
            self._backlogs.forget(topic)
        for topic in change.appeared:
            log.info("topic %s: listed by nsqlookupd", topic)
            self._add(self._subscription(topic))

    def _subscription(self, topic: str) -> Subscription:
        return Subscription(
            topic=topic, channel=self._channel, nsqds=self._nsqds, lookupds=self._lookupds
        )

    def _find_by(self, pattern: TopicPattern, timeouts: tuple[float, float]) -> TopicFinder:
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

    # Topics: each starts, fails and ends independently.

    def _add(self, subscription: Subscription) -> None:
        """Consume another topic; if the topic is being dropped, it starts again afterwards."""
        if self._ending.is_set():
            return
        if topic := self._topics.current.get(subscription.topic):
            topic.is_dropped = False
        else:
            self._consuming.begin(self._keep(self._topics.add(subscription)))

    def _drop(self, name: str) -> None:
        """Drain a topic and forget it."""
        if topic := self._topics.current.get(name):
            topic.is_dropped = True
            topic.interrupt()

    async def _keep(self, topic: ConsumedTopic) -> None:
        """Consume a topic until it is dropped; a failed start is retried."""
        while not topic.is_dropped and not self._ending.is_set():
            topic.interrupted.clear()
            if error := await self._consume_topic(topic):
                self._failed(topic, error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._refresh):
                        await topic.interrupted.wait()
        if topic.is_dropped:
            del self._topics.current[topic.name]

    async def _consume_topic(self, topic: ConsumedTopic) -> NSQError | None:
        """Consume until the end; return the error of a failed start, and raise other errors."""
        name = topic.name
        if not await self._exists(topic):
            return _unknown(name)
        if topic.interrupted.is_set():
            return None
        consumer = topic.consumer = self._make_consumer(
            topic.subscription,
            self._handler,
            on_started=partial(self._started, topic),
            limit=self._limit,
        )
        try:
            await consumer.consume()
        except (LockedError, OutputError, ConfigError, PeerError) as error:
            return error
        finally:
            totals = self._topics.ended(topic)
        if consumer.drain_error:
            self._not_drained(name, consumer.drain_error)
        if self._is_out_of_time and not topic.has_started:
            return UnreachableError("no nsqd accepted the subscription before the run ended")
        if self._is_out_of_time and not self._finder and not totals.connected:
            return _unknown(name)
        return None

    def _failed(self, topic: ConsumedTopic, error: NSQError) -> None:
        """Log why a topic cannot be consumed, or raise the error to end the run.

        The run ends if all named topics fail, or if all topics are locked at the start.
        """
        is_repeated, topic.error = str(topic.error) == str(error), error
        topics = self._topics.current.values()
        errors = [each.error for each in topics if each.error]
        is_locked = not self._any_started and all(isinstance(each, LockedError) for each in errors)
        if (is_locked or not self._finder) and len(errors) == len(topics):
            raise error
        text = str(error) if f"topic {topic.name}" in str(error) else f"topic {topic.name}: {error}"
        log.log(logging.INFO if is_repeated else logging.ERROR, "%s", text)
        log.info("topic %s: next retry in %s", topic.name, format_duration(self._refresh))

    def _started(self, topic: ConsumedTopic) -> None:
        """Note the start of a topic's consumer."""
        if topic.warning:
            log.warning("%s", topic.warning)
        if topic.error:
            log.info("topic %s: connected", topic.name)
        topic.has_started, topic.error, topic.warning = True, None, ""
        self._any_started = True
        self._on_ready()

    def _not_drained(self, name: str, error: Exception) -> None:
        """Note that the handler left messages of a topic unsettled; nsqd redelivers them."""
        if self._ending.is_set() or not isinstance(error, NSQError):
            self._fail(error)
        else:
            log.error("topic %s: %s", name, error)
            self._topics.undrained.add(name)

    @property
    def _is_out_of_time(self) -> bool:
        """Whether time has ended the run; a topic never reached has then failed."""
        return self._ending.is_set() and self._reason in OUT_OF_TIME

    async def _exists(self, topic: ConsumedTopic) -> bool:
        """Whether an nsqd has the topic; true without a look-up where the answer is irrelevant."""
        until_empty = self._stop_options.until_empty
        if self._finder or not (until_empty or is_ephemeral(self._channel)):
            return True
        exists, topic.warning = await self._backlogs.find(topic.subscription)
        return exists or not until_empty

    def _end(self, reason: StopReason) -> None:
        """Begin to stop; only the first reason is reported."""
        if not self._ending.is_set():
            if reason != "stopped":
                log.info("stopping: %s", reason)
            self._reason = reason
            self._ending.set()
            self._on_stopping()

    def _fail(self, error: BaseException) -> None:
        """Begin to stop because of an error; ``run`` raises the first one."""
        self._errors.append(error)
        self._end("stopped")


def _check_http(stop: StopOptions, nsqds: Sequence[Address]) -> None:
    count, needed = len(set(stop.nsqd_http_address)), len(set(nsqds))
    if stop.until_empty and 0 < count < needed:
        raise ConfigError(f"--nsqd-http-address is given for {count} of {needed} nsqds")


def _within(stop: StopOptions, config: ConsumerConfig) -> ConsumerConfig:
    """The configuration with at most ``stop.count`` messages in flight."""
    if not config.max_in_flight:
        raise ConfigError(
            f"{config.spelled('max_in_flight')}: 0 receives no messages: give 1 or more"
        )
    if not stop.count:
        return config
    return config.with_values(max_in_flight=min(config.max_in_flight, stop.count))


def _unknown(topic: str) -> NSQError:
    return NSQError(f"no nsqd has topic {topic}: check the name")
