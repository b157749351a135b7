"""Handlers, and their batches of messages."""

from __future__ import annotations

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, overload

from nsqtools.config.units import counted
from nsqtools.errors import ConfigError, NSQError
from nsqtools.names import check_seconds, check_type
from nsqtools.proto.messages import Message as Message

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from nsqtools.names import Address

log = logging.getLogger(__name__)


class Settler(Protocol):
    """Sends FIN, REQ and TOUCH for a batch, with at most one FIN or REQ per message."""

    def is_lost(self, deadline: float) -> bool:
        """Whether the connection has ended or ``deadline``, an event loop time, has passed."""

    def finish(self, messages: Sequence[Message]) -> None:
        """Send FIN."""

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        """Send REQ; ``delay`` is in seconds, None for the configured delay."""

    def touch(self, messages: Sequence[Message]) -> None:
        """Send TOUCH."""

    def forget(self, messages: Sequence[Message]) -> None:
        """Send nothing: nsqd has requeued these messages itself."""


class Batch(Sequence[Message]):
    """Messages received together on one connection, in order of arrival.

    ``starved`` is true if nsqd is about to stop sending until messages are settled: a sink that
    collects messages should settle them now (building_client_libraries, Message Flow Starvation).
    ``msg_timeout`` is nsqd's timeout for an unsettled message, in seconds. ``is_lost()`` is true
    once nsqd is certain to redeliver the messages: the connection has ended, or max_msg_timeout has
    passed. Call ``forget`` then. Until that time unsettled messages are touched, however long they
    wait, are handled, or are held. Settling a message twice has no effect.

    Finish some messages and requeue the others for half a minute::

        class Evens(Handler):
            async def handle(self, batch: Batch) -> None:
                batch.finish([message for message in batch if len(message.body) % 2 == 0])
                batch.requeue(delay=30.0, backoff=False)
    """

    __slots__ = (
        "_messages",
        "_parts",
        "_settler",
        "_size",
        "_unsettled",
        "_watchers",
        "arrived",
        "channel",
        "deadline",
        "expires",
        "held",
        "msg_timeout",
        "on_settled",
        "source",
        "starved",
        "topic",
        "touched",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        settler: Settler,
        *,
        topic: str,
        channel: str,
        source: Address,
        starved: bool = False,
        msg_timeout: float = 60.0,
        size: int | None = None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.source = source
        self.starved = starved
        self.msg_timeout = msg_timeout
        self.held = False
        self.arrived = 0.0
        """Event loop time of the arrival."""
        self.expires = math.inf
        """Event loop time at which nsqd times out messages, unless they are touched before."""
        self.deadline = math.inf
        """Event loop time at which max_msg_timeout ends; TOUCH no longer helps afterwards."""
        self.touched = False
        self.on_settled: Callable[[Batch], object] | None = None
        """Called with the batch once all its messages are settled."""
        self._parts: list[Batch] = []
        self._size = size
        self._watchers: tuple[Callable[[int, int], object], ...] = ()
        self._messages = messages
        self._settler = settler
        # Keyed by object: one read may hold two deliveries of a message. None means all messages.
        self._unsettled: dict[Message, None] | None = None

    def is_lost(self) -> bool:
        """Whether nsqd is certain to redeliver the messages."""
        return self._settler.is_lost(self.deadline)

    def finish(self, messages: Iterable[Message] | None = None) -> None:
        """Finish these messages, or all unsettled ones; forget them if the batch is lost."""
        if self.is_lost():
            self.forget(messages)
        elif chosen := self._take(messages):
            self._settler.finish(chosen)
            self._tell(len(chosen), of=len(chosen))

    def requeue(
        self,
        messages: Iterable[Message] | None = None,
        *,
        delay: float | None = None,
        backoff: bool = True,
    ) -> None:
        """Requeue these messages, or all unsettled ones, after ``delay`` seconds.

        None means the configured delay, which grows with the attempts. With ``backoff`` the
        messages count as failures and slow the consumer down.
        """
        if delay is not None:
            check_seconds("delay", delay)
        if chosen := self._take(messages):
            self._settler.requeue(chosen, delay=delay, backoff=backoff)
            self._tell(0, of=len(chosen))

    def forget(self, messages: Iterable[Message] | None = None) -> None:
        """Drop these messages, or all unsettled ones, without a command: nsqd has requeued them."""
        if chosen := self._take(messages):
            self._settler.forget(chosen)
            self._tell(0, of=len(chosen))

    def leave_out_settled(self) -> None:
        """Remove settled messages from the batch; call this before a handler has seen the batch."""
        if self._unsettled is not None:
            self._messages, self._unsettled, self._size = list(self._unsettled), None, None

    def touch(self, messages: Iterable[Message] | None = None) -> None:
        """Touch these messages, or all unsettled ones: their timeout restarts."""
        if messages is None:
            chosen = self.unsettled()
        else:
            left = self._unsettled
            chosen = [m for m in _several(messages) if left is None or m in left]
        if chosen:
            self._settler.touch(chosen)

    def hold(self) -> None:
        """Keep messages unsettled when ``handle`` returns; the handler settles them later."""
        self.held = True

    def watch(self, watcher: Callable[[int, int], object]) -> None:
        """Call ``watcher`` after each settling with two counts: finished, and to be redelivered."""
        self._watchers += (watcher,)

    def keep(self, count: int) -> None:
        """Keep the first ``count`` messages; requeue the others at once, without backoff."""
        self.requeue(self._messages[count:], delay=0, backoff=False)
        self._messages = self._messages[:count]
        self._size = None

    def part(self, messages: Iterable[Message]) -> Batch:
        """Move these messages to a new batch, settled independently, and return it.

        Call this before ``handle`` returns.
        """
        chosen = self._take(messages)
        part = Batch(
            chosen,
            self._settler,
            topic=self.topic,
            channel=self.channel,
            source=self.source,
            starved=self.starved,
            msg_timeout=self.msg_timeout,
        )
        part._watchers = self._watchers
        part.expires, part.deadline, part.touched = self.expires, self.deadline, self.touched
        self._parts.append(part)
        return part

    @property
    def parts(self) -> Iterator[Batch]:
        """This batch and all its parts, parts of parts included."""
        yield self
        for part in self._parts:
            yield from part.parts

    def unsettled(self) -> Sequence[Message]:
        """The messages neither finished nor requeued."""
        return self._messages if self._unsettled is None else list(self._unsettled)

    @property
    def size(self) -> int:
        """Total size of the bodies, in bytes."""
        if self._size is None:
            self._size = sum([len(message.body) for message in self._messages])
        return self._size

    @property
    def is_settled(self) -> bool:
        """Whether every message is finished or requeued, except messages moved to a part."""
        return self._unsettled is not None and not self._unsettled

    def _take(self, messages: Iterable[Message] | None) -> Sequence[Message]:
        if messages is None:
            chosen = self.unsettled()
            self._unsettled = {}
            return chosen
        if self._unsettled is None:
            self._unsettled = dict.fromkeys(self._messages)
        pop = self._unsettled.pop
        return [message for message in _several(messages) if pop(message, self) is None]

    def _tell(self, finished: int, *, of: int) -> None:
        for watcher in self._watchers:
            watcher(finished, of - finished)
        if self.on_settled and self.is_settled:
            self.on_settled(self)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}/{self.channel} from {self.source}: {len(self)} messages, "
            f"{len(self.unsettled())} unsettled>"
        )


