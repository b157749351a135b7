"""A handler that passes on a number of messages, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.engine.handler import Batch, Handler, Message


class Limit:
    """Passes the first ``count`` messages to ``handler``; what came beyond goes back at once.

    ``on_remaining`` hears how many are left before the messages are finished: a consumer that
    lowers its max_in_flight to that is sent no message too many by a single nsqd, because the RDY
    leaves ahead of the FINs. ``on_done`` is called once all were handled without an error, and
    the consumer should be stopped. Several consumers may share one, and call it at the same time.
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
        self._on_remaining = on_remaining
        self._on_done = on_done
        self._handling = 0

    async def handle(self, batch: Batch) -> None:
        """As Handler."""
        if len(batch) > self._remaining:
            batch.keep(self._remaining)
        if not (taken := len(batch)):
            return
        self._remaining -= taken
        self._on_remaining(self._remaining)
        self._handling += 1
        try:
            await self._handler.handle(batch)
        except Exception:
            self._remaining += len(batch.unsettled())
            self._on_remaining(self._remaining)
            raise
        finally:
            self._handling -= 1
        if self._remaining == 0 and not self._handling:
            self._on_done()

    async def close(self) -> None:
        """As Handler."""
        await self._handler.close()

    async def gave_up(self, messages: Sequence[Message]) -> None:
        """As Handler; a message given up does not count."""
        await self._handler.gave_up(messages)
