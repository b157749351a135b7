"""Publishes dead letters again, at a rate, and counts them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from nsqtools.errors import OutputError, PublishError
from nsqtools.policy.pace import Pace
from nsqtools.records.bodies.expressions import Condition
from nsqtools.tasks import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.engine.handler import Message
    from nsqtools.names import Address
    from nsqtools.sinks.deadletters import Publisher

LARGEST_LOT = 200
"""Maximum messages of a publish. As many may be published twice after a kill -9."""
LARGEST_LOT_BYTES = 1 << 20
"""A publish with these many bytes takes no further message."""
DEAD = ".dead"
"""The end of the name of a dead-letter topic; without it, the name is that of the origin."""


class Choice:
    """Chooses dead letters: those whose reason contains a text, and whose body fulfils a condition.

    Both may be empty; ``where`` is a jq program. Raises ConfigError if it is invalid.
    """

    def __init__(self, where: str = "", reason: str = "") -> None:
        self.condition = Condition(where) if where else None
        self._reason = reason

    def has(self, body: bytes, reason: str = "") -> bool:
        """Whether a dead letter is chosen."""
        return self._reason in reason and (not self.condition or self.condition.chooses(body))

    def bodies(self, source: Address, messages: Sequence[Message]) -> list[bytes | None]:
        """Return the bodies to publish, None for messages that are not chosen; for a thread."""
        return [message.body if self.has(message.body) else None for message in messages]

    def settled(self, source: Address, message: Message, refusal: str) -> None:
        """Do nothing: the redriver counts what is published and refused."""


class Redriver:
    """Publishes at most ``limit`` messages, at most ``rate`` per second; 0 is no limit.

    ``dry`` publishes nothing, and only counts. A set ``stopping`` lets ``wait`` return false.
    """

    def __init__(
        self, publisher: Publisher, *, rate: float = 0.0, limit: int = 0, dry: bool = False
    ) -> None:
        self._publisher = publisher
        self._pace = Pace(0.0 if dry else rate)
        self._limit = limit
        self.dry = dry
        self.stopping = asyncio.Event()
        self.published: Counter[tuple[str, str]] = Counter()
        """Number of messages by topic and reason; with ``dry``, of those to publish."""
        self.refused = 0
        """Number of messages that nsqd does not accept; they stay where they are."""
        self.refusal = ""
        """The reason of the last refusal, or why the last publish failed."""
        self.failure: OutputError | None = None
        """Why nobody has confirmed a part of the last publish; None if nsqd has answered."""

    @property
    def count(self) -> int:
        """The number of published messages."""
        return self.published.total()

    @property
    def room(self) -> int:
        """How many messages the next publish may have."""
        most = self._pace.burst(LARGEST_LOT)
        return min(most, self._limit - self.count) if self._limit else most

    async def wait(self, count: int) -> bool:
        """Wait until the rate allows so many messages; return whether to publish them."""
        delay = self._pace.delay(count, now=asyncio.get_running_loop().time())
        if delay:
            await interruptible(asyncio.sleep(delay), self.stopping)
        return not self.stopping.is_set()

    async def publish(
        self, topic: str, bodies: Sequence[bytes], reasons: Sequence[str] = ()
    ) -> Sequence[int]:
        """Publish bodies; return the positions of those that nsqd has not accepted.

        Raise ``failure``, if it is set, after noting the others: it is unknown whether these bodies
        are published. Raises UnreachableError.
        """
        refused: Sequence[int] = ()
        self.failure = None
        if not self.dry:
            try:
                await self._publisher.publish(topic, bodies)
            except PublishError as error:
                refused = error.refused
                self.refusal = f"topic {topic}: {error}"
                if error.permanent:
                    self.refused += len(refused)
                else:
                    self.failure = OutputError(self.refusal)
        for position, reason in enumerate(reasons or [""] * len(bodies)):
            if position not in refused:
                self.published[topic, reason] += 1
        return refused
