"""The consumer of one topic: it connects, hands batches to the handler, and drains.

A Connector keeps it connected to the nsqds, and Flow controls RDY. One worker passes on the batches
one at a time, so that reading, heartbeats and RDY never wait for the handler.
"""

# size: the queue, the touching and the end of a run share the unsettled batches

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nsqtools.config import ConsumerConfig
from nsqtools.config.units import counted
from nsqtools.engine.connector import Connector, Subscription
from nsqtools.engine.flow import Flow, Link, stop_messages
from nsqtools.engine.handler import Batch, Handler, check_handler
from nsqtools.engine.outages import OutageLog
from nsqtools.errors import ConfigError, NSQError
from nsqtools.names import check_type
from nsqtools.net.connection import Connection
from nsqtools.policy.rdy import is_starved
from nsqtools.tasks import Tasks, end, interruptible, is_cancelled, together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from nsqtools.names import Address
    from nsqtools.net.connection import Dial
    from nsqtools.proto.messages import Message

log = logging.getLogger(__name__)

# How long a handler may take to react to cancellation, or to close, after drain_timeout.
_CANCEL_TIMEOUT = 1.0
# How often a repeated failure of the handler is logged.
_LOG_INTERVAL = 60.0
# Part of msg_timeout that is left when messages are touched, and how often that is checked.
_TOUCH_BEFORE, _TOUCH_CHECK = 0.5, 0.1
# nsqd 1.3.0 may send a message after CLOSE_WAIT (seen in one of 40 stops): time to requeue it.
_LINGER = 0.02


