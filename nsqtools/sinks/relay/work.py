"""The work of one relayed topic: its batches wait, are published together, and are settled."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import REFUSED_BODY, OutputError, PublishError, RecordError, ServerError
from nsqtools.sinks.holding import Held

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.sinks.relay.counts import Counts
    from nsqtools.sinks.relay.relaysink import RelaySink

_UNDER_WAY = 4
"""Publishes of a topic at once: one is written while others are answered."""
_MOST = 5000
"""Messages of one publish, more or less."""
_LOOK = 0.1
"""Seconds between two looks for a destination while draining."""
_LOOKS = 5
"""In a row at which there was none: time enough to settle what was answered before it went."""


class _Lot(NamedTuple):
    """Messages of a batch, and the bodies to publish for them."""

    batch: Batch
    messages: Sequence[Message]
    bodies: Sequence[bytes]


class _Waits:
    """Waits that can all be cut short, for good."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_cut = False

    def __bool__(self) -> bool:
        return bool(self._limits)

    async def done(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether the work ended by itself; once cut, it does not even begin. Raises its errors."""
        if self._is_cut:
            return False
        try:
            async with asyncio.timeout(None) as limit:
                self._limits.add(limit)
                try:
                    await work()
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True

    def cut(self) -> None:
        """End all that wait, and all that would."""
        if not self._is_cut:
            self._is_cut = True
            now = asyncio.get_running_loop().time()
            for limit in self._limits:
                limit.reschedule(now)


class Work:
    """One topic's batches: those that wait, and those that are being published."""

    def __init__(self, sink: RelaySink, counts: Counts) -> None:
        self._sink = sink
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._held = Held()
        self._waiting: list[Batch] = []
        self._working: dict[asyncio.Task[None], list[Batch]] = {}
        self._turns = _Waits()
        self._publishes = _Waits()

    def add(self, batch: Batch) -> None:
        """Have a batch published."""
        self._held.add(batch)
        self._counts.received += len(batch)
        self._waiting.append(batch)
        self._start()

    def bury(self, batch: Batch) -> None:
        """Have a batch written to the dead letters."""
        self._held.add(batch)
        self._counts.received += len(batch)
        self._spawn([batch], self._bury(batch))

    async def end(self) -> None:
        """Wait until everything is settled; cancelled, what is not stays so.

        What waits for its turn at a rate goes back, as all does while there is no destination.
        """
        try:
            if self._turns:
                self._give_up_waiting()
            self._turns.cut()
            looks = 0
            while self._working:
                await asyncio.wait(self._working, timeout=_LOOK)
                looks = 0 if self._sink.producer.is_connected else looks + 1
                if looks == _LOOKS:
                    self._give_up_waiting()
                    self._publishes.cut()
        finally:
            await self.leave()

    def _give_up_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._give_back(batch)

    async def leave(self) -> None:
        """Publish nothing more."""
        self._waiting.clear()
        self._held.close()
        if self._working:
            for task in self._working:
                task.cancel()
            await asyncio.wait(list(self._working))

    def _start(self) -> None:
        while self._waiting and len(self._working) < _UNDER_WAY:
            count = size = 0
            while count < len(self._waiting) and size < _MOST:
                size += len(self._waiting[count])
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._spawn(taken, self._work(taken))

    def _spawn(self, taken: list[Batch], work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working[task] = taken
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        taken = self._working.pop(task)
        if not task.cancelled():
            if error := task.exception():
                for batch in taken:
                    self._give_back(batch)
                self._sink.fail(error)
            self._start()

    async def _work(self, batches: Sequence[Batch]) -> None:
        """Have messages filtered, edited and published, at the rate that is allowed."""
        lots = []
        for batch in batches:
            if self._held.forget_lost(batch):  # they come again on another connection
                continue
            if (lot := await self._prepare(batch)).bodies:
                lots.append(lot)
        pace = self._sink.pace
        while count := sum(len(lot.bodies) for lot in lots):
            burst = pace.burst(count)
            delay = pace.delay(burst, now=self._loop.time())
            if delay and not await self._turns.done(partial(asyncio.sleep, delay)):
                break
            now, later = (lots, []) if burst == count else _split(lots, burst)
            if not await self._publish(now):
                break
            lots = later
        for lot in lots:
            self._give_back(lot.batch, lot.messages)

    async def _prepare(self, batch: Batch) -> _Lot:
        """What is to be published of a batch; the rest of it is settled."""
        messages = batch.unsettled()
        sink = self._sink
        bodies = [message.body for message in messages]
        if sink.rules.passes_all:
            return _Lot(batch, messages, bodies)
        found = await sink.threads.start(sink.rules.apply_all, bodies)
        passed: list[Message] = []
        bodies = []
        filtered: list[Message] = []
        refused: dict[str, list[Message]] = defaultdict(list)
        for message, body in zip(messages, found, strict=True):
            if isinstance(body, RecordError):
                refused[str(body)].append(message)
            elif body is None:
                filtered.append(message)
            else:
                passed.append(message)
                bodies.append(body)
        if filtered:
            self._counts.filtered += len(filtered)
            self._held.finish(batch, filtered)
        for reason, rejected in refused.items():
            await self._reject(batch, rejected, reason)
        return _Lot(batch, passed, bodies)

    async def _publish(self, lots: Sequence[_Lot]) -> bool:
        """Publish lots together, and settle them; False, with nothing settled, if cut short."""
        sink, counts = self._sink, self._counts
        bodies = list(chain.from_iterable(lot.bodies for lot in lots))
        publish = partial(sink.producer.publish, counts.destination, bodies, defer=sink.defer)
        try:
            if not await self._publishes.done(publish):
                return False
        except PublishError as error:
            await self._settle(lots, error)
        else:
            for batch, messages, _ in lots:
                self._held.finish(batch, messages)
            counts.relayed += len(bodies)
            sink.relayed(len(bodies))
        return True

    async def _settle(self, lots: Sequence[_Lot], error: PublishError) -> None:
        """Finish what was taken all the same, and give back or reject the rest."""
        refused = set(error.refused)
        blamed = _blames_bodies(error)
        start = taken = 0
        for batch, messages, _ in lots:
            left = [m for at, m in enumerate(messages, start) if at in refused]
            good = [m for at, m in enumerate(messages, start) if at not in refused]
            start += len(messages)
            taken += len(good)
            self._held.finish(batch, good)
            if left and blamed:
                await self._reject(batch, left, str(error))
            elif left:
                self._requeue(batch, left)
        self._counts.relayed += taken
        self._sink.relayed(taken)
        if not blamed:
            self._tell(len(refused), f"were not published and go back to nsqd: {error}")

    async def _reject(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Have messages that cannot be relayed written as dead letters, or give them back."""
        sink = self._sink
        if sink.dead_letters.is_lossy:
            sink.left_behind += len(messages)
            fate = f"cannot be relayed and go back to nsqd: {reason}"
            self._tell(len(messages), fate, logging.WARNING)
            self._requeue(batch, messages, backoff=False)
        elif await self._write(batch, messages, reason):
            self._tell(len(messages), f"went to the dead letters: {reason}", logging.WARNING)

    async def _bury(self, batch: Batch) -> None:
        """Dead letters of messages that came too often, or a log line about their loss."""
        await self._write(batch, batch.unsettled(), "too many attempts")

    async def _write(self, batch: Batch, messages: Sequence[Message], reason: str) -> bool:
        """Write dead letters and settle; whether they are safe. What nsqd took back comes again."""
        if self._held.forget_lost(batch, messages):
            return False
        counts = self._counts
        try:
            await self._sink.dead_letters.write(batch, messages, reason)
        except OutputError as error:
            self._tell(len(messages), f"go back to nsqd: {error}")
            hopeless = _blames_bodies(error.__cause__)
            if hopeless:
                self._sink.left_behind += len(messages)
            self._requeue(batch, messages, backoff=not hopeless)
            return False
        if self._sink.dead_letters.is_lossy:
            self._sink.lost += len(messages)
            counts.lost += len(messages)
        else:
            counts.dead_lettered += len(messages)
        self._held.finish(batch, messages)
        return True

    def _tell(self, count: int, fate: str, level: int = logging.ERROR) -> None:
        self._sink.repeats.tell(level, self._counts.topic, count, fate)

    # Back to nsqd.

    def _give_back(self, batch: Batch, messages: Sequence[Message] | None = None) -> None:
        """Have another consumer get these, or all that are not settled, at once."""
        chosen = batch.unsettled() if messages is None else messages
        self._requeue(batch, chosen, delay=0, backoff=False)

    def _requeue(
        self,
        batch: Batch,
        messages: Sequence[Message],
        *,
        delay: float | None = None,
        backoff: bool = True,
    ) -> None:
        if not batch.is_lost():
            self._counts.requeued += len(messages)
        self._held.requeue(batch, messages, delay=delay, backoff=backoff)


def _split(lots: Sequence[_Lot], count: int) -> tuple[list[_Lot], list[_Lot]]:
    """The first ``count`` messages, and the others."""
    first: list[_Lot] = []
    for number, (batch, messages, bodies) in enumerate(lots):
        if count < len(bodies):
            first.append(_Lot(batch, messages[:count], bodies[:count]))
            return first, [_Lot(batch, messages[count:], bodies[count:]), *lots[number + 1 :]]
        first.append(lots[number])
        count -= len(bodies)
    return first, []


def _blames_bodies(error: BaseException | None) -> bool:
    """Whether a publish failed because of bodies, not of rights or of a delay that nsqd refuses."""
    if not isinstance(error, PublishError) or not error.permanent:
        return False
    cause = error.__cause__
    return cause is None or (isinstance(cause, ServerError) and cause.code in REFUSED_BODY)
