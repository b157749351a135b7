"""Batches held by a sink until their messages are safe."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.engine.handler import Handler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.engine.handler import Batch, Message


class HoldingHandler(Handler):
    """A handler that may fail between batches."""

    ended: asyncio.Future[None]

    async def open(self) -> None:
        """Create ``ended``."""
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()

    def fail(self, error: BaseException) -> None:
        """Set the error in ``ended``; no batch can be handled afterwards."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # marks the error as retrieved


class Held:
    """The batches of a topic, to be settled later, always through this object.

    Messages taken back by nsqd, for example after a lost connection, are forgotten instead of
    requeued.
    """

    def __init__(self) -> None:
        self._batches: dict[Batch, None] = {}
        self._settled = asyncio.Event()

    def add(self, batch: Batch) -> None:
        """Hold a batch, so that it is not finished when ``handle`` returns."""
        batch.hold()
        self._batches[batch] = None

    def finish(self, batch: Batch, messages: Sequence[Message] | None = None) -> None:
        """Finish these messages, or all unsettled messages."""
        whole = messages is None or len(messages) == len(batch)
        batch.finish(None if whole else messages)
        self._release(batch)

    def requeue(
        self,
        batch: Batch,
        messages: Sequence[Message] | None = None,
        *,
        delay: float | None = None,
        backoff: bool = True,
    ) -> None:
        """Requeue these messages, or all unsettled messages, as ``Batch.requeue`` does."""
        if not self.forget_lost(batch, messages):
            batch.requeue(messages, delay=delay, backoff=backoff)
            self._release(batch)

    @property
    def batches(self) -> list[Batch]:
        """The batches held now, in order of arrival."""
        return list(self._batches)

    def give_back(self, batch: Batch, messages: Sequence[Message] | None = None) -> None:
        """Requeue these messages, or all unsettled messages, for immediate delivery."""
        self.requeue(batch, messages, delay=0, backoff=False)

    def forget_lost(self, batch: Batch, messages: Sequence[Message] | None = None) -> bool:
        """Forget messages, or the whole batch, if nsqd took the batch back; return whether so."""
        if not batch.is_lost():
            return False
        batch.forget(messages)
        self._release(batch)
        return True

    async def settled(self) -> None:
        """Wait until no batch is held."""
        while self._batches:
            self._settled.clear()
            await self._settled.wait()

    def _release(self, batch: Batch) -> None:
        if batch.is_settled:
            self._batches.pop(batch, None)
            if not self._batches:
                self._settled.set()
