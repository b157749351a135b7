"""The work of one relayed topic: its batches wait, are published together, and are settled."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import REFUSED_BODY, OutputError, PublishError, RecordError, ServerError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.sinks.topic.counts import Counts
    from nsqtools.sinks.topic.sink import TopicSink

log = logging.getLogger(__name__)

_UNDER_WAY = 4
"""Publishes of a topic at once: one is written while others are answered."""
_MOST = 5000
"""Messages of one publish, more or less."""


class _Arrival(NamedTuple):
    """A batch and the time it came."""

    when: float
    batch: Batch


class _Lot(NamedTuple):
    """Messages of a batch, and the bodies to publish for them."""

    batch: Batch
    messages: Sequence[Message]
    bodies: Sequence[bytes]


class Work:
    """One topic's batches: those that wait, and those that are being published."""

    def __init__(self, sink: TopicSink, counts: Counts) -> None:
        self._sink = sink
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Arrival] = []
        self._working: dict[asyncio.Task[None], list[_Arrival]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, batch: Batch) -> None:
        """Have a batch published."""
        self._counts.received += len(batch)
        self._waiting.append(_Arrival(self._loop.time(), batch))
        self._start()
        self._watch()

    def bury(self, batch: Batch) -> None:
        """Have a batch written to the dead letters."""
        self._counts.received += len(batch)
        self._spawn([_Arrival(self._loop.time(), batch)], self._bury(batch))

    async def end(self) -> None:
        """Wait until everything is settled; cancelled, what is not stays so."""
        try:
            while self._working:
                await asyncio.wait(self._working)
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Publish nothing more."""
        self._waiting.clear()
        if self._timer:
            self._timer.cancel()
        if self._working:
            for task in self._working:
                task.cancel()
            await asyncio.wait(list(self._working))

    def _start(self) -> None:
        while self._waiting and len(self._working) < _UNDER_WAY:
            count = size = 0
            while count < len(self._waiting) and size < _MOST:
                size += len(self._waiting[count].batch)
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._spawn(taken, self._work([batch for _, batch in taken]))

    def _spawn(self, taken: list[_Arrival], work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working[task] = taken
        task.add_done_callback(self._ended)
        self._watch()

    def _ended(self, task: asyncio.Task[None]) -> None:
        taken = self._working.pop(task)
        if not task.cancelled():
            if error := task.exception():
                for _, batch in taken:
                    batch.requeue(delay=0, backoff=False)
                self._sink.fail(error)
            self._start()

    async def _work(self, batches: Sequence[Batch]) -> None:
        """Have messages filtered, edited and published, at the rate that is allowed."""
        lots = []
        for batch in batches:
            if batch.is_lost():  # they come again on another connection
                batch.requeue(delay=0, backoff=False)
            elif (lot := await self._prepare(batch)).bodies:
                lots.append(lot)
        pace = self._sink.pace
        while count := sum(len(lot.bodies) for lot in lots):
            burst = pace.burst(count)
            if delay := pace.delay(burst, now=self._loop.time()):
                await asyncio.sleep(delay)
            now, lots = (lots, []) if burst == count else _split(lots, burst)
            await self._publish(now)

    async def _prepare(self, batch: Batch) -> _Lot:
        """What is to be published of a batch; the rest of it is settled."""
        messages = batch.unsettled()
        if self._sink.rules.passes_all:
            return _Lot(batch, messages, [message.body for message in messages])
        apply = self._sink.rules.apply
        passed: list[Message] = []
        bodies: list[bytes] = []
        filtered: list[Message] = []
        refused: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            try:
                body = apply(message.body)
            except RecordError as error:
                refused[str(error)].append(message)
                continue
            if body is None:
                filtered.append(message)
            else:
                passed.append(message)
                bodies.append(body)
        if filtered:
            self._counts.filtered += len(filtered)
            batch.finish(filtered)
        for reason, rejected in refused.items():
            await self._reject(batch, rejected, reason)
        return _Lot(batch, passed, bodies)

    async def _publish(self, lots: Sequence[_Lot]) -> None:
        """Publish lots together, and settle them."""
        sink, counts = self._sink, self._counts
        bodies = list(chain.from_iterable(lot.bodies for lot in lots))
        try:
            await sink.publisher.publish(counts.destination, bodies, defer=sink.defer)
        except PublishError as error:
            await self._settle(lots, error)
        else:
            for batch, messages, _ in lots:
                batch.finish(None if len(messages) == len(batch) else messages)
            counts.relayed += len(bodies)
            sink.relayed(len(bodies))

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
            batch.finish(good)
            if left and blamed:
                await self._reject(batch, left, str(error))
            elif left:
                self._counts.requeued += len(left)
                batch.requeue(left)
        self._counts.relayed += taken
        self._sink.relayed(taken)
        if not blamed:
            log.error(
                "topic %s: %d messages were not published and go back to nsqd: %s",
                self._counts.topic,
                len(refused),
                error,
            )

    async def _reject(self, batch: Batch, messages: Sequence[Message], reason: str) -> None:
        """Have messages that cannot be relayed written as dead letters, or give them back."""
        sink = self._sink
        if sink.dead_letters.is_lossy:
            sink.left_behind += len(messages)
            sink.tell(batch.topic, len(messages), reason, "cannot be relayed and go back to nsqd")
            self._counts.requeued += len(messages)
            batch.requeue(messages, backoff=False)
        elif await self._write(batch, messages, reason):
            sink.tell(batch.topic, len(messages), reason, "went to the dead letters")

    async def _bury(self, batch: Batch) -> None:
        """Dead letters of messages that came too often, or a log line about their loss."""
        await self._write(batch, batch.unsettled(), "too many attempts")

    async def _write(self, batch: Batch, messages: Sequence[Message], reason: str) -> bool:
        """Write dead letters and settle; whether they are safe."""
        counts = self._counts
        try:
            await self._sink.dead_letters.write(batch, messages, reason)
        except OutputError as error:
            log.error(
                "topic %s: %d messages go back to nsqd: %s", batch.topic, len(messages), error
            )
            counts.requeued += len(messages)
            batch.requeue(messages, backoff=not _blames_bodies(error.__cause__))
            return False
        if self._sink.dead_letters.is_lossy:
            self._sink.lost += len(messages)
        else:
            counts.dead_lettered += len(messages)
        batch.finish(messages)
        return True

    # Time.

    def _watch(self) -> None:
        """Look after a third of the shortest message timeout at what is still held."""
        if self._timer is not None:
            return
        if held := [*chain.from_iterable(self._working.values()), *self._waiting]:
            patience = min(batch.msg_timeout for _, batch in held) / 3
            self._timer = self._loop.call_later(patience, self._touch, patience)

    def _touch(self, patience: float) -> None:
        """Keep nsqd from delivering again what a slow destination keeps waiting."""
        self._timer = None
        late = self._loop.time() - patience / 2
        for when, batch in (*chain.from_iterable(self._working.values()), *self._waiting):
            if when <= late:
                batch.touch()
        self._watch()


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
