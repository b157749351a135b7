"""The consumer of one topic: it connects, passes batches to the handler, and drains.

A Connector connects to the nsqds, and an RdyController sends RDY. The consumer owns the waiting,
handled and held batches, and touches their messages. One worker passes batches to the handler, one
at a time, so reading, heartbeats and RDY never wait for the handler.
"""

# size: the whole way of a batch, from its arrival until its last message is settled

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Self

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine.connector import Connector, NsqdFinder, Subscription
from nsqtools.engine.handler import Batch, Handler, check_handler, close_after_error
from nsqtools.engine.outages import FailureLog
from nsqtools.engine.rdycontroller import ConsumerConnection, RdyController, stop_messages
from nsqtools.engine.totals import ConsumerStats
from nsqtools.engine.unsettled import UnsettledBatches, forget_expired
from nsqtools.errors import ConfigError, MessageSizeError, NSQError
from nsqtools.names import check_type
from nsqtools.net.connection import Connection, Listener
from nsqtools.tasks import Tasks, beside, end, interruptible, is_cancelled, together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.engine.limit import MessageLimit
    from nsqtools.errors import PeerError, ServerError
    from nsqtools.names import Address
    from nsqtools.net.connection import Dial
    from nsqtools.proto.messages import Message

log = logging.getLogger(__name__)

# Seconds for a handler to react to cancellation, or to close, after drain_timeout.
_CANCEL_TIMEOUT = 1.0
_USUAL_MSG_TIMEOUT = 60.0
# Parts of msg_timeout: the interval of checks, short enough to touch messages in time, and the age
# of the handled batch above which the handler counts as slow.
_CHECK_INTERVAL, _SLOW = 0.1, 0.25
# Seconds to requeue a late message: nsqd 1.3.0 may send one after CLOSE_WAIT (seen in one of 40
# stops).
_LINGER = 0.02


