"""The consumer: it owns connections and one worker, and applies the plans of ``policy``.

Facts come in as plain calls (messages received, a connection lost, a timer), and each ends in
``plan``, which asks the RDY planner what to send. The worker hands batches to the handler one at
a time, so reading, heartbeats and RDY never wait for it.

A few lines over 400: who is connected, each connection's facts and all decisions live elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from nsqtools.config import ConsumerConfig
from nsqtools.engine.handler import Batch
from nsqtools.engine.link import Link
from nsqtools.engine.membership import Membership, Subscription
from nsqtools.engine.stats import ConsumerStats
from nsqtools.errors import ConfigError, NSQError, PeerError, ServerError
from nsqtools.names import check_type
from nsqtools.net.connection import Connection
from nsqtools.policy.backoff import Backoff
from nsqtools.policy.delivery import requeue_delay, split_given_up
from nsqtools.policy.rdy import ByteBudget, Mode, RdyPlanner, is_starved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nsqtools.engine.handler import Handler
    from nsqtools.names import Address
    from nsqtools.net.connection import Dial
    from nsqtools.policy.backoff import Change
    from nsqtools.proto.messages import Message

log = logging.getLogger(__name__)

# nsqd answers CLS at once, or not at all.
_CLS_TIMEOUT = 2.0
# What a handler gets to notice that it was cancelled, or to close, when the time is over.
_CANCEL_TIMEOUT = 1.0
# How often the same failure of a handler is logged.
_LOG_INTERVAL = 60.0
# nsqd 1.3.0 may send a message after CLOSE_WAIT, seen once in 40 stops: time to give it back.
_LINGER = 0.02


class Consumer:
    """Consumes one topic and channel with one handler until ``stop``.

    ``find`` asks for the addresses of all nsqds that have the topic and raises UnreachableError
    when nobody could be asked; by default it asks the subscription's nsqlookupds.
    """

    def __init__(
        self,
        subscription: Subscription,
        handler: Handler,
        config: ConsumerConfig,
        *,
        rng: Random | None = None,
        dial: Dial = Connection.open,
        find: Callable[[], Awaitable[Iterable[Address]]] | None = None,
    ) -> None:
        check_type("subscription", subscription, Subscription)
        check_type("config", config, ConsumerConfig)
        for method in ("handle", "close", "gave_up"):
            if not callable(getattr(handler, method, None)):
                raise ConfigError(f"handler: {type(handler).__name__} has no method {method!r}")
        self._subscription = subscription
        self._handler = handler
        self._config = config
        self._rng = rng or Random()  # noqa: S311 - spreads load, guards nothing
        self._dial = dial
        self._max_in_flight = config.max_in_flight
        self._limit = config.max_in_flight
        self._budget = ByteBudget(config.max_in_flight_bytes)
        self._planner = RdyPlanner(config.low_rdy_idle_timeout, config.low_rdy_timeout)
        self._backoff = Backoff(
            config.backoff_strategy, config.backoff_multiplier, config.max_backoff_duration
        )
        self._links: dict[Address, Link] = {}
        self._membership = Membership(
            subscription, config, self._connect, self._links, rng=self._rng, find=find
        )
        self._queue: deque[tuple[float, Batch, bool]] = deque()
        self._held: list[Batch] = []
        self._held_limit = 16
        self._oldest: float | None = None
        self._behind = False
        self._stopping = False
        self._all_delivered = False
        self._given_up_waiting = False
        self._failure = ""
        self._unlogged = 0
        self._log_due = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._stats = ConsumerStats()

    async def run(self) -> ConsumerStats:
        """Consume until ``stop``, drain, and return the totals.

        Raises UnreachableError if at the start nothing could be reached or everyone refused us;
        after that the consumer only ever reconnects. Cancelling drops the connections at once.
        """
        self._loop = asyncio.get_running_loop()
        self._stats.last_message = self._loop.time()
        worker = self._loop.create_task(self._work())
        stopped = self._loop.create_task(self._stop.wait())
        starting = self._loop.create_task(self._membership.start())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self._tick()
                ends: list[asyncio.Future[Any]] = [worker, stopped, self._membership.broken]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            await self._drain(worker)
            if self._membership.broken.done():
                self._membership.broken.result()
        finally:
            self._stopping = True
            self._membership.stop()
            for timer in self._timers.values():
                timer.cancel()
            for task in (worker, stopped, starting):
                task.cancel()
            for link in list(self._links.values()):
                link.connection.abort()
        return self.stats()

    def stop(self) -> None:
        """Drain and let ``run`` return; a second call changes nothing."""
        self._stop.set()

    def set_max_in_flight(self, n: int) -> None:
        """Change ``max_in_flight`` now; 0 pauses. RDY leaves before any later FIN does."""
        self._max_in_flight = n
        self._set_limit()
        self.plan()

    def is_starved(self) -> bool:
        """Whether some nsqd holds messages back until others are settled."""
        return is_starved([link.peer() for link in self._links.values()])

    def stats(self) -> ConsumerStats:
        """A copy of the totals."""
        return replace(
            self._stats,
            connections=len(self._links),
            in_flight=sum(link.connection.in_flight for link in self._links.values()),
            backoff_level=self._backoff.counter,
            nsqds=list(self._links),
        )

    # Called by links.

    def received(self, link: Link, messages: list[Message]) -> None:
        """Queue all messages that one read brought, once."""
        now = self._loop.time()
        count = len(messages)
        size = sum([len(message.body) for message in messages])
        stats = self._stats
        stats.received += count
        stats.received_bytes += size
        stats.last_message = now
        self._budget.note(count, size)
        self._set_limit()
        messages, given_up = split_given_up(messages, self._config.max_attempts)
        for part, is_given_up in ((messages, False), (given_up, True)):
            if not part:
                continue
            batch = self._batch(link, part, size if len(part) == count else None)
            if self._all_delivered:  # nsqd may send one more after it has answered CLS
                batch.requeue(delay=0, backoff=False)
            else:
                self._queue.append((now, batch, is_given_up))
        self._wake.set()
        if link.needs_plan(now):
            self.plan()

    def settled(self, *, finished: int = 0, failed: int = 0, requeued: int = 0) -> None:
        """Count results before they are sent, so that a change of RDY goes out first."""
        self._stats.finished += finished
        self._stats.requeued += failed + requeued
        if failed or self._backoff.mode is not Mode.RUNNING:
            now = self._loop.time()
            if change := self._backoff.record(
                succeeded=finished, failed=failed, neutral=requeued, now=now, rng=self._rng
            ):
                self._backoff_changed(change)

    def requeue_ms(self, attempts: int) -> int:
        """The configured delay of a REQ, in ms."""
        config = self._config
        delay = requeue_delay(
            attempts,
            default_delay=config.default_requeue_delay,
            max_delay=config.max_requeue_delay,
        )
        return round(delay * 1000)

    def touched(self, count: int) -> None:
        """Count TOUCHes."""
        self._stats.touched += count

    def too_late(self, error: ServerError) -> None:
        """A FIN, REQ or TOUCH failed: no failure of the handler, so no backoff (go-nsq#116)."""
        self._stats.too_late += 1
        log.debug("%s", error)

    def lost(self, link: Link, error: PeerError | None) -> None:
        """A connection is gone; its share goes to the others."""
        if self._links.get(link.address) is not link:
            return
        del self._links[link.address]
        if self._stopping or error is None:
            return
        log.warning("connection lost: %s", error)
        self.plan()
        self._membership.lost(link.address)

    async def _connect(self, address: Address) -> NSQError | None:
        """Open one connection and let it take part; returns the error instead of raising it."""
        link = Link(self, address)
        try:
            link.connection = await self._dial(
                address,
                self._config,
                link,
                subscription=(self._subscription.topic, self._subscription.channel),
                auth_secret=self._config.auth_secret,
            )
        except NSQError as error:
            return error
        if self._stopping:
            link.connection.abort()
            return None
        log.info("connected to %s", address)
        self._stats.connected += 1
        link.opened(self._loop.time())
        self._links[address] = link
        self.plan()
        return None

    # Decisions.

    def plan(self) -> None:
        """Send the RDY counts that the facts of now ask for."""
        if self._stopping or not self._links:  # nsqd ignores RDY after CLS
            return
        now = self._loop.time()
        mode = Mode.STOPPED if self._behind else self._backoff.mode
        plan = self._planner.plan(
            [link.peer() for link in self._links.values()],
            max_in_flight=self._limit,
            mode=mode,
            now=now,
            rng=self._rng,
        )
        for address, count in plan.items():
            self._links[address].set_ready(count, now)

    def _set_limit(self) -> None:
        limit = self._budget.limit(self._max_in_flight)
        if limit != self._limit:
            self._limit = limit
            for link in self._links.values():
                link.stale = True

    def _backoff_changed(self, change: Change) -> None:
        log.info("backoff: %s", change)
        if timer := self._timers.pop("backoff", None):
            timer.cancel()
        if self._backoff.until is not None:
            self._call_at(self._backoff.until, "backoff", self._backoff_due)
        self.plan()

    def _backoff_due(self) -> None:
        # A timer may fire a little early.
        if change := self._backoff.due(max(self._loop.time(), self._backoff.until or 0.0)):
            self._backoff_changed(change)

    def _tick(self) -> None:
        """Look at RDY and at the handler from time to time.

        A handler that has kept a batch for a quarter of msg_timeout has fallen behind: RDY goes
        to 0 before nsqd's timeouts would send the same messages again and again.
        """
        timeouts = [link.connection.features.msg_timeout for link in self._links.values()]
        patience = min(timeouts, default=60.0) / 4
        if self._oldest is not None and self._loop.time() - self._oldest > patience:
            if not self._behind:
                log.warning("the handler has fallen behind: no new messages until it catches up")
            self._behind = True
        self.plan()
        interval = min(self._config.rdy_redistribute_interval, patience / 2)
        self._call_at(self._loop.time() + interval, "tick", self._tick)

    def _call_at(self, when: float, name: str, work: Callable[[], None]) -> None:
        """Set a timer. The consumer ends with an error of ``work``: it must not go on unplanned."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                if not self._membership.broken.done():
                    self._membership.broken.set_exception(error)

        self._timers[name] = self._loop.call_at(when, run)

    # Handling.

    def _batch(self, link: Link, messages: list[Message], size: int | None) -> Batch:
        features = link.connection.features
        deadline = self._loop.time() + features.max_msg_timeout
        return Batch(
            messages,
            link,
            topic=self._subscription.topic,
            channel=self._subscription.channel,
            source=link.address,
            starved=is_starved((link.peer(),)),
            msg_timeout=features.msg_timeout,
            is_lost=lambda: link.connection.is_lost or self._loop.time() > deadline,
            size=size,
        )

    async def _work(self) -> None:
        """Hand batches to the handler until nsqd sends no more and the queue is empty."""
        while True:
            while self._queue and not self._given_up_waiting:
                self._oldest, batch, is_given_up = self._queue.popleft()
                await self._handle(batch, is_given_up)
            self._oldest = None
            if self._behind:
                self._behind = False
                self.plan()
            if self._all_delivered or self._given_up_waiting:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _handle(self, batch: Batch, is_given_up: bool) -> None:
        try:
            if is_given_up:
                await self._handler.gave_up(batch)
                self._stats.given_up += len(batch)
            else:
                await self._handler.handle(batch)
        except (Exception, asyncio.CancelledError) as error:
            # A handler may also see something of its own cancelled: that is a failure like others.
            if (worker := asyncio.current_task()) and worker.cancelling():
                batch.requeue(delay=0, backoff=False)
                raise asyncio.CancelledError from error
            self._log_failure(error, len(batch.unsettled()))
            batch.requeue()
        else:
            if batch.held:
                self._hold(batch)
            else:
                batch.finish()

    def _log_failure(self, error: BaseException, count: int) -> None:
        """Log why the handler failed, with a traceback unless the error is written for users.

        The same failure is logged once a minute, with the number of messages since the last time.
        """
        now, failure = self._loop.time(), repr(error)
        if failure == self._failure:
            count += self._unlogged
            if now < self._log_due:
                self._unlogged = count
                return
        self._failure, self._unlogged, self._log_due = failure, 0, now + _LOG_INTERVAL
        ours = isinstance(error, NSQError)
        log.error(
            "topic %s: handler failed, %d messages requeued%s",
            self._subscription.topic,
            count,
            f": {error}" if ours else "",
            exc_info=None if ours else error,
        )

    def _hold(self, batch: Batch) -> None:
        """Remember what is to be given back at the end; what was settled goes now and then."""
        self._held.append(batch)
        if len(self._held) > self._held_limit:
            self._held = [held for held in self._held if not held.is_settled]
            self._held_limit = 2 * len(self._held) + 16

    # The end.

    async def _drain(self, worker: asyncio.Task[None]) -> None:
        """CLS, handle what was delivered, REQ 0 the rest, close: within ``drain_timeout``.

        An nsqd that does not answer CLS costs a moment, not the time that others' messages need.
        """
        self._stopping = True
        self._membership.stop()
        deadline = self._loop.time() + self._config.drain_timeout
        links = list(self._links.values())
        for link in links:
            link.connection.stop_messages()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_CLS_TIMEOUT, self._config.drain_timeout)):
                await asyncio.gather(*(link.connection.wait_closing() for link in links))
        self._all_delivered = True
        self._wake.set()
        await asyncio.wait([worker], timeout=max(0.0, deadline - self._loop.time()))
        if not worker.done():
            log.warning("not all messages were handled in time: the rest is requeued")
            self._given_up_waiting = True
            worker.cancel()
            await asyncio.wait([worker], timeout=_CANCEL_TIMEOUT)
        error = await self._close_handler(max(_CANCEL_TIMEOUT, deadline - self._loop.time()))
        for batch in (*self._held, *(batch for _, batch, _ in self._queue)):
            batch.requeue(delay=0, backoff=False)
        self._queue.clear()
        if links:
            await asyncio.sleep(_LINGER)
        await asyncio.gather(*(link.connection.close() for link in self._links.values()))
        if error:
            raise error
        if worker.done() and not worker.cancelled():
            worker.result()

    async def _close_handler(self, limit: float) -> Exception | None:
        try:
            async with asyncio.timeout(limit) as timeout:
                await self._handler.close()
        except Exception as error:
            if not (isinstance(error, TimeoutError) and timeout.expired()):
                return error
            self._stats.abandoned += 1
            log.error(
                "topic %s: the handler did not close in time: what it holds is requeued",
                self._subscription.topic,
            )
        return None
