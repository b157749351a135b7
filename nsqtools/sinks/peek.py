"""Handlers that look at messages: they hold them, and give them back at the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.sinks.stdout import StreamSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.names import Address
    from nsqtools.records.bodies.selection import Selection
    from nsqtools.records.writers import Writer

log = logging.getLogger("nsqtools.status")

WORN = 4
"""Attempts with which a message is worn: go-nsq and nsq_tail by default give it up after 5."""


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
        is_worn = most >= WORN
        log.log(
            logging.WARNING if is_worn else logging.INFO,
            "topic %s: %s given back; attempts so far: %s%s",
            *(topic, counted(len(attempts), "message")),
            least if least == most else f"{least} to {most}",
            ": consumers with a limit, 5 in go-nsq by default, soon give them up" * is_worn,
        )


class Glimpse(HoldingHandler):
    """A handler that finishes no message, and keeps at most ``count`` in ``found``.

    ``ended`` has a result once they have arrived. The consumer's max_in_flight should be ``count``:
    messages beyond it are given back at once. With ``careful``, it should be 1 for each nsqd at
    first: the glimpse ends at a worn message, and else calls ``go_on``, to let more come.
    """

    def __init__(self, count: int, *, careful: bool = False) -> None:
        self._left = count
        self._careful = careful
        self._held = Held()
        self.found: list[tuple[Address, Message]] = []
        """The messages, each with its nsqd."""
        self.go_on: Callable[[], object] = lambda: None
        """Raises max_in_flight to the count; for the consumer's maker to set."""

    @property
    def attempts(self) -> int:
        """The most attempts of a message found."""
        return max((message.attempts for _, message in self.found), default=0)

    async def handle(self, batch: Batch) -> None:
        """Keep and hold the batch."""
        if len(batch) > self._left:
            batch.keep(self._left)
        if not batch:
            return
        self.found += [(batch.source, message) for message in batch]
        self._held.add(batch)
        self._left -= len(batch)
        if self._careful and self.attempts >= WORN:
            self._left = 0
        elif self._careful:
            self.go_on()
        if not self._left and not self.ended.done():
            self.ended.set_result(None)

    async def gave_up(self, batch: Batch) -> None:
        """Keep and hold the batch: to give messages up is the consumers' decision."""
        await self.handle(batch)

    async def drain(self, topic: str) -> None:
        """Give back all messages, for delivery at once."""
        for batch in self._held.batches:
            self._held.give_back(batch)