class Handler(ABC):
    """The destination of messages. Subclasses must implement ``handle``; the rest is optional.

    A Consumer calls ``open`` and ``join``, then ``handle`` and ``gave_up``, one batch at a time,
    then ``drain`` and ``close``. A Runner calls ``handle`` for several topics at the same time.

    Count messages::

        class Counter(Handler):
            count = 0

            async def handle(self, batch: Batch) -> None:
                self.count += len(batch)
    """

    ended: asyncio.Future[None] | None = None
    """A future that ``open`` may set; once the future is done, the run drains and ends.

    Its exception is the cause; it has a result if the handler needs no more messages.
    """
    lost = 0
    """The number of messages given up without being stored anywhere."""
    dead_lettered = 0
    """The number of messages stored as dead letters."""
    left_behind = 0
    """The number of messages staying in nsqd because no endpoint or consumer can take them."""

    async def open(self) -> None:
        """Prepare; called once, in the event loop. If cancelled, it may finish its clean-up."""

    async def join(self, topic: str) -> None:
        """Prepare for messages of a topic.

        Raises LockedError if another process holds a lock of the topic, and OutputError or
        ConfigError if its output cannot be written. After such an error ``join`` is called again
        later.
        """

    @abstractmethod
    async def handle(self, batch: Batch) -> None:
        """Handle a batch; unsettled messages are finished on return, requeued on an exception.

        ``Batch.hold`` keeps them unsettled on return. An exception slows the consumer down by
        backoff.
        """

    async def gave_up(self, batch: Batch) -> None:
        """Handle messages delivered ``max_attempts`` times before.

        Unsettled messages are finished on return, unless held. The default logs the loss.
        """
        self.lost += len(batch)
        log.error("%s", loss_of(batch))

    def flush(self) -> None:
        """Settle soon any messages held only to be written together with later messages."""

    async def drain(self, topic: str) -> None:
        """Settle all held messages of a topic, and release the topic.

        The topic's connections are still open. After another ``join`` its messages may come again.
        Raises OutputError if messages could not be settled.
        """

    async def close(self, *, at_once: bool = False) -> None:
        """Release everything; no message can be settled any more, which is the task of ``drain``.

        Called once at the very end, even if ``open`` failed. With ``at_once`` no ``drain`` came
        before: drop the held messages.
        """


def check_handler(handler: object) -> None:
    """Raise ConfigError unless this is a Handler with a coroutine function ``handle``."""
    check_type("handler", handler, Handler)
    assert isinstance(handler, Handler)
    if not inspect.iscoroutinefunction(inspect.unwrap(handler.handle)):
        raise ConfigError(f"handler: {type(handler).__name__}.handle: write async def handle")


async def close_after_error(handler: Handler, *, at_once: bool) -> None:
    """Close a handler after an error, which the caller raises; only log another error."""
    try:
        await handler.close(at_once=at_once)
    except Exception as another:
        log.error("%s", another, exc_info=not isinstance(another, NSQError))


def _several(messages: Iterable[Message]) -> Iterable[Message]:
    if isinstance(messages, Message):
        raise ConfigError("messages: expected a list of Message, found Message: write [message]")
    return messages


TOO_MANY = "too many attempts"


def loss_of(messages: Sequence[Message], reason: str = TOO_MANY) -> str:
    """Return the log line for messages given up without a dead letter."""
    if reason == TOO_MANY:
        reason = counted(max(message.attempts for message in messages) - 1, "attempt")
    ids = " ".join(message.id.decode("ascii", "backslashreplace") for message in messages)
    return f"gave up {counted(len(messages), 'message')} after {reason}, lost: {ids}"
