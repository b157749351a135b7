"""Publication of one relayed topic: its batches wait, are published together, and are settled."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.engine.handler import TOO_MANY
from nsqtools.errors import REFUSED_BODY, OutputError, PublishError, RecordError, ServerError
from nsqtools.sinks.holding import Held
from nsqtools.tasks import Tasks, is_cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.sinks.relay.counts import Counts
    from nsqtools.sinks.relay.relaysink import RelaySink

_UNDER_WAY = 4
"""Concurrent publishes of a topic: one is written while others wait for responses."""
_MOST = 5000
"""Approximate maximum of messages per publish."""
_CHECK_INTERVAL = 0.1
"""Seconds between checks for a destination while draining."""
_LOOKS = 5
"""Consecutive checks without a destination that end the wait; answered messages are settled by
then.
"""


class _Lot(NamedTuple):
    """Messages of a batch, and the bodies to publish for them."""

    batch: Batch
    messages: Sequence[Message]
    bodies: Sequence[bytes]


class _Waits:
    """Waits that can all be ended at once, permanently."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_cut = False

    def __bool__(self) -> bool:
        return bool(self._limits)

    async def done(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Await the work; return False if it is cut, or was before. Raises the work's errors."""
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
        """End all current and future waits."""
        if not self._is_cut:
            self._is_cut = True
            now = asyncio.get_running_loop().time()
            for limit in self._limits:
                limit.reschedule(now)


class Work:
    """The batches of one topic that wait or are being published."""

    def __init__(self, sink: RelaySink, counts: Counts) -> None:
        self._sink = sink
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._held = Held()
        self._waiting: list[Batch] = []
        self._tasks = Tasks(self._failed)
        self._turns = _Waits()
        self._publishes = _Waits()

    def add(self, batch: Batch) -> None:
        """Queue a batch for publishing."""
        self._held.add(batch)
        self._counts.received += len(batch)
        self._waiting.append(batch)
        self._start()

    def bury(self, batch: Batch) -> None:
        """Write a batch to the dead letters."""
        self._held.add(batch)
        self._counts.received += len(batch)
        self._tasks.begin(self._process([batch], self._bury))

    async def end(self) -> None:
        """Wait until everything is settled; if cancelled, stop.

        Messages that wait for the rate limit are requeued, and all messages if the destination is
        lost.
        """
        try:
            if self._turns:
                self._give_up_waiting()
            self._turns.cut()
            looks = 0
            while self._tasks:
                await self._tasks.wait(within=_CHECK_INTERVAL)
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
        """Stop publishing."""
        self._waiting.clear()
        await self._tasks.close()

    def _start(self) -> None:
        while self._waiting and len(self._tasks) < _UNDER_WAY:
            self._tasks.begin(self._process(self._take(), self._relay))

    def _take(self) -> list[Batch]:
        """Batches for the next publish; none if none wait."""
        count = size = 0
        while count < len(self._waiting) and size < _MOST:
            size += len(self._waiting[count])
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _process(
        self, batches: list[Batch], step: Callable[[list[Batch]], Awaitable[None]]
    ) -> None:
        """Take this step with batches, then relay those that wait; an error gives batches back."""
        while batches:
            try:
                await step(batches)
            except BaseException:
                if not is_cancelled():
                    for batch in batches:
                        self._give_back(batch)
                raise
            batches, step = self._take(), self._relay

    def _failed(self, error: BaseException) -> None:
        self._sink.fail(error)
        self._start()

    async def _relay(self, batches: Sequence[Batch]) -> None:
        """Filter, edit and publish messages at the allowed rate."""
        lots = []
        for batch in batches:
            if self._held.forget_lost(batch):  # they are delivered again on another connection
                continue
            if (lot := await self._prepare(batch)).bodies:
                lots.append(lot)
        pace = self._sink.pace
        while count := sum(len(lot.bodies) for lot in lots):
            burst = pace.burst(count)
            delay = pace.delay(burst, now=self._loop.time())
            if delay and not await self._turns.done(partial(asyncio.sleep, delay)):
                break
            now, lots = (lots, []) if burst == count else _split(lots, burst)
            if not await self._publish(now):
                break
        for lot in lots:
            self._give_back(lot.batch, lot.messages)

    async def _prepare(self, batch: Batch) -> _Lot:
        """Return the messages of a batch to publish; the others are settled."""
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
        """Publish lots together and settle them; False if cut, and then requeue them."""
        sink, counts = self._sink, self._counts
        bodies = list(chain.from_iterable(lot.bodies for lot in lots))
        publish = partial(sink.producer.publish, counts.destination, bodies, defer=sink.defer)
        try:
            if not await self._publishes.done(publish):
                for batch, messages, _ in lots:
                    self._requeue(batch, messages, delay=0)
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
        """Finish messages that were accepted, and requeue or reject the others."""
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
            self._tell(len(refused), f"requeued, not published: {error}")

    async def _reject(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Write messages that cannot be relayed as dead letters, or requeue them."""
        sink = self._sink
        if sink.dead_letters.is_lossy:
            sink.left_behind += len(messages)
            event = f"requeued, impossible to relay: {reason}"
            self._tell(len(messages), event, logging.WARNING)
            self._requeue(batch, messages, backoff=False)
        elif await self._write(batch, messages, reason):
            self._tell(len(messages), f"written as dead letters: {reason}", logging.WARNING)

    async def _bury(self, batches: Sequence[Batch]) -> None:
        """Write messages with too many attempts as dead letters, or log their loss."""
        for batch in batches:
            await self._write(batch, batch.unsettled(), TOO_MANY)

    async def _write(self, batch: Batch, messages: Sequence[Message], reason: str) -> bool:
        """Write dead letters and settle them; return whether they are safe."""
        if self._held.forget_lost(batch, messages):
            return False
        counts = self._counts
        try:
            await self._sink.dead_letters.write(batch, messages, reason)
        except OutputError as error:
            self._tell(len(messages), f"requeued: {error}")
            hopeless = _blames_bodies(error.__cause__)
            if hopeless:
                self._sink.left_behind += len(messages)
            self._requeue(batch, messages, backoff=not hopeless)
            return False
        if self._sink.dead_letters.is_lossy:
            self._sink.lost += len(messages)
            counts.lost += len(messages)
        else:
            self._sink.dead_lettered += len(messages)
            counts.dead_lettered += len(messages)
        self._held.finish(batch, messages)
        return True

    def _tell(self, count: int, event: str, level: int = logging.ERROR) -> None:
        self._sink.repeats.tell(level, self._counts.topic, count, event)

    # Requeuing.

    def _give_back(self, batch: Batch, messages: Sequence[Message] | None = None) -> None:
        """Requeue these messages, or all that are not settled, for immediate delivery."""
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
    """Return the first ``count`` messages, and the others."""
    first: list[_Lot] = []
    for number, (batch, messages, bodies) in enumerate(lots):
        if count < len(bodies):
            first.append(_Lot(batch, messages[:count], bodies[:count]))
            return first, [_Lot(batch, messages[count:], bodies[count:]), *lots[number + 1 :]]
        first.append(lots[number])
        count -= len(bodies)
    return first, []


def _blames_bodies(error: BaseException | None) -> bool:
    """Whether a publish failed because of bodies, not of permissions or a refused delay."""
    if not isinstance(error, PublishError) or not error.permanent:
        return False
    cause = error.__cause__
    return cause is None or (isinstance(cause, ServerError) and cause.code in REFUSED_BODY)
