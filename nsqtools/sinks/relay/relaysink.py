"""The sink that relays topics: waiting messages are published in one MPUB and finished after its
OK.

Each topic has a few concurrent publishes. Batches that arrive meanwhile wait, and the next publish
takes all of them: a slow destination gets larger publishes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import AuthError, OutputError, RefusedError, UnreachableError
from nsqtools.metrics import of_fields
from nsqtools.policy.pace import Pace
from nsqtools.records.bodies.bodydecoder import UNDECODED
from nsqtools.sinks.holding import HoldingHandler
from nsqtools.sinks.relay.counts import Counts, metrics_of
from nsqtools.sinks.relay.work import Work
from nsqtools.sinks.repeats import Repeats
from nsqtools.sinks.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from nsqtools.engine.handler import Batch
    from nsqtools.engine.producer import Producer
    from nsqtools.errors import NSQError
    from nsqtools.metrics import Metric
    from nsqtools.names import Address
    from nsqtools.sinks.deadletters import DeadLetters
    from nsqtools.sinks.relay.filter import Filter

log = logging.getLogger(__name__)
status = logging.getLogger("nsqtools.status")
"""For --status-every, at any log level."""

_STATUS_INTERVAL = 1.0
"""Minimum seconds between two reports."""
_LONGEST_PAUSE = 8.0
"""Maximum seconds between two attempts to reach servers at the start."""


class Guard(Protocol):
    """Detects a relay into itself."""

    async def check(self) -> None:
        """Raise ConfigError if messages would come back."""

    def error_for(self, topic: str, source: Address) -> NSQError | None:
        """Return the error for a topic consumed from this nsqd; called for each batch."""


class RelaySink(HoldingHandler):
    """A handler to publish topics to others; ``destinations`` maps their names.

    ``defer`` is in seconds. Messages that the rules cannot process, or that no nsqd accepts, go to
    ``dead_letters``; without a destination for those they are requeued with growing delays. The
    counts are logged at the end and after every ``status_every`` messages; 0 means never. With
    ``patient``, ``open`` waits for servers that cannot be reached.
    """

    def __init__(
        self,
        producer: Producer,
        destinations: Mapping[str, str],
        rules: Filter,
        dead_letters: DeadLetters,
        *,
        guard: Guard | None = None,
        defer: float | None = None,
        pace: Pace | None = None,
        status_every: int = 0,
        patient: bool = False,
        threads: Threads | None = None,
    ) -> None:
        self.producer = producer
        self.rules = rules
        self.dead_letters = dead_letters
        self.defer = defer
        self.pace = pace or Pace(0)
        self.counts = {topic: Counts(topic, goal) for topic, goal in destinations.items()}
        self._guard = guard
        self._topics: dict[str, Work] = {}
        self._status_every = status_every
        self._since_status = 0
        self._next_status = 0.0
        self._patient = patient
        self._is_open = False
        self.repeats = Repeats(log)
        self.threads = threads or Threads(1, "rules")
        """Threads for the rules, because jq programs may be slow."""

    async def open(self) -> None:
        """Check for loops and connect; raises ConfigError, UnreachableError or OutputError."""
        await super().open()
        if self._guard:
            await self._reach(self._guard.check)
        await self.dead_letters.open()
        await self._reach(self.producer.connect)
        self._is_open = True

    async def join(self, topic: str) -> None:
        """Prepare for a topic."""
        if topic not in self._topics:
            self._topics[topic] = Work(self, self.counts[topic])

    async def handle(self, batch: Batch) -> None:
        """Accept a batch; it is settled when the destination has it."""
        if self._guard and (error := self._guard.error_for(batch.topic, batch.source)):
            batch.requeue(delay=0, backoff=False)
            self.fail(OutputError(str(error)))  # ConfigError would mean: nothing was done
            return
        self._topics[batch.topic].add(batch)

    async def gave_up(self, batch: Batch) -> None:
        """Accept a batch; it is settled once it is a dead letter, or its loss was logged."""
        self._topics[batch.topic].bury(batch)

    async def drain(self, topic: str) -> None:
        """Publish all held messages of a topic; if cancelled, stop publishing.

        Messages waiting only for the rate limit, or for a lost destination, are requeued.
        """
        if work := self._topics.pop(topic, None):
            await work.end()

    async def close(self, *, at_once: bool = False) -> None:
        """Stop publishing, close the connections and log the counts."""
        for work in self._topics.values():
            await work.leave()
        self._topics.clear()
        self.repeats.close()
        self.threads.close()
        if self.rules.decoder:
            self.rules.decoder.close()
        await self.producer.close()
        await self.dead_letters.close()
        if self._is_open:
            self._tell_counts()

    def metrics(self) -> Iterator[Metric]:
        """Return the counts for Prometheus."""
        yield from metrics_of(self.counts.values())
        if self.rules.decoder:
            yield from of_fields("nsqtools_", UNDECODED, [({}, self.rules.decoder)])

    async def _reach(self, servers: Callable[[], Awaitable[None]]) -> None:
        """Await ``servers``, if patient again and again until they can be reached."""
        pause = 0.0
        while True:
            try:
                return await servers()
            except UnreachableError as error:
                if not self._patient or isinstance(error, RefusedError | AuthError):
                    raise
                level = logging.DEBUG if pause else logging.WARNING
                log.log(level, "%s: waiting until a server can be reached", error)
            pause = min(2 * pause or 1.0, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    # Methods for Work.

    def relayed(self, count: int) -> None:
        """Add to the count of relayed messages, and log the counts if it is time."""
        self._since_status += count
        if self._status_every and self._since_status >= self._status_every:
            now = self._loop.time()
            if now >= self._next_status:
                self._since_status = 0
                self._next_status = now + _STATUS_INTERVAL
                self._tell_counts()

    def _tell_counts(self) -> None:
        for counts in self.counts.values():
            status.info("%s", str(counts))  # formatted now, as the counts change
