"""A subscriber's side of a channel: what it may be given and what it has in flight.

Pure state; instants are ``now`` of the broker, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections import deque

NEVER = float("inf")
TURN_BYTES = 1 << 18
"""Bytes a consumer is given before it is asked whether its peer keeps up."""


@dataclass(slots=True, eq=False)
class Message:
    """One channel's copy of a message."""

    id: bytes
    body: bytes
    timestamp: int
    """ns since the epoch."""
    deferred: float = 0.0
    """Seconds that DPUB holds it back once it reaches a channel."""
    attempts: int = 0
    delivered: float = 0.0
    deadline: float = 0.0


class Subscriber(Protocol):
    """The connection behind a consumer."""

    def deliver(self, messages: list[Message]) -> None:
        """Send messages; may set the consumer's ``blocked`` when its peer does not keep up."""

    def close(self) -> None:
        """The channel is gone: end the connection."""


@dataclass(slots=True, eq=False)
class Consumer:
    """A subscriber's side of a channel."""

    client: Subscriber
    msg_timeout: float
    """Seconds until a message that is not finished is delivered again."""
    sample_rate: int = 0
    rdy: int = 0
    blocked: bool = False
    """Whether its peer does not take what was sent: it gets nothing then, whatever its RDY."""
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    _held: dict[bytes, Message] = field(default_factory=dict)
    """In flight, in order of deadline."""
    _overheld: dict[bytes, Message] = field(default_factory=dict)
    """In flight, touched up to the latest deadline there can be, in no order."""

    @property
    def in_flight(self) -> int:
        """Messages delivered and not yet finished, requeued or timed out."""
        return len(self._held) + len(self._overheld)

    @property
    def spare(self) -> int:
        """How many messages it may be given now."""
        return 0 if self.blocked else max(0, self.rdy - self.in_flight)

    @property
    def next_deadline(self) -> float:
        """When the first message times out; NEVER without any."""
        first = next(iter(self._held.values()), None)
        due = first.deadline if first else NEVER
        return min([due, *[each.deadline for each in self._overheld.values()]])

    def holds(self, id_: bytes) -> bool:
        """Whether the message is in flight here."""
        return id_ in self._held or id_ in self._overheld

    def take(self, batch: list[Message], now: float, rng: random.Random) -> list[Message]:
        """Have a batch in flight; returns what the sample rate leaves of it, the rest is gone."""
        if self.sample_rate:
            # One percent more than it says, as rand.Int31n(100) > sampleRate skips.
            batch = [each for each in batch if rng.randrange(100) <= self.sample_rate]
        deadline, held = now + self.msg_timeout, self._held
        for message in batch:
            message.attempts = (message.attempts + 1) & 0xFFFF  # uint16
            message.delivered = now
            message.deadline = deadline
            held[message.id] = message
        self.message_count += len(batch)
        return batch

    def release(self, id_: bytes) -> Message | None:
        """Have a message in flight no more; None if it was not."""
        return self._held.pop(id_, None) or self._overheld.pop(id_, None)

    def hold_on(self, message: Message, now: float, latest: float) -> float:
        """Have a released message in flight again, until ``latest`` at most; returns until when."""
        deadline = now + self.msg_timeout
        message.deadline = min(deadline, latest)
        (self._held if deadline < latest else self._overheld)[message.id] = message
        return message.deadline

    def forget(self) -> None:
        """Have nothing in flight."""
        self._held.clear()
        self._overheld.clear()

    def take_expired(self, now: float) -> list[Message]:
        """Release what has timed out."""
        expired = []
        for message in self._held.values():
            if message.deadline > now:
                break
            expired.append(message)
        expired += [each for each in self._overheld.values() if each.deadline <= now]
        for message in expired:
            self.release(message.id)
        return expired


def share_out(
    queue: deque[Message], ready: list[Consumer], rng: random.Random
) -> list[tuple[Consumer, list[Message]]]:
    """Take messages off a queue for consumers with RDY to spare, chosen at random.

    None gets more than it can take, nor much more than ``TURN_BYTES``.
    """
    batches: list[list[Message]] = [[] for _ in ready]
    spare = [each.spare for each in ready]
    room = [TURN_BYTES] * len(ready)
    open_ = list(range(len(ready)))
    while queue and open_:
        alone = len(open_) == 1
        chosen = open_[0] if alone else rng.choice(open_)
        share = len(queue) if alone else 1 + len(queue) // (8 * len(open_))
        for _ in range(min(share, spare[chosen])):
            message = queue.popleft()
            batches[chosen].append(message)
            spare[chosen] -= 1
            room[chosen] -= len(message.body)
            if room[chosen] <= 0:
                break
        if spare[chosen] <= 0 or room[chosen] <= 0:
            open_.remove(chosen)
    return [(consumer, batch) for consumer, batch in zip(ready, batches, strict=True) if batch]
