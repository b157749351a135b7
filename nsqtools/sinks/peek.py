"""Handlers that look at messages: they hold them, and give them back at the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.sinks.stdout import StreamSink

if TYPE_CHECKING:
    from nsqtools.engine.handler import Batch, Message
    from nsqtools.names import Address
    from nsqtools.records.bodies.selection import Selection
    from nsqtools.records.writers import Writer

log = logging.getLogger("nsqtools.status")


class PeekSink(StreamSink):
    """A handler that finishes no message.

    ``ended`` has a result once ``count`` messages were looked at, written or not, or at the first
    ``flush`` after all that came are.
    Messages beyond the count are given back at once. With max_in_flight at ``count`` no further
    messages come, unless nsqd has requeued messages held here.
    """

    def __init__(
        self, fd: int, writer: Writer, count: int, *, selection: Selection | None = None
    ) -> None:
        super().__init__(fd, writer, selection=selection)
        self._left = count
        self._held = Held()
        self._in_hand = 0  # batches being written

    async def handle(self, batch: Batch) -> None:
        """Write the batch, and hold it."""
        if len(batch) > self._left:
            batch.keep(self._left)
        self._in_hand += 1
        try:
            if batch:
                await super().handle(batch)
        finally:
            self._in_hand -= 1

    async def gave_up(self, batch: Batch) -> None:
        """Write the batch, and hold it: to give messages up is the consumers' decision."""
        await self.handle(batch)

    def written(self, batch: Batch) -> None:
        """Hold a written batch."""
        self._held.add(batch)
        self._left -= len(batch)
        if not self._left:
            self._end()

    def flush(self) -> None:
        """End the run without waiting for more messages; a slow decoder or reader is waited for."""
        if not self._in_hand:
            self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def drain(self, topic: str) -> None:
        """Give back all messages, for delivery at once."""
        attempts = []
        for batch in self._held.batches:
            attempts += [message.attempts for message in batch]
            self._held.give_back(batch)
        if not attempts:
            log.info("topic %s: no message arrived: run nsqtools doctor to find out why", topic)
            return
        least, most = min(attempts), max(attempts)
        log.info(
            "topic %s: %s given back; attempts so far: %s",
            *(topic, counted(len(attempts), "message")),
            least if least == most else f"{least} to {most}",
        )


class Glimpse(HoldingHandler):
    """A handler that finishes no message, and keeps at most ``count`` in ``found``.

    ``ended`` has a result once they have arrived. The consumer's max_in_flight should be
    ``count``: messages beyond it are given back at once.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._held = Held()
        self.found: list[tuple[Address, Message]] = []
        """The messages, each with its nsqd."""

    async def handle(self, batch: Batch) -> None:
        """Keep and hold the batch."""
        if len(batch) > self._left:
            batch.keep(self._left)
        if not batch:
            return
        self.found += [(batch.source, message) for message in batch]
        self._held.add(batch)
        self._left -= len(batch)
        if not self._left and not self.ended.done():
            self.ended.set_result(None)

    async def gave_up(self, batch: Batch) -> None:
        """Keep and hold the batch: to give messages up is the consumers' decision."""
        await self.handle(batch)

    async def drain(self, topic: str) -> None:
        """Give back all messages, for delivery at once."""
        for batch in self._held.batches:
            self._held.give_back(batch)
