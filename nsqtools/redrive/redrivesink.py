"""The sink of ``redrive --from-topic``: chosen messages are published and finished, others stay."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqtools.errors import NSQError
from nsqtools.redrive.redriver import LARGEST_LOT_BYTES
from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.sinks.threads import Threads
from nsqtools.tasks import end, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.names import Address
    from nsqtools.policy.stopping import Left
    from nsqtools.redrive.redriver import Redriver

AWAY = 10.0
"""Delay in seconds of messages that stay and cannot all be held."""
_INTERVAL = 0.25
_QUIET = 3.0
"""Seconds without a message, although more are to come, until held messages are deferred."""
_OVERDUE = 75.0
"""Seconds after which no older message is expected, although newer ones keep coming.

nsqd's default message timeout, and AWAY, have passed by then.
"""
_SILENCE = 30.0
"""Maximum seconds during which an nsqd does not tell its number of messages."""


class ChannelDepth(Protocol):
    """The channel on all its nsqds."""

    async def left(self) -> Left:
        """Return the messages in the channel, and the servers without a usable answer."""


class MessageChoice(Protocol):
    """Chooses messages."""

    def bodies(self, source: Address, messages: Sequence[Message]) -> Sequence[bytes | None]:
        """Return the bodies to publish, None for messages that stay; called in a thread.

        The messages are from the nsqd ``source``: another nsqd may use the same ids.
        """

    def settled(self, source: Address, message: Message, refusal: str) -> None:
        """Note that a message was published or, if there is a refusal, that it stays."""


class Chosen(NamedTuple):
    """A message to publish, with this body."""

    batch: Batch
    message: Message
    body: bytes


class RedriveSink(HoldingHandler):
    """A handler that publishes the chosen messages of a channel to ``topic``.

    Each is finished once nsqd has answered OK. A message stays if it is not chosen, if nsqd refuses
    it, or if it was published after ``began``, in ns since the epoch. It is held until the end and
    then given back for delivery at once; if nsqd could send no others meanwhile, it is deferred.
    A message that nsqd has taken back comes again, and is finished if it is published by then.
    ``ended`` has a result once each message of the channel has come, once the redriver's limit is
    reached, or once the redriver is stopped and has the answer to the publish under way.
    """

    def __init__(
        self,
        redriver: Redriver,
        choice: MessageChoice,
        topic: str,
        depth: ChannelDepth,
        *,
        began: int,
    ) -> None:
        self._redriver = redriver
        self._choice = choice
        self._topic = topic
        self._depth = depth
        self._began = began
        self._held = Held()
        self._waiting: dict[tuple[Address, bytes], Chosen] = {}
        self._came = asyncio.Event()
        self._threads = Threads(1, "choice")
        self._tasks: list[asyncio.Task[None]] = []
        self._staying: defaultdict[Address, set[bytes]] = defaultdict(set)
        self._published: defaultdict[Address, set[bytes]] = defaultdict(set)
        self._kept: defaultdict[Address, list[tuple[Batch, Sequence[Message]]]] = defaultdict(list)
        self.is_complete = False
        """Whether the run ended by itself: each message came, or the limit was reached."""
        self.asked: Sequence[Chosen] = ()
        """The messages of the publish under way, or those that a failed one may have published."""
        self._arrived = self._older_arrived = 0.0
        self._in_hand = 0  # batches being judged, and lots being published

    @property
    def staying(self) -> int:
        """The number of messages that came and stay in the channel."""
        return sum(map(len, self._staying.values()))

    async def open(self) -> None:
        """Begin to publish, and to watch the channel."""
        await super().open()
        self._tasks = [self._loop.create_task(each) for each in (self._publish(), self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    async def handle(self, batch: Batch) -> None:
        """Hold the chosen messages to publish them, and the others to give them back."""
        if self.ended.done():
            batch.requeue(delay=0, backoff=False)
            return
        self._held.add(batch)
        source = batch.source
        published, staying = self._published[source], self._staying[source]
        if again := [each for each in batch.unsettled() if each.id in published]:
            self._held.finish(batch, again)
        fresh = [
            each
            for each in batch.unsettled()
            if each.id not in staying and each.timestamp <= self._began
        ]
        self._in_hand += 1
        try:
            bodies: Sequence[bytes | None] = ()
            if fresh:
                bodies = await self._threads.run(self._choice.bodies, source, fresh)
        finally:
            self._in_hand -= 1
        chosen = [
            Chosen(batch, message, body)
            for message, body in zip(fresh, bodies, strict=True)
            if body is not None
        ]
        wanted = {each.message for each in chosen}
        self._keep(batch, [each for each in batch.unsettled() if each not in wanted])
        self._arrived = self._loop.time()
        if fresh:
            self._older_arrived = self._arrived
        self._waiting |= {(source, each.message.id): each for each in chosen}
        self._came.set()
        if batch.starved:
            self._defer(source)

    async def gave_up(self, batch: Batch) -> None:
        """Handle the batch: nothing is given up."""
        await self.handle(batch)

    async def drain(self, topic: str) -> None:
        """Wait for the answer to the current publish, and give back the other messages."""
        self._redriver.stopping.set()
        try:
            await asyncio.wait(self._tasks[:1])
        finally:
            self._waiting.clear()
            for batch in self._held.batches:
                self._held.give_back(batch)

    async def close(self, *, at_once: bool = False) -> None:
        """End all work."""
        await end(self._tasks)
        self._threads.close()

    def _keep(self, batch: Batch, messages: Sequence[Message]) -> None:
        """Hold messages that stay."""
        if messages:
            self._staying[batch.source].update([message.id for message in messages])
            self._kept[batch.source].append((batch, messages))

    def _defer(self, source: Address) -> None:
        """Make room for other messages of an nsqd."""
        for kept in self._kept.pop(source, ()):
            self._held.requeue(*kept, delay=AWAY, backoff=False)

    async def _publish(self) -> None:
        """Publish one lot after another."""
        while self._redriver.room > 0:
            while not self._waiting and not self._redriver.stopping.is_set():
                self._came.clear()
                await interruptible(self._came.wait(), self._redriver.stopping)
            if self._redriver.stopping.is_set():
                break
            if lot := self._next_lot():
                self._in_hand += 1
                try:
                    await self._publish_lot(lot)
                finally:
                    self._in_hand -= 1
        self._end(is_complete=self._redriver.room <= 0)

    def _next_lot(self) -> list[Chosen]:
        """Take messages that nsqd has not taken back, and that were not published, meanwhile."""
        lot: list[Chosen] = []
        size = 0
        while self._waiting and len(lot) < self._redriver.room and size < LARGEST_LOT_BYTES:
            each = self._waiting.pop(next(iter(self._waiting)))
            source, message_id = each.batch.source, each.message.id
            if message_id in self._published[source]:
                self._held.finish(each.batch, [each.message])
            elif message_id in self._staying[source]:
                self._keep(each.batch, [each.message])
            elif not self._held.forget_lost(each.batch, [each.message]):
                lot.append(each)
                size += len(each.body)
        return lot

    async def _publish_lot(self, lot: Sequence[Chosen]) -> None:
        if not await self._redriver.wait(len(lot)):
            return
        self.asked = lot
        refused = await self._redriver.publish(self._topic, [each.body for each in lot])
        failure = self._redriver.failure
        self.asked = [lot[position] for position in refused] if failure else ()
        finished: defaultdict[Batch, list[Message]] = defaultdict(list)
        staying: defaultdict[Batch, list[Message]] = defaultdict(list)
        for position, each in enumerate(lot):
            stays = self._redriver.dry or position in refused
            if stays and failure:
                continue
            (staying if stays else finished)[each.batch].append(each.message)
            refusal = self._redriver.refusal if stays else ""
            self._choice.settled(each.batch.source, each.message, refusal)
        for batch, messages in finished.items():
            self._published[batch.source].update([message.id for message in messages])
            self._held.finish(batch, messages)
        for batch, messages in staying.items():
            self._keep(batch, messages)
        self.left_behind = self._redriver.refused
        if failure:
            raise failure

    async def _watch(self) -> None:
        """End the run when the channel has only messages that came and stay.

        Two checks in a row must say so: during one check a message may be on its way.
        """
        answered = self._arrived = self._older_arrived = self._loop.time()
        checks = 0
        while True:
            await asyncio.sleep(_INTERVAL)
            if self._in_hand or self._waiting:
                answered = self._arrived = self._older_arrived = self._loop.time()
                checks = 0
                continue
            staying = self.staying
            left = await self._depth.left()
            checks = checks + 1 if not left.unknown and left.messages <= staying else 0
            if not left.unknown:
                answered = self._loop.time()
                is_overdue = self._arrived > self._older_arrived + _OVERDUE
                if checks == 2 or is_overdue:
                    self._end(is_complete=True)
                    return
                if answered > self._arrived + _QUIET:  # other connections may have lowered RDY
                    self._fall_quiet()
            elif self._loop.time() > answered + _SILENCE:
                servers = "; ".join(left.unknown)
                raise NSQError(f"unknown whether all messages have come: {servers}")

    def _fall_quiet(self) -> None:
        """Make room for messages that do not come."""
        for source in list(self._kept):
            self._defer(source)

    def _end(self, *, is_complete: bool) -> None:
        self.is_complete = self.is_complete or is_complete
        if not self.ended.done():
            self.ended.set_result(None)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)


class Seeker(MessageChoice, Protocol):
    """Chooses certain messages, and knows how many are still to be published."""

    @property
    def sought(self) -> int:
        """The number of messages neither published nor refused yet."""


class SearchSink(RedriveSink):
    """A handler that publishes the messages that a seeker seeks, and touches few others.

    Others are held and given back once, for delivery at once, and never deferred: as soon as all
    sought messages are found, ``expected`` messages published before ``began`` have come, or no
    others come. Then it calls ``receive_none``, and publishes those found.
    """

    def __init__(
        self,
        redriver: Redriver,
        seeker: Seeker,
        topic: str,
        depth: ChannelDepth,
        *,
        began: int,
        expected: int,
    ) -> None:
        super().__init__(redriver, seeker, topic, depth, began=began)
        self._seeker = seeker
        self._expected = expected
        self._older: set[tuple[Address, bytes]] = set()
        self._lot_size = 0
        self._is_searching = True
        self.receive_none: Callable[[], object] = lambda: None
        """Ends the delivery of messages; for the consumer's maker to set."""

    @property
    def searched(self) -> int:
        """The number of messages that came and were published before the search began."""
        return len(self._older)

    async def handle(self, batch: Batch) -> None:
        """Hold the batch while messages are sought."""
        if not self._is_searching:
            batch.requeue(delay=0, backoff=False)
            return
        source = batch.source
        self._older |= {(source, each.id) for each in batch if each.timestamp <= self._began}
        await super().handle(batch)
        if self._seeker.sought <= len(self._waiting) + self._lot_size:
            self._end_search()
        elif len(self._older) >= self._expected:
            self._end_search(has_all=True)

    def _defer(self, source: Address) -> None:
        """Defer nothing."""

    def _fall_quiet(self) -> None:
        """End the search: more messages come only if others are given back."""
        self._end_search()

    def _end_search(self, *, has_all: bool = False) -> None:
        if self._is_searching:
            self._is_searching, self.is_complete = False, has_all
            self.receive_none()  # before messages are given back, or they would come again
            for kept in self._kept.values():
                for each in kept:
                    self._held.give_back(*each)
            self._kept.clear()
            self._end_if_done()

    async def _publish_lot(self, lot: Sequence[Chosen]) -> None:
        self._lot_size = len(lot)
        try:
            await super()._publish_lot(lot)
        finally:
            self._lot_size = 0
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not (self._is_searching or self._waiting or self._lot_size):
            self._end(is_complete=False)
