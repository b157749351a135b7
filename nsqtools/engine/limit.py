"""The maximum number of messages for a run to finish."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqtools.engine.consumer import Consumer
    from nsqtools.engine.handler import Batch


class MessageLimit:
    """Lets consumers together finish ``count`` messages; further messages are requeued at once.

    Only finished messages count, however late they are finished. A message makes room for another
    if it is requeued or its connection is lost. ``done`` is set once ``count`` are finished.

    Each consumer has at most ``remaining`` messages in flight, and at most ``max_in_flight``. RDY
    is sent before FIN, so a single nsqd never sends too many messages.
    """

    def __init__(self, count: int, max_in_flight: int) -> None:
        self.remaining = count
        """The number of messages still to be given to handlers."""
        self.unfinished = count
        self.done = asyncio.Event()
        self._max_in_flight = max_in_flight
        self._consumers: set[Consumer] = set()

    def add(self, consumer: Consumer) -> None:
        """Limit a consumer, until it is removed."""
        self._consumers.add(consumer)
        consumer.set_max_in_flight(self._allowed)

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer."""
        self._consumers.discard(consumer)

    def take(self, batch: Batch) -> bool:
        """Cut the batch down to the remaining count; return whether any message is left in it."""
        if len(batch) > self.remaining:
            batch.keep(self.remaining)
        if taken := len(batch):
            self._change(-taken)
            batch.watch(self._settled)
        return bool(taken)

    @property
    def is_exhausted(self) -> bool:
        """Whether no further message comes until handlers settle held messages."""
        return sum(consumer.in_flight for consumer in self._consumers) >= self._allowed

    def refused(self, count: int) -> None:
        """Take back ``count`` finished messages: nsqd refused their FIN."""
        self.unfinished += count
        self._change(count)

    @property
    def _allowed(self) -> int:
        return min(self._max_in_flight, self.remaining)

    def _settled(self, finished: int, returned: int) -> None:
        if returned:
            self._change(returned)
        self.unfinished -= finished
        if finished and not self.unfinished:
            self.done.set()

    def _change(self, by: int) -> None:
        self.remaining += by
        for consumer in self._consumers:
            consumer.set_max_in_flight(self._allowed)
