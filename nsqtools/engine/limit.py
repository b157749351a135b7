"""A handler that passes on messages until a number of them are finished, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.engine.handler import Batch, Handler


class Limit:
    """Has ``handler`` finish ``count`` messages; what came beyond goes back at once.

    Only what was finished counts, however late that is: what is requeued, or was delivered on a
    connection that is lost by then, makes room for as many others.

    ``on_remaining`` hears how many may still be taken, before those that were are finished: a
    consumer that sets its max_in_flight to that is sent no message too many by a single nsqd,
    because the RDY leaves ahead of the FINs. ``on_done`` is called once all are finished, and the
    consumer should be stopped. Several consumers may share one, and call it at the same time.
    """

    def __init__(
        self,
        handler: Handler,
        count: int,
        on_remaining: Callable[[int], None],
        on_done: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._remaining = count
        self._unfinished = count
        self._on_remaining = on_remaining
        self._on_done = on_done

    async def handle(self, batch: Batch) -> None:
        """As Handler."""
        if len(batch) > self._remaining:
            batch.keep(self._remaining)
        if not (taken := len(batch)):
            return
        self._remaining -= taken
        self._on_remaining(self._remaining)
        batch.watch(self._settled)
        await self._handler.handle(batch)

    async def close(self) -> None:
        """As Handler."""
        await self._handler.close()

    async def gave_up(self, batch: Batch) -> None:
        """As Handler; a message given up does not count."""
        await self._handler.gave_up(batch)

    def _settled(self, finished: int, returned: int) -> None:
        if returned:
            self._remaining += returned
            self._on_remaining(self._remaining)
        self._unfinished -= finished
        if finished and not self._unfinished:
            self._on_done()
