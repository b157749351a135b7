"""The sink of standard output: one write per batch, and FIN after the write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.engine.handler import Handler
from nsqtools.errors import NSQError
from nsqtools.metrics import of_fields
from nsqtools.sinks.pipes import Output
from nsqtools.sinks.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.metrics import Metric
    from nsqtools.records.bodies.selection import Selection
    from nsqtools.records.writers import Writer

_FAILED = (("failed", "where_failed_total", "Messages that --where could not be applied to."),)


class StreamSink(Handler):
    """A handler that writes batches to an Output, one write each.

    Once ``ended`` is done, every batch is held, and given back at the end of the run: earlier,
    nsqd would deliver it again. A partly written batch is not finished at all. Several consumers
    may share a sink, which writes one whole batch at a time.

    With a ``selection`` its messages are written, the others only finished. ``ended`` has a result
    once ``count`` messages are written, if that is not 0; messages behind the last one are given
    back.
    """

    ended: asyncio.Future[None]

    def __init__(
        self,
        fd: int,
        writer: Writer,
        *,
        name: str = "standard output",
        selection: Selection | None = None,
        count: int = 0,
    ) -> None:
        self._output = Output(fd, name)
        self._writer = writer
        self._lock = asyncio.Lock()
        self._selection = selection
        self._count = count
        self._threads = Threads(1, "selection") if selection else None
        self.messages = 0
        """Number of messages written so far; ``bytes`` is the number of bytes."""
        self.bytes = 0

    async def open(self) -> None:
        """Open the output. Raises OutputClosedError or OutputError."""
        await self._output.open()
        self.ended = self._output.failed

    async def handle(self, batch: Batch) -> None:
        """Write the batch, then finish it; hold it if writing fails, or ``ended`` is done."""
        async with self._lock:
            if not self.ended.done():
                try:
                    if self._selection:
                        await self._write_chosen(batch, self._selection)
                    else:
                        await self._write(batch, batch)
                except NSQError as error:
                    if not self.ended.done():
                        self.ended.set_exception(error)
                        self.ended.exception()  # so that asyncio does not log it
                else:
                    self.written(batch)
                    return
        batch.hold()

    async def _write(self, batch: Batch, messages: Sequence[Message]) -> None:
        """Write messages of a batch; raises OutputError."""
        records = self._writer.render(batch, messages)
        await self._output.write(records)
        self.messages += len(messages)
        self.bytes += sum(map(len, records))

    async def _write_chosen(self, batch: Batch, selection: Selection) -> None:
        """Write the chosen messages; cut the batch behind the last one. Raises NSQError."""
        from nsqtools.records.bodies.selection import portions  # not needed by most

        assert self._threads
        examined = 0
        for portion in portions(batch):
            left = self._count - self.messages if self._count else 0
            found = await self._threads.run(selection.apply, portion, left)
            if chosen := [each for each in found if each]:
                await self._write(batch, chosen)
            examined += len(found)
            if self._count and len(chosen) == left:
                batch.keep(examined)
                self.ended.set_result(None)
                return

    def written(self, batch: Batch) -> None:
        """Finish a batch that was written."""
        batch.finish()

    async def close(self, *, at_once: bool = False) -> None:
        """Stop using the output."""
        if self._threads and self._selection:
            self._threads.close()
            self._selection.close()
        self._output.close()

    def metrics(self) -> Iterator[Metric]:
        """Return what the selection could not use, for Prometheus."""
        if self._selection:
            from nsqtools.records.bodies.bodydecoder import UNDECODED  # not needed by most

            yield from of_fields("nsqtools_", UNDECODED + _FAILED, [({}, self._selection)])
