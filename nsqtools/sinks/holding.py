"""Batches that a sink holds until their messages are safe; they are touched and settled in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.engine.handler import Handler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.engine.handler import Batch, Message

_SHARE = 0.55
"""Part of msg_timeout after which a batch is touched; batches settled by half of it never are."""


class HoldingHandler(Handler):
    """A handler that may fail between batches."""

    failed: asyncio.Future[None]

    async def open(self) -> None:
        """Create ``failed``."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()

    def fail(self, error: BaseException) -> None:
        """Set the error in ``failed``; no batch can be handled afterwards."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # marks the error as retrieved


class Held:
    """The batches of a topic that a sink settles later, always through this object.

    Batches are touched, so that nsqd does not deliver them again. Messages that nsqd has taken back
    all the same, for example after a lost connection, are forgotten instead of requeued.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[Batch, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()

    def add(self, batch: Batch) -> None:
        """Hold a batch, so that it is not finished when ``handle`` returns."""
        batch.hold()
        due = self._loop.time() + _SHARE * batch.msg_timeout
        self._due[batch] = due
        if self._timer is None or due < self._timer.when():
            self._look_at(due)

    def finish(self, batch: Batch, messages: Sequence[Message] | None = None) -> None:
        """Finish these messages, or all that are not settled."""
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
        """Requeue these messages, or all that are not settled, as ``Batch.requeue`` does."""
        if not self.forget_lost(batch, messages):
            batch.requeue(messages, delay=delay, backoff=backoff)
            self._release(batch)

    @property
    def batches(self) -> list[Batch]:
        """The batches that are held now, in order of arrival."""
        return list(self._due)

    def give_back(self, batch: Batch, messages: Sequence[Message] | None = None) -> None:
        """Requeue these messages, or all that are not settled, for immediate delivery."""
        self.requeue(batch, messages, delay=0, backoff=False)

    def forget_lost(self, batch: Batch, messages: Sequence[Message] | None = None) -> bool:
        """Forget messages, or the whole batch, if nsqd has taken it back; return whether it has."""
        if not batch.is_lost():
            return False
        batch.forget(messages)
        self._release(batch)
        return True

    async def settled(self) -> None:
        """Wait until no batch is held."""
        while self._due:
            self._settled.clear()
            await self._settled.wait()

    def close(self) -> None:
        """Stop touching batches."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _release(self, batch: Batch) -> None:
        if batch.is_settled:
            self._due.pop(batch, None)
            if not self._due:
                self._settled.set()

    def _look_at(self, due: float) -> None:
        self.close()
        self._timer = self._loop.call_at(due, self._touch)

    def _touch(self) -> None:
        self._timer = None
        now = self._loop.time()
        for batch, due in self._due.items():
            if due <= now:
                if not batch.is_lost():
                    batch.touch()
                self._due[batch] = now + _SHARE * batch.msg_timeout
        if self._due:
            self._look_at(min(self._due.values()))
