"""The sink of standard output: one write per batch, and FIN after the write."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from nsqtools.engine.handler import Handler
from nsqtools.errors import OutputError
from nsqtools.sinks.pipes import Output

if TYPE_CHECKING:
    from nsqtools.engine.handler import Batch
    from nsqtools.records.writers import Writer


class StreamSink(Handler):
    """A handler that writes batches to an Output, one write each.

    Once ``failed`` has ended, every batch is held, and given back at the end of the run: earlier,
    nsqd would deliver it again. A partly written batch is not finished at all. Several consumers
    may share a sink, which writes one whole batch at a time.
    """

    ended: asyncio.Future[None]

    def __init__(self, fd: int, writer: Writer, *, name: str = "standard output") -> None:
        self._output = Output(fd, name)
        self._writer = writer
        self._lock = asyncio.Lock()
        self.messages = 0
        """Number of messages written so far; ``bytes`` is the number of bytes."""
        self.bytes = 0

    async def open(self) -> None:
        """Open the output. Raises OutputClosedError or OutputError."""
        await self._output.open()
        self.ended = self._output.failed

    async def handle(self, batch: Batch) -> None:
        """Write the batch, then finish it; hold it if writing fails, or ``failed`` has ended."""
        async with self._lock:
            if not self._output.failed.done():
                records = self._writer.render(batch, batch)
                with contextlib.suppress(OutputError):  # ``failed`` has the error
                    await self._output.write(records)
                    self.messages += len(batch)
                    self.bytes += sum(map(len, records))
                    self.written(batch)
                    return
        batch.hold()

    def written(self, batch: Batch) -> None:
        """Finish a batch that was written."""
        batch.finish()

    async def close(self, *, at_once: bool = False) -> None:
        """Stop using the output."""
        self._output.close()