class Consumer(Listener):
    """Consumes one topic and channel with one handler until ``stop`` is called.

    Print one message::

        class Once(Handler):
            async def handle(self, batch: Batch) -> None:
                print(batch[0].body)
                consumer.stop()

        nsqds = (Address("127.0.0.1", 4150),)
        consumer = Consumer(Subscription(topic="events", channel="print", nsqds=nsqds), Once())
        asyncio.run(consumer.run())

    Or consume beside other work; an error of the consumer ends the block::

        async with Consumer(subscription, handler) as consumer:
            await serve_requests()

    A consumer opens the handler, joins the topic, and calls ``handle`` and ``gave_up``, then
    ``drain`` and, however the run ends, ``close``. It runs once. With ``patient`` it waits for
    servers unreachable at the start. ``on_started`` is called once: when the first nsqd is
    connected, or when the consumer begins to wait for an nsqd. Consumers sharing a ``finder``
    together limit their requests to each nsqlookupd. Consumers sharing a ``limit`` together finish
    its number of messages.
    """

    def __init__(
        self,
        subscription: Subscription,
        handler: Handler,
        config: ConsumerConfig | None = None,
        *,
        rng: Random | None = None,
        dial: Dial = Connection.open,
        finder: NsqdFinder | None = None,
        patient: bool = False,
        on_started: Callable[[], object] = lambda: None,
        limit: MessageLimit | None = None,
    ) -> None:
        config = ConsumerConfig() if config is None else config
        check_type("subscription", subscription, Subscription)
        check_type("config", config, ConsumerConfig)
        check_handler(handler)
        rng = rng or Random()  # noqa: S311 - spreads load, guards nothing
        self.drain_error: Exception | None = None
        """The handler's error if it left messages unsettled at the end; nsqd redelivers them."""
        self._subscription = subscription
        self._handler = handler
        self._config = config
        self._dial = dial
        self._on_started = on_started
        self._limit = limit
        self._stats = ConsumerStats()
        self._rdy = RdyController(config, rng)
        self._connecting = Tasks(self._break)
        self._connector = Connector(
            subscription,
            config,
            self._connect,
            rng=rng,
            finder=finder or NsqdFinder(config),
            tasks=self._connecting,
            patient=patient,
        )
        self._unsettled = UnsettledBatches()
        self._failures = FailureLog(subscription.topic)
        self._given_up: deque[tuple[Address, bytes]] = deque(maxlen=max(1000, config.max_in_flight))
        """The nsqds and ids of the messages given up last; no limit has counted them."""
        self._oversize: set[Address] = set()
        """The nsqds that have sent a message over max_msg_size."""
        self._has_run = self._stopping = False
        self._all_delivered = self._given_up_waiting = False
        self._deadline = 0.0
        """Event loop time at which drain_timeout is over; 0 before the drain."""
        self._bug: BaseException | None = None
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> ConsumerStats:
        """Open the handler, consume until ``stop``, drain, and return the totals.

        Raises the handler's errors, and UnreachableError if no nsqd can be reached at the start,
        unless ``patient``, or if all refuse the client; later the consumer reconnects. Cancelling
        ``run`` drops the connections at once. A handler ignoring the cancellation for a second is
        left running. A second call raises RuntimeError.
        """
        if self._has_run:
            raise RuntimeError("a Consumer runs once: make another one")
        self._has_run = True
        try:
            if await interruptible(self._handler.open(), self._stop):
                if ended := self._handler.ended:
                    ended.add_done_callback(lambda _: self.stop())
                await self.consume()
        except BaseException as error:
            at_once = isinstance(error, asyncio.CancelledError) or is_cancelled()
            await close_after_error(self._handler, at_once=at_once)
            raise
        await self._end_handler("close", self._handler.close())
        ended = self._handler.ended
        if ended and ended.done() and (failure := ended.exception()):
            raise failure
        if self.drain_error:
            raise self.drain_error
        return self.stats()

    async def __aenter__(self) -> Self:
        """Begin to ``run``. If the run fails, the block is cancelled, and the error raised."""
        self._block = beside(self.run(), self.stop)
        await self._block.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        """Stop, and wait for the end of the run; a cancelled block cancels the run."""
        return await self._block.__aexit__(*error)

    async def consume(self) -> None:
        """Consume until ``stop`` with an open handler, and leave it open.

        For a Runner, whose consumers share a handler. Raises the errors of ``join``, and the errors
        of ``run`` if the start fails.
        """
        self._loop = asyncio.get_running_loop()
        self._stats.last_message = self._loop.time()
        topic = self._subscription.topic
        if not await interruptible(self._handler.join(topic), self._stop):
            return
        background = Tasks(self._break)
        background.begin(self._control())
        worker = self._loop.create_task(self._work())
        worker.add_done_callback(lambda _: self.stop())
        if self._limit:
            self._limit.add(self)
        try:
            if await interruptible(self._connector.start(), self._stop):
                self._on_started()
            await self._stop.wait()
            await self._drain(worker)
        except NSQError:  # of the start
            await self._end_handler("drain", self._handler.drain(topic))
            if self.drain_error:  # the error of the start is raised
                log.error("topic %s: %s", topic, self.drain_error)
            raise
        finally:
            self._stopping = True
            self._rdy.stop()
            if self._limit:
                self._limit.remove(self)
            for connection in self._connections():
                connection.abort()
            await self._connecting.close()
            await background.close()
            await end([worker], within=_CANCEL_TIMEOUT)
            self._failures.close()
        if self._bug:
            raise self._bug

    def stop(self) -> None:
        """Drain and let ``run`` return; a second call has no effect."""
        self._stop.set()

    def set_max_in_flight(self, n: int) -> None:
        """Change ``max_in_flight`` now; 0 pauses. The new RDY is sent before any later FIN.

        Raises ConfigError unless ``n`` is a whole number of at least 0.
        """
        try:
            self._config.declared()["max_in_flight"].check(n)
        except ConfigError as error:
            raise ConfigError(f"max_in_flight: {error}") from None
        self._rdy.budget.set_max_in_flight(n)
        self._rdy.plan()

    def is_starved(self) -> bool:
        """Whether an nsqd is about to stop sending until messages are settled."""
        return any(each.is_starved for each in self._rdy.connections.values())

    @property
    def in_flight(self) -> int:
        """Messages of open connections, received and not settled."""
        return sum(connection.in_flight for connection in self._connections())

    def stats(self) -> ConsumerStats:
        """Return a copy of the totals, with the present state."""
        return replace(
            self._stats,
            connections=len(self._rdy.connections),
            in_flight=self.in_flight,
            backoff_level=self._rdy.backoff_level,
        )

    # Connections.

    async def _connect(self, address: Address) -> Connection:
        """Open a connection and share RDY with it."""
        connection = await self._dial(
            address,
            self._config,
            self,
            subscription=(self._subscription.topic, self._subscription.channel),
            auth_secret=self._config.auth_secret,
        )
        log.info("connected to %s", address)
        self._stats.connected += 1
        self._rdy.connections[address] = ConsumerConnection(
            connection, self._rdy, self._config, self._stats
        )
        self._rdy.plan()
        self._rdy.check_soon.set()  # its msg_timeout may be shorter
        return connection

    def _connections(self) -> list[Connection]:
        return [each.connection for each in self._rdy.connections.values()]

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """Share the RDY of a lost connection; ``error`` is None if we closed it."""
        address = connection.address
        lost = self._rdy.connections.get(address)
        if not lost or lost.connection is not connection:
            return
        del self._rdy.connections[address]
        if error and lost.last_finish >= connection.last_read:
            self._stats.unconfirmed += 1  # nsqd may not have read the last FINs
        if self._stopping or error is None:
            return
        level = logging.WARNING
        if isinstance(error, MessageSizeError):
            level = logging.INFO if address in self._oversize else logging.ERROR
            self._oversize.add(address)
        log.log(level, "connection lost: %s", error)
        self._rdy.plan()

    def _break(self, error: BaseException) -> None:
        """Drain, and let ``run`` raise the error of a bug."""
        self._bug = self._bug or error
        self.stop()

    async def _control(self) -> None:
        """Touch messages, see whether the handler is slow, end backoff waits, and plan RDY.

        Repeated at intervals, when a wait ends, and soon after ``check_soon`` was set.
        """
        while True:
            now = self._loop.time()
            timeouts = [each.features.msg_timeout for each in self._connections()]
            msg_timeout = min(timeouts, default=_USUAL_MSG_TIMEOUT)
            self._unsettled.touch(now)
            batch = self._unsettled.handled
            if batch and now > batch.arrived + _SLOW * msg_timeout:
                self._rdy.fall_behind()
            self._rdy.check(now)
            self._rdy.plan()
            due = now + min(self._config.rdy_redistribute_interval, _CHECK_INTERVAL * msg_timeout)
            self._rdy.check_soon.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(due, self._rdy.backoff_until or due)):
                    await self._rdy.check_soon.wait()

    # Batches.

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """Queue the messages of one read, and plan RDY if it may have to change."""
        try:
            now, size = self._loop.time(), sum([len(message.body) for message in messages])
            receiver = self._rdy.connections[connection.address]
            is_due = receiver.note_messages(now)
            is_limit_new = self._rdy.budget.note(len(messages), size)
            self._queue(receiver, messages, size, now)
            if is_due or is_limit_new:
                self._rdy.plan()
        except Exception as error:  # asyncio would close the connection, and we would reconnect
            self._break(error)

    def _queue(
        self, receiver: ConsumerConnection, messages: list[Message], size: int, now: float
    ) -> None:
        """Queue the messages of one read, those over ``max_attempts`` in a second batch."""
        count, limit, stats = len(messages), self._config.max_attempts, self._stats
        stats.received += count
        stats.received_bytes += size
        stats.last_message = now
        given_up = [message for message in messages if message.attempts > limit] if limit else []
        if given_up:
            messages = [message for message in messages if message.attempts <= limit]
        features = receiver.connection.features
        for part in (messages, given_up):
            if not part:
                continue
            batch = Batch(
                part,
                receiver,
                topic=self._subscription.topic,
                channel=self._subscription.channel,
                source=receiver.connection.address,
                starved=receiver.is_starved,
                msg_timeout=features.msg_timeout,
                size=size if len(part) == count else None,
            )
            batch.arrived, batch.expires = now, now + batch.msg_timeout
            batch.deadline = now + features.max_msg_timeout
            if self._all_delivered:  # nsqd may send a message after answering CLS
                batch.requeue(delay=0, backoff=False)
            else:
                self._unsettled.waiting.append(batch)
        self._wake.set()

    async def _work(self) -> None:
        """Pass batches to the handler until the connections are drained and the queue is empty."""
        waiting = self._unsettled.waiting
        while True:
            while waiting and not self._given_up_waiting:
                await self._handle(waiting.popleft())
            if self._rdy.is_behind:
                self._rdy.is_behind = False
                self._rdy.plan()
            if self._all_delivered or self._given_up_waiting:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _handle(self, batch: Batch) -> None:
        """Pass on a batch, without the messages certain to be redelivered."""
        unsettled = self._unsettled
        unsettled.handled = batch
        if unsettled.untouchable:
            unsettled.forget_untouchable()
        if (now := self._loop.time()) > batch.expires:
            forget_expired(batch, now)
        if batch.unsettled():
            batch.leave_out_settled()
            await self._pass_on(batch)
            unsettled.hold(batch)
        unsettled.handled = None

    async def _pass_on(self, batch: Batch) -> None:
        limit, max_attempts = self._limit, self._config.max_attempts
        try:
            if max_attempts and batch[0].attempts > max_attempts:
                if limit:
                    self._given_up.extend((batch.source, message.id) for message in batch)
                await self._handler.gave_up(batch)
                self._stats.given_up += len(batch)
            elif limit is None:
                await self._handler.handle(batch)
            elif limit.take(batch):
                await self._handler.handle(batch)
                if limit.is_exhausted:  # held messages may block the rest
                    self._handler.flush()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                batch.requeue(delay=0, backoff=False)
                raise asyncio.CancelledError from error
            self._failures.failed(error, len(batch.unsettled()), self._loop.time())
            batch.requeue()
        else:
            if not (batch.held or batch.is_settled):
                batch.finish()

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """Count the refusal, without backoff: the handler has not failed (go-nsq#116)."""
        log.debug("%s", error)
        # nsqd names the message (protocol_v2.go, FIN and TOUCH).
        late = [(connection.address, word.encode()) for word in error.text.split()[2:3]]
        if error.code == "E_TOUCH_FAILED":
            self._unsettled.untouchable.update(late)
            return
        self._stats.too_late += 1
        if error.code == "E_FIN_FAILED":
            self._stats.finished -= 1
            if self._limit and not any(each in self._given_up for each in late):
                self._limit.refused(1)
        elif error.code == "E_REQ_FAILED":
            self._stats.requeued -= 1

    # The end.

    async def _drain(self, worker: asyncio.Task[None]) -> None:
        """Send CLS, handle the delivered messages, requeue the rest and close the connections.

        The messages have ``drain_timeout``. A hanging handler has one more second for each of its
        steps: to end its batch, to drain, to close. An nsqd without an answer to CLS delays the
        others only for a moment, and its connection is closed at the end without waiting.
        """
        self._stopping = True
        self._rdy.stop()
        await self._connecting.close()
        topic, drain_timeout = self._subscription.topic, self._config.drain_timeout
        self._deadline = self._loop.time() + drain_timeout
        connections = self._connections()
        await stop_messages(connections, within=drain_timeout)
        self._all_delivered = True
        self._wake.set()
        await asyncio.wait([worker], timeout=max(0.0, self._deadline - self._loop.time()))
        if not worker.done():
            log.error(
                "topic %s: messages were not handled within the drain timeout: they are requeued",
                topic,
            )
            self._stats.abandoned = 1
            self._given_up_waiting = True
            await end([worker], within=_CANCEL_TIMEOUT)
        await self._end_handler("drain", self._handler.drain(topic))
        self._unsettled.give_back()
        if connections:
            await asyncio.sleep(_LINGER)
        for each in self._rdy.connections.values():
            self._stats.unconfirmed += bool(each.last_finish) and not each.connection.answered_cls
        ending = self._connections()
        await together(*(c.close() if c.answered_cls else c.close(drain=0.0) for c in ending))
        if worker.done() and not worker.cancelled():
            worker.result()

    async def _end_handler(self, name: str, step: Awaitable[None]) -> None:
        """Let the handler drain or close; note its error, for ``run`` to raise at the end."""
        limit = max(_CANCEL_TIMEOUT, self._deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(limit) as timeout:
                await step
        except Exception as error:
            if not (isinstance(error, TimeoutError) and timeout.expired()):
                if self.drain_error:  # the first error is raised
                    log.error("topic %s: %s", self._subscription.topic, error)
                self.drain_error = self.drain_error or error
                return
            self._stats.abandoned = 1
            log.error(
                "topic %s: the handler did not %s within the drain timeout: "
                "the messages it holds are requeued",
                self._subscription.topic,
                name,
            )
