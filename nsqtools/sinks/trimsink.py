"""The sink of ``channel trim``: old messages are finished, or archived first, others given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.tasks import end

if TYPE_CHECKING:
    from nsqtools.engine.handler import Batch, Handler
    from nsqtools.names import Address
    from nsqtools.policy.trim import Trim

_INTERVAL = 0.1
_AWAY = 30.0
"""Delay in seconds for younger messages beyond the limit on held messages."""


class TrimSink(HoldingHandler):
    """A handler that finishes old messages, as judged by ``trim``, or passes them to ``archive``.

    Younger messages are held until the end and then given back for delivery at once, so that each
    comes only once. At most ``room`` messages of each nsqd are held, so that nsqd can send others.
    Messages beyond ``room`` are deferred.

    ``ended`` has a result once the trim is done, or the error of the archive.
    """

    def __init__(self, trim: Trim, archive: Handler | None, *, room: int) -> None:
        self._trim = trim
        self._archive = archive
        self._room = room
        self._held = Held()
        self._holding: Counter[Address] = Counter()
        self._unsettled = 0
        self._busy = False  # whether messages came lately, and more may follow
        self._ticking: asyncio.Task[None] | None = None
        self.finished: Counter[Address] = Counter()
        """Number of finished old messages, by nsqd."""
        self.deferred = 0
        """Number of deferrals of younger messages."""

    async def open(self) -> None:
        """Open the archive; raises its errors."""
        await super().open()
        self._ticking = self._loop.create_task(self._tick())
        if self._archive:
            await self._archive.open()
            if ended := self._archive.ended:
                ended.add_done_callback(self._archive_ended)

    async def join(self, topic: str) -> None:
        """Prepare the archive; raises its errors."""
        if self._archive:
            await self._archive.join(topic)

    async def handle(self, batch: Batch) -> None:
        """Sort the batch by age."""
        if self.ended.done():
            batch.requeue(delay=0, backoff=False)
            return
        self._busy = True
        old, younger = self._trim.sort(batch.source, batch, now=self._loop.time())
        if younger:
            self._keep(batch.part(younger))
        if old:
            part = batch.part(old)
            self._unsettled += len(part)
            part.watch(partial(self._settled, batch.source))
            if self._archive:
                await self._archive.handle(part)
            else:
                part.finish()

    async def gave_up(self, batch: Batch) -> None:
        """Sort the batch by age: to give messages up is the consumers' decision."""
        await self.handle(batch)

    def flush(self) -> None:
        """Let the archive sync soon."""
        if self._archive:
            self._archive.flush()

    async def drain(self, topic: str) -> None:
        """Finish all old messages, and give back the others; raises the archive's errors."""
        try:
            if self._archive:
                await self._archive.drain(topic)
        finally:
            for batch in self._held.batches:
                self._held.give_back(batch)
            self._holding.clear()

    async def close(self, *, at_once: bool = False) -> None:
        """Close the archive; raises its errors."""
        if self._ticking:
            await end([self._ticking])
        if self._archive:
            await self._archive.close(at_once=at_once)

    def _keep(self, batch: Batch) -> None:
        """Hold a batch of younger messages, without their bodies, or defer it."""
        if self._holding[batch.source] + len(batch) > self._room:
            batch.requeue(delay=_AWAY, backoff=False)
            self.deferred += len(batch)
            return
        for message in batch:
            message.body = b""
        self._held.add(batch)
        self._holding[batch.source] += len(batch)

    def _settled(self, source: Address, finished: int, returned: int) -> None:
        self._unsettled -= finished + returned
        self.finished[source] += finished
        self._trim.settled(returned, now=self._loop.time())

    async def _tick(self) -> None:
        """End the run when the trim is done and all old messages are settled."""
        while self._unsettled or not self._trim.is_done(self._loop.time()):
            if not self._busy:
                self.flush()
            self._busy = False
            await asyncio.sleep(_INTERVAL)
        if not self.ended.done():
            self.ended.set_result(None)

    def _archive_ended(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()):
            self.fail(error)