@dataclass(slots=True)
class ConsumerStats:
    """Totals of messages since the start, and the present state of the connections.

    For example::

        stats = consumer.stats()
        print(f"{stats.finished} of {stats.received} messages finished")
        print(f"{stats.in_flight} in flight on {stats.connections} connections")
    """

    received: int = 0
    received_bytes: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    given_up: int = 0
    too_late: int = 0
    """Messages that timed out: nsqd refused their FIN or REQ, or they were dropped before that."""
    abandoned: int = 0
    """Handlers that had not closed within drain_timeout."""
    unconfirmed: int = 0
    """Connections that ended without a sign that nsqd has read the last FINs: it may redeliver."""
    connections: int = 0
    connected: int = 0
    """Connections made since the start."""
    in_flight: int = 0
    backoff_level: int = 0
    """The backoff level: failures minus successes, at least 0."""
    last_message: float = 0.0
    """Event loop time of the last message, or of the start."""

    def add(self, other: ConsumerStats) -> None:
        """Add another consumer's counters, and keep the later last_message."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.received:  # otherwise its last_message is its start
            self.last_message = max(self.last_message, other.last_message)


_COUNTERS = [each.name for each in fields(ConsumerStats) if type(each.default) is int]


class Consumer:
    """Consumes one topic and channel with one handler until ``stop`` is called.

    Print one message::

        class Once(Handler):
            async def handle(self, batch: Batch) -> None:
                print(batch[0].body)
                consumer.stop()

        nsqds = (Address("127.0.0.1", 4150),)
        consumer = Consumer(Subscription(topic="events", channel="print", nsqds=nsqds), Once())
        asyncio.run(consumer.run())

    It opens the handler, calls its ``handle`` and ``gave_up``, then ``drain`` and, however the run
    ends, ``close``; a Runner calls the other methods, too. It runs once. ``find`` returns the
    addresses of all nsqds that have the topic according to an nsqlookupd, given as in the
    subscription, and raises UnreachableError if it does not answer; by default it asks the
    nsqlookupd. With ``patient`` the consumer waits for servers that cannot be reached at the start.
    ``on_reached`` is called for every new connection, and when there is no nsqd to connect to yet.
    """

    def __init__(
        self,
        subscription: Subscription,
        handler: Handler,
        config: ConsumerConfig | None = None,
        *,
        rng: Random | None = None,
        dial: Dial = Connection.open,
        find: Callable[[str], Awaitable[Iterable[Address]]] | None = None,
        outages: OutageLog | None = None,
        patient: bool = False,
        on_reached: Callable[[], object] = lambda: None,
    ) -> None:
        config = ConsumerConfig() if config is None else config
        check_type("subscription", subscription, Subscription)
        check_type("config", config, ConsumerConfig)
        check_handler(handler)
        self._subscription = subscription
        self._handler = handler
        self._config = config
        self._dial = dial
        self._on_reached = on_reached
        self._outages = outages or OutageLog()
        self._stats = ConsumerStats()
        rng = rng or Random()  # noqa: S311 - spreads load, guards nothing
        self._flow = Flow(
            config,
            self._stats,
            rng=rng,
            deliver=self._deliver,
            refused=handler.refused,
            broken=self._break,
        )
        self._connecting = Tasks(self._break)
        self._connector = Connector(
            subscription,
            config,
            self._connect,
            rng=rng,
            find=find or self._find,
            outages=self._outages,
            on_reached=on_reached,
            tasks=self._connecting,
            patient=patient,
        )
        self._queue: deque[tuple[float, Batch, bool]] = deque()
        self._handled: Batch | None = None
        self._held: dict[Batch, None] = {}
        self._toucher: asyncio.TimerHandle | None = None
        self._has_run = self._is_closed = self._stopping = False
        self._all_delivered = False
        self._given_up_waiting = False
        self._failure = ""
        self._unlogged = 0
        self._log_due = 0.0
        self._bug: BaseException | None = None
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> ConsumerStats:
        """Consume until ``stop``, drain, and return the totals.

        Raises the handler's errors, and UnreachableError if no nsqd can be reached at the start,
        unless ``patient``, or if all refuse the client; later on it reconnects. Cancelling it drops
        the connections at once. A handler that ignores the cancellation for a second is left
        running. Raises RuntimeError the second time.
        """
        if self._has_run:
            raise RuntimeError("a Consumer runs once: make another one")
        self._has_run = True
        try:
            if await interruptible(self._handler.open(), self._stop):
                await self._consume()
        except BaseException as error:
            if not self._is_closed:
                at_once = isinstance(error, asyncio.CancelledError)
                try:
                    await self._handler.close(at_once=at_once)
                except NSQError as another:  # the first error is raised
                    log.error("%s", another)
            raise
        if not self._is_closed:
            await self._handler.close()
        if self._bug:
            raise self._bug
        return self.stats()

    async def _consume(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stats.last_message = self._loop.time()
        self._flow.start()
        self._touch()
        worker = self._loop.create_task(self._work())
        worker.add_done_callback(lambda _: self.stop())
        try:
            await interruptible(self._connector.start(), self._stop)
            await self._stop.wait()
            await self._drain(worker)
        finally:
            self._stopping = True
            self._flow.stop()
            if self._toucher:
                self._toucher.cancel()
            for link in list(self._flow.links.values()):
                link.connection.abort()
            await self._connecting.close()
            await end([worker], within=_CANCEL_TIMEOUT)

    def stop(self) -> None:
        """Drain and let ``run`` return; a second call changes nothing."""
        self._stop.set()

    def set_max_in_flight(self, n: int) -> None:
        """Change ``max_in_flight`` now; 0 pauses. The new RDY is sent before any later FIN.

        Raises ConfigError for anything but a whole number that is at least 0.
        """
        try:
            self._config.declared()["max_in_flight"].check(n)
        except ConfigError as error:
            raise ConfigError(f"max_in_flight: {error}") from None
        self._flow.set_max_in_flight(n)

    def is_starved(self) -> bool:
        """Whether an nsqd is about to send nothing more until messages are settled."""
        return is_starved(self._flow.peers())

    def stats(self) -> ConsumerStats:
        """Return a copy of the totals."""
        return self._flow.totals()

    async def _connect(self, address: Address) -> Connection:
        """Open a connection and add it to flow control."""
        link = Link(self._flow)
        connection = await self._dial(
            address,
            self._config,
            link,
            subscription=(self._subscription.topic, self._subscription.channel),
            auth_secret=self._config.auth_secret,
        )
        if self._stopping:
            connection.abort()
            return connection
        log.info("connected to %s", address)
        self._stats.connected += 1
        self._flow.add(link, connection)
        self._touch()  # its timeout may be shorter
        self._on_reached()
        return connection

    async def _find(self, lookupd: str) -> Iterable[Address]:
        from nsqtools.engine.lookup import producers_at  # loads net.http

        return await producers_at(lookupd, self._subscription.topic, self._config, self._outages)

    def _break(self, error: BaseException) -> None:
        """Drain, and let ``run`` raise the error of a bug."""
        self._bug = self._bug or error
        self.stop()

    # Handling.

    def _deliver(self, link: Link, messages: list[Message], size: int) -> None:
        """Queue the messages of one read as one batch, plus one for those over ``max_attempts``."""
        now, count, limit = self._loop.time(), len(messages), self._config.max_attempts
        given_up = [message for message in messages if message.attempts > limit] if limit else []
        if given_up:
            messages = [message for message in messages if message.attempts <= limit]
        features = link.connection.features
        deadline = now + features.max_msg_timeout
        for part, is_given_up in ((messages, False), (given_up, True)):
            if not part:
                continue
            batch = Batch(
                part,
                link,
                topic=self._subscription.topic,
                channel=self._subscription.channel,
                source=link.connection.address,
                starved=is_starved((link.peer(),)),
                msg_timeout=features.msg_timeout,
                is_lost=lambda: link.connection.is_lost or self._loop.time() > deadline,
                size=size if len(part) == count else None,
            )
            batch.expires, batch.deadline = now + features.msg_timeout, deadline
            if self._all_delivered:  # nsqd may send a message after answering CLS
                batch.requeue(delay=0, backoff=False)
            else:
                self._queue.append((now, batch, is_given_up))
        self._wake.set()

    async def _work(self) -> None:
        """Pass batches to the handler until the connections are drained and the queue is empty."""
        while True:
            while self._queue and not self._given_up_waiting:
                await self._handle_next()
            self._flow.caught_up()
            if self._all_delivered or self._given_up_waiting:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _handle_next(self) -> None:
        self._flow.handling_since, batch, is_given_up = self._queue.popleft()
        self._handled = batch
        self._drop_refused()
        self._drop_expired(batch)
        if not batch.is_settled:
            batch.leave_out_settled()
            await self._handle(batch, is_given_up)
        self._handled = None

    async def _handle(self, batch: Batch, is_given_up: bool) -> None:
        try:
            if is_given_up:
                await self._handler.gave_up(batch)
                self._stats.given_up += len(batch)
            else:
                await self._handler.handle(batch)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                batch.requeue(delay=0, backoff=False)
                raise asyncio.CancelledError from error
            self._log_failure(error, len(batch.unsettled()))
            batch.requeue()
        else:
            if not batch.held:
                batch.finish()
        for part in batch.parts:
            if not part.is_settled:
                self._held[part] = None
                part.keeper = self._held.pop

    def _touch(self) -> None:
        """Touch messages that wait, are handled or are held, before they time out.

        Messages that nsqd delivers again all the same are dropped.
        """
        self._drop_refused()
        now = self._loop.time()
        for batch in self._unsettled():
            self._drop_expired(batch)
            if batch.expires - now < _TOUCH_BEFORE * batch.msg_timeout:
                batch.expires, batch.touched = now + batch.msg_timeout, True
                batch.touch()
        if self._toucher:
            self._toucher.cancel()
        interval = _TOUCH_CHECK * self._flow.msg_timeout
        self._toucher = self._loop.call_later(interval, self._touch_again)

    def _touch_again(self) -> None:
        try:
            self._touch()
        except Exception as error:
            self._break(error)

    def _drop_refused(self) -> None:
        """Forget messages whose TOUCH was refused, but not those that have come again since."""
        if refused := self._flow.touch_refused:
            for batch in self._unsettled():
                if batch.touched:
                    late = [m for m in batch.unsettled() if (batch.source, m.id) in refused]
                    batch.forget(late)
            refused.clear()

    def _unsettled(self) -> Iterator[Batch]:
        """The batches that wait, are handled or are held; some may be settled by now."""
        for _, batch, _ in self._queue:
            yield batch
        if self._handled:
            yield from self._handled.parts
        yield from list(self._held)

    def _drop_expired(self, batch: Batch) -> None:
        """Forget what nsqd delivers again in any case, as it was not touched in time or too long.

        Messages of a lost connection are handled all the same: nsqd may have crashed, and this may
        be the only copy.
        """
        now = self._loop.time()
        if now > batch.deadline or (now > batch.expires and not batch.is_lost()):
            batch.forget()

    def _log_failure(self, error: BaseException, count: int) -> None:
        """Log a failure of the handler, with a traceback unless it is an NSQError.

        A repeated failure is logged once a minute, with the number of messages since.
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
            "topic %s: handler failed, %s requeued%s",
            self._subscription.topic,
            counted(count, "message"),
            f": {error}" if ours else "",
            exc_info=None if ours else error,
        )

    # The end.

    async def _drain(self, worker: asyncio.Task[None]) -> None:
        """Send CLS, handle the delivered messages, requeue the rest and close the connections.

        All of it takes ``drain_timeout`` at most. An nsqd that does not answer CLS delays the
        others only for a moment, and is not waited for again at the end.
        """
        self._stopping = True
        self._flow.stop()
        await self._connecting.close()
        drain_timeout = self._config.drain_timeout
        deadline = self._loop.time() + drain_timeout
        connections = [link.connection for link in self._flow.links.values()]
        await stop_messages(connections, within=drain_timeout)
        self._all_delivered = True
        self._wake.set()
        await asyncio.wait([worker], timeout=max(0.0, deadline - self._loop.time()))
        if not worker.done():
            log.warning(
                "topic %s: messages were not handled within the drain timeout: they are requeued",
                self._subscription.topic,
            )
            self._given_up_waiting = True
            await end([worker], within=_CANCEL_TIMEOUT)
        error = await self._end_handler(
            partial(self._handler.drain, self._subscription.topic), deadline
        )
        self._is_closed = True
        error = await self._end_handler(self._handler.close, deadline) or error
        for batch in list(self._unsettled()):
            batch.requeue(delay=0, backoff=False)
        self._queue.clear()
        if connections:
            await asyncio.sleep(_LINGER)
        for link in self._flow.links.values():
            self._stats.unconfirmed += bool(link.last_finish) and not link.connection.answered_cls
        ending = [link.connection for link in self._flow.links.values()]
        await together(*(c.close() if c.answered_cls else c.close(drain=0.0) for c in ending))
        if error:
            raise error
        if worker.done() and not worker.cancelled():
            worker.result()

    async def _end_handler(
        self, step: Callable[[], Awaitable[None]], deadline: float
    ) -> Exception | None:
        """Let the handler drain or close; returns its error instead of raising it."""
        limit = max(_CANCEL_TIMEOUT, deadline - self._loop.time())
        try:
            async with asyncio.timeout(limit) as timeout:
                await step()
        except Exception as error:
            if not (isinstance(error, TimeoutError) and timeout.expired()):
                return error
            self._stats.abandoned += 1
            log.error(
                "topic %s: the handler did not close within the drain timeout: "
                "the messages it holds are requeued",
                self._subscription.topic,
            )
        return None
