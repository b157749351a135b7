"""The unsettled batches of a consumer: waiting, handled, or held."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.engine.handler import Batch
    from nsqtools.names import Address

# Remaining part of msg_timeout at which messages are touched.
_TOUCH_BEFORE = 0.5


class UnsettledBatches:
    """Holds and touches all unsettled messages of a consumer.

    Messages are forgotten once nsqd has timed them out: not touched in time, or past
    max_msg_timeout. Times are the event loop's.
    """

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        self.handled: Batch | None = None
        """The batch passed to the handler, until the handler returns."""
        self.untouchable: set[tuple[Address, bytes]] = set()
        """The nsqds and ids of messages with a refused TOUCH."""
        self._held: dict[Batch, None] = {}

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, possibly with batches settled in the meantime."""
        yield from self.waiting
        if self.handled:
            yield from self.handled.parts
        yield from list(self._held)

    def hold(self, batch: Batch) -> None:
        """Keep a batch and its parts, each until its last message is settled."""
        for part in batch.parts:
            if not part.is_settled:
                self._held[part] = None
                part.on_settled = self._held.pop

    def touch(self, now: float) -> None:
        """Touch messages before they time out; call this several times per shortest timeout."""
        self.forget_untouchable()
        for batch in self:
            forget_expired(batch, now)
            if batch.expires - now < _TOUCH_BEFORE * batch.msg_timeout:
                batch.expires, batch.touched = now + batch.msg_timeout, True
                batch.touch()

    def forget_untouchable(self) -> None:
        """Forget messages with a refused TOUCH, but not their later deliveries."""
        if refused := self.untouchable:
            for batch in self:
                if batch.touched:
                    late = [m for m in batch.unsettled() if (batch.source, m.id) in refused]
                    batch.forget(late)
            refused.clear()

    def give_back(self) -> None:
        """Requeue everything at once."""
        for batch in list(self):
            batch.requeue(delay=0, backoff=False)
        self.waiting.clear()


def forget_expired(batch: Batch, now: float) -> None:
    """Forget messages whose timeout is final.

    Until max_msg_timeout, messages of a lost connection are handled all the same: nsqd may have
    crashed, and this may be the only copy.
    """
    if now > batch.deadline or (now > batch.expires and not batch.is_lost()):
        batch.forget()
