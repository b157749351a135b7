"""Picks the messages of a channel old enough to finish, and decides when all were seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence


class Dated(Protocol):
    """A message: its id, in hexadecimal, and the time of publishing in ns since the epoch."""

    id: bytes
    timestamp: int


M = TypeVar("M", bound=Dated)


class Marks(NamedTuple):
    """Times of one nsqd's clock, in ns since the epoch.

    Messages from before ``cutoff`` are old. The trim began at ``earliest`` or later, and at
    ``latest`` or earlier: the clock is known to about a second.
    """

    cutoff: int
    earliest: int
    latest: int


class Trim:
    """Sorts the messages of a channel, while others may publish, consume and requeue.

    ``marks`` has those of each nsqd. ``expected`` messages were in the channel when the trim began.
    A trim is done once it has seen ``expected`` messages published before; repeated deliveries
    count once. Other consumers may take some of the messages. So a trim is also done after
    ``patience`` seconds without a new or settled message.

    A trim remembers the ids of younger messages, and is also done after ``max_younger`` of them
    without an old message in between. Times ``now`` are seconds of one monotonic clock.
    """

    def __init__(
        self,
        marks: Mapping[Any, Marks],
        *,
        expected: int,
        patience: float,
        max_younger: int,
        now: float,
    ) -> None:
        self._marks = marks
        self._expected = expected
        self._patience = patience
        self._max_younger = max_younger
        self._last = now
        self._seen = 0
        self._perhaps = 0  # seen, and published when the trim began or a moment later
        self._in_a_row = 0
        self._younger: dict[Hashable, set[int]] = {}

    def sort(
        self, source: Hashable, messages: Sequence[M], *, now: float
    ) -> tuple[Sequence[M], Sequence[M]]:
        """Split messages of one nsqd into old and younger ones."""
        cutoff, earliest, latest = self._marks[source]
        old = [message for message in messages if message.timestamp < cutoff]
        if old:
            self._in_a_row = 0
            self._count(len(old), now)
        if len(old) == len(messages):
            return messages, ()
        younger = [message for message in messages if message.timestamp >= cutoff]
        ids = self._younger.setdefault(source, set())
        for message in younger:
            number = int(message.id, 16)
            if number not in ids:
                ids.add(number)
                self._in_a_row += 1
                if message.timestamp <= earliest:
                    self._count(1, now)
                elif message.timestamp <= latest:
                    self._perhaps += 1
        return old, younger

    def settled(self, returned: int, *, now: float) -> None:
        """Note that old messages were settled; nsqd delivers ``returned`` of them again."""
        self._seen -= returned
        self._last = now

    def is_done(self, now: float) -> bool:
        """Whether to stop now."""
        is_complete = self._seen >= self._expected
        return is_complete or self.is_flooded or now >= self._last + self._patience

    @property
    def is_flooded(self) -> bool:
        """Whether the trim gave up after too many younger messages."""
        return self._in_a_row >= self._max_younger

    @property
    def unseen(self) -> int:
        """The number of messages that were in the channel and surely have not come."""
        return max(0, self._expected - self._seen - self._perhaps)

    @property
    def younger(self) -> dict[Hashable, int]:
        """The number of younger messages from each nsqd."""
        return {source: len(ids) for source, ids in self._younger.items()}

    def _count(self, number: int, now: float) -> None:
        self._seen += number
        self._last = now
