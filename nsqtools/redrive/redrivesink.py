"""The sink of ``redrive --from-topic``: chosen messages are published and finished, others stay."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqtools.errors import NSQError
from nsqtools.policy.stopping import Left
from nsqtools.redrive.redriver import LARGEST_LOT_BYTES
from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.sinks.threads import Threads
from nsqtools.tasks import end, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsqtools.clock import ServerClock
    from nsqtools.engine.handler import Batch, Message
    from nsqtools.names import Address
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
_NO_CLOCK = "redrive it alone, with its own HTTP address in --nsqd-http-address"
_SOON = 1.0
"""Delay in seconds of messages from an nsqd whose clock is not known yet."""
_ASKED = 5.0
"""Seconds after which nsqds are asked again although messages wait: a clock may have been set."""


class ChannelDepth(Protocol):
    """The channel on all its nsqds."""

    @property
    def clocks(self) -> Mapping[Address, ServerClock]:
        """The clock of each nsqd, as of its last answer that has told it."""

    @property
    def holding(self) -> Mapping[Address, int]:
        """The number of messages on each nsqd, as of its last answer; without unknown nsqds."""

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


class RunStart:
    """Tells what was in a channel at the start of a run from what has come into it since.

    Each nsqd has dated its messages by its own clock, which is known to about a second. So the run
    waits that long with its first publish: none of its messages can then have failed again, and be
    back in the channel, at a time that may be the start. Times are seconds of the loop's clock.
    """

    def __init__(self, at: float) -> None:
        self._at = at
        self._published: float | None = None

    def delay(self, clocks: Iterable[ServerClock], now: float) -> float:
        """Return for how many seconds to wait with the first publish."""
        if self._published is not None:
            return 0.0
        return max(0.0, self._at + max(each.uncertainty for each in clocks) - now)

    def publishes(self, now: float) -> None:
        """Note that a publish begins."""
        if self._published is None:
            self._published = now

    def is_older(self, timestamp: int, clock: ServerClock) -> bool:
        """Whether a message of an nsqd with this clock was there at the start."""
        newest = clock.latest(self._at)
        if self._published is not None:
            newest = min(newest, clock.earliest(self._published))
        return timestamp <= newest


class RedriveSink(HoldingHandler):
    """A handler that publishes the chosen messages of a channel to ``topic``.

    Each is finished once nsqd has answered OK. A message stays if it is not chosen, if nsqd refuses
    it, or if it was published after ``start``. Without a ``start`` the choice alone decides. What
    stays is held until the end and then given back for delivery at once; if nsqd could send no
    others meanwhile, it is deferred.
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
        start: RunStart | None,
    ) -> None:
        self._redriver = redriver
        self._choice = choice
        self._topic = topic
        self._depth = depth
        self._start = start
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
        self.misdated: set[tuple[Address, bytes]] = set()
        """Messages that stay because they are from the future of their nsqd's clock.

        It was set back after they were published, so whether they are older is unknown."""
        self._undated: set[Address] = set()  # nsqds with messages, whose clocks are not known
        self._arrived = self._older_arrived = 0.0
        self._heard: dict[Address, float] = {}  # when messages came from an nsqd
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
        if self._start and source not in self._depth.clocks:
            delay = AWAY if source in self._undated else _SOON
            self._undated.add(source)
            self._held.requeue(batch, delay=delay, backoff=False)
            return
        fresh = [
            each
            for each in batch.unsettled()
            if each.id not in staying and self._is_older(source, each)
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
        self._arrived = self._heard[source] = self._loop.time()
        if fresh:
            self._older_arrived = self._arrived
        self._waiting |= {(source, each.message.id): each for each in chosen}
        self._came.set()
        if batch.starved:
            self._defer(source)

    def _is_older(self, source: Address, message: Message) -> bool:
        """Whether a message was in the channel at the start."""
        if not self._start:
            return True
        clock = self._depth.clocks[source]
        if message.timestamp > clock.latest(self._loop.time()):
            self.misdated.add((source, message.id))
        return self._start.is_older(message.timestamp, clock)

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
        if self._start and not self._redriver.dry:
            delay = self._start.delay(self._depth.clocks.values(), self._loop.time())
            await interruptible(asyncio.sleep(delay), self._redriver.stopping)
        if not await self._redriver.wait(len(lot)):
            return
        if self._start and not self._redriver.dry:
            self._start.publishes(self._loop.time())
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
        asked = answered = self._arrived = self._older_arrived = self._loop.time()
        checks = 0
        while True:
            await asyncio.sleep(_INTERVAL)
            if self._in_hand or self._waiting:
                answered = self._arrived = self._older_arrived = self._loop.time()
                checks = 0
                if self._undated or self._loop.time() > asked + _ASKED:
                    await self._left()
                    asked = self._loop.time()
                continue
            staying = self.staying
            left = await self._left()
            checks = checks + 1 if not left.unknown and left.messages <= staying else 0
            if not left.unknown:
                answered = self._loop.time()
                is_overdue = self._arrived > self._older_arrived + _OVERDUE
                is_overdue = is_overdue and not self._awaits_nsqd()
                if checks == 2 or is_overdue:
                    self._end(is_complete=True)
                    return
                if answered > self._arrived + _QUIET:  # other connections may have lowered RDY
                    self._fall_quiet()
            elif self._loop.time() > answered + _SILENCE:
                servers = "; ".join(left.unknown)
                raise NSQError(f"unknown whether all messages have come: {servers}")

    def _awaits_nsqd(self) -> bool:
        """Whether an nsqd with messages that have not come has sent none for long.

        It may be unreachable, while the others send newer messages.
        """
        since = self._loop.time() - _OVERDUE
        return any(
            count > len(self._staying[nsqd]) and self._heard.get(nsqd, 0.0) < since
            for nsqd, count in self._depth.holding.items()
        )

    def _fall_quiet(self) -> None:
        """Make room for messages that do not come."""
        for source in list(self._kept):
            self._defer(source)

    async def _left(self) -> Left:
        """Return what is in the channel; nsqds that should have told their clocks are unknown."""
        left = await self._depth.left()
        self._undated -= self._depth.clocks.keys()
        unknown = (f"nsqd {each}: its clock is unknown: {_NO_CLOCK}" for each in self._undated)
        return left + Left(unknown=tuple(unknown))

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

    What is found is published meanwhile. The search ends as soon as all sought messages are found,
    ``expected`` messages have come, or no others come. Then it calls ``receive_none``, and gives
    the others back once, for delivery at once; none is ever deferred.
    """

    def __init__(
        self,
        redriver: Redriver,
        seeker: Seeker,
        topic: str,
        depth: ChannelDepth,
        *,
        expected: int,
    ) -> None:
        super().__init__(redriver, seeker, topic, depth, start=None)
        self._seeker = seeker
        self._expected = expected
        self._came_once: set[tuple[Address, bytes]] = set()
        self._lot_size = 0
        self._is_searching = True
        self.receive_none: Callable[[], object] = lambda: None
        """Ends the delivery of messages; for the consumer's maker to set."""

    @property
    def searched(self) -> int:
        """The number of messages that came, each counted once."""
        return len(self._came_once)

    async def handle(self, batch: Batch) -> None:
        """Hold the batch while messages are sought."""
        if not self._is_searching:
            batch.requeue(delay=0, backoff=False)
            return
        self._came_once |= {(batch.source, each.id) for each in batch}
        await super().handle(batch)
        if self._seeker.sought <= len(self._waiting) + self._lot_size:
            self._end_search()
        elif self.searched >= self._expected:
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
