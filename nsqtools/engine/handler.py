"""What a handler sees, batches of messages, and what is asked of it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, overload

from nsqtools.proto.messages import Message

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from nsqtools.names import Address

__all__ = ["Batch", "Handler", "Message", "Settle", "loss_of"]

log = logging.getLogger(__name__)


class Settle(Protocol):
    """Where a batch sends its decisions; every message is finished or requeued at most once."""

    def finish(self, messages: Sequence[Message]) -> None:
        """These are safe."""

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        """These are to be delivered again."""

    def touch(self, messages: Sequence[Message]) -> None:
        """These need more time."""

    def forget(self, messages: Sequence[Message]) -> None:
        """These are nsqd's again already."""


class Batch(Sequence[Message]):
    """Messages that arrived together on one connection, in order of arrival.

    ``starved``: nsqd holds back until some are settled, so a sink that gathers should settle now
    (building_client_libraries, Message Flow Starvation). ``msg_timeout``: seconds after which nsqd
    delivers what is not settled again. ``is_lost`` says whether nsqd does so for certain: the
    connection has ended, or its max_msg_timeout has passed, beyond which no TOUCH helps: ``forget``
    them then. Settling a message twice does nothing.

    Finish some messages and requeue the others for half a minute::

        class Evens(Handler):
            async def handle(self, batch: Batch) -> None:
                batch.finish([message for message in batch if len(message.body) % 2 == 0])
                batch.requeue(delay=30.0, backoff=False)
    """

    __slots__ = (
        "_messages",
        "_settle",
        "_size",
        "_unsettled",
        "_watcher",
        "channel",
        "held",
        "is_lost",
        "msg_timeout",
        "source",
        "starved",
        "topic",
    )

    def __init__(
        self,
        messages: Sequence[Message],
        settle: Settle,
        *,
        topic: str,
        channel: str,
        source: Address,
        starved: bool = False,
        msg_timeout: float = 60.0,
        is_lost: Callable[[], bool] = lambda: False,
        size: int | None = None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.source = source
        self.starved = starved
        self.msg_timeout = msg_timeout
        self.is_lost = is_lost
        self.held = False
        self._size = size
        self._watcher: Callable[[int, int], object] | None = None
        self._messages = messages
        self._settle = settle
        # By object, as one read may hold two deliveries of a message. None: all of them.
        self._unsettled: dict[Message, None] | None = None

    def finish(self, messages: Iterable[Message] | None = None) -> None:
        """FIN these, or all that are not settled."""
        if chosen := self._take(messages):
            lost = self.is_lost()
            self._settle.finish(chosen)
            self._tell(0 if lost else len(chosen), of=len(chosen))

    def requeue(
        self,
        messages: Iterable[Message] | None = None,
        *,
        delay: float | None = None,
        backoff: bool = True,
    ) -> None:
        """REQ these, or all that are not settled, after ``delay`` seconds.

        None is the configured delay, which grows with the attempts. ``backoff`` counts them as
        failures that slow the consumer down.
        """
        if chosen := self._take(messages):
            self._settle.requeue(chosen, delay=delay, backoff=backoff)
            self._tell(0, of=len(chosen))

    def forget(self, messages: Iterable[Message] | None = None) -> None:
        """Settle these, or all that are not, without a word: nsqd has taken them back."""
        if chosen := self._take(messages):
            self._settle.forget(chosen)
            self._tell(0, of=len(chosen))

    def touch(self, messages: Iterable[Message] | None = None) -> None:
        """TOUCH these, or all that are not settled: their timeout starts anew."""
        if messages is None:
            chosen = self.unsettled()
        else:
            chosen = [m for m in messages if self._unsettled is None or m in self._unsettled]
        if chosen:
            self._settle.touch(chosen)

    def hold(self) -> None:
        """Returning from ``handle`` shall not finish the rest: the sink settles it later."""
        self.held = True

    def watch(self, watcher: Callable[[int, int], object]) -> None:
        """Call ``watcher`` after each settling with two counts: safe now, and to come again."""
        self._watcher = watcher

    def keep(self, count: int) -> None:
        """Cut the batch down to its first messages; the others go back to nsqd at once."""
        self.requeue(self._messages[count:], delay=0, backoff=False)
        self._messages = self._messages[:count]
        self._size = None

    def unsettled(self) -> Sequence[Message]:
        """The messages that are neither finished nor requeued."""
        return self._messages if self._unsettled is None else list(self._unsettled)

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        if self._size is None:
            self._size = sum([len(message.body) for message in self._messages])
        return self._size

    @property
    def is_settled(self) -> bool:
        """Whether every message is finished or requeued."""
        return self._unsettled is not None and not self._unsettled

    def _take(self, messages: Iterable[Message] | None) -> Sequence[Message]:
        if messages is None:
            chosen = self.unsettled()
            self._unsettled = {}
            return chosen
        if self._unsettled is None:
            self._unsettled = dict.fromkeys(self._messages)
        pop = self._unsettled.pop
        return [message for message in messages if pop(message, self) is None]

    def _tell(self, finished: int, *, of: int) -> None:
        if self._watcher:
            self._watcher(finished, of - finished)

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
    """Where messages go. Derive from it: only ``handle`` has to be written.

    A Consumer calls ``handle`` and ``gave_up``, one batch at a time, and ``close`` at the end. A
    Runner calls all methods, and ``handle`` of several topics at the same time.

    Count messages::

        class Counter(Handler):
            count = 0

            async def handle(self, batch: Batch) -> None:
                self.count += len(batch)
    """

    failed: asyncio.Future[None] | None = None
    """If there is one after ``open``: it ends with the error after which nothing can be handled."""
    lost = 0
    """How many messages were given up without being safe anywhere."""
    left_behind = 0
    """How many messages nsqd keeps because nobody can take them."""
    files = 0
    """How many file descriptors each topic takes."""

    async def open(self) -> None:
        """Get ready; called once, in the event loop. Cancelled, it may take its time to end."""

    async def join(self, topic: str) -> None:
        """Get ready for messages of a topic.

        Raises LockedError if another process has what the topic needs, OutputError or ConfigError
        if it cannot be written; ``join`` is called again later then.
        """

    @abstractmethod
    async def handle(self, batch: Batch) -> None:
        """Return: what is not settled is finished, unless held. Raise: it is requeued, backoff."""

    async def gave_up(self, batch: Batch) -> None:
        """It came ``max_attempts`` times. Return: what is not settled is finished, unless held.

        Unless overridden it logs the loss.
        """
        self.lost += len(batch)
        log.error("%s", loss_of(batch))

    def flush(self) -> None:
        """Settle soon what is held only to be gathered with more."""

    async def drain(self, topic: str) -> None:
        """Settle what is held of a topic and forget the topic: no more of it is to come now.

        Its connections are still open. Messages of the topic may come again after another ``join``.
        Raises OutputError if something could not be settled.
        """

    async def close(self, *, at_once: bool = False) -> None:
        """Let go of everything. ``at_once``: drop what is held, nobody waits for it any more.

        A Consumer calls it after the last batch, while connections are open, so what is held can
        be settled. A Runner calls it once at the very end, even if ``open`` failed.
        """


def loss_of(messages: Sequence[Message], reason: str = "too many attempts") -> str:
    """What to log of messages that were given up where there is no dead letter."""
    ids = " ".join(message.id.decode("ascii", "backslashreplace") for message in messages)
    return f"gave up {len(messages)} messages after {reason}, they are lost: {ids}"
