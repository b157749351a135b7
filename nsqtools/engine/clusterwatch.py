"""Polls a cluster for everybody who looks, and keeps the last picture and an hour of history."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.config.units import counted
from nsqtools.engine.doctor import findings_of
from nsqtools.policy.checks import age
from nsqtools.policy.history import SPACING, History
from nsqtools.policy.rates import Rates
from nsqtools.tasks import SharedCall, end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.engine.cluster import Cluster, Snapshot
    from nsqtools.engine.doctor.findings import Finding
    from nsqtools.policy.rates import ChannelKey, Row

_MAX_DETAILS = 50  # topics whose consumers are kept until they are asked for again


class TopicLine(NamedTuple):
    """A topic with its channels, over all nsqds that answer; ``missing`` nsqds do not.

    Rates are per second, None while unknown. ``oldest`` is the estimated age of the oldest message
    in seconds, infinite if messages wait and none leaves.
    """

    name: str
    depth: int
    in_flight: int
    deferred: int
    ingress: float | None
    egress: float | None
    oldest: float | None
    channels: int
    clients: int
    paused: bool
    missing: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What one poll has found; ``at`` is in seconds since the epoch."""

    at: float
    snapshot: Snapshot
    rows: Mapping[ChannelKey, Row]
    topics: Sequence[TopicLine]
    findings: Sequence[Finding] = field(default=())

    @property
    def silent(self) -> list[str]:
        """The errors of all servers without an answer."""
        lookupds = [f"nsqlookupd {e}" for e in self.snapshot.lookupds.values() if e]
        return [*lookupds, *(f"nsqd {e}" for e in self.snapshot.failures.values())]


class ClusterWatch:
    """Polls ``cluster`` every ``interval`` seconds; ``details`` are asked for single topics.

    However many look, each interval has one round of requests, and one more for each
    topic whose details are looked at.
    """

    def __init__(self, cluster: Cluster, details: Cluster, interval: float) -> None:
        self.interval = interval
        self.history = History()
        self.picture: Picture
        """Set by the first poll."""
        self.polls = 0
        self.poll = SharedCall(self._poll)
        self._cluster = cluster
        self._rates = Rates()
        self._node_rates: dict[str, Rates] = {}
        self._recorded = 0.0
        self._details = details
        self._asking = asyncio.Lock()
        self._found: dict[str, tuple[float, asyncio.Task[Snapshot]]] = {}
        self._turned = asyncio.Event()
        self._stopping = asyncio.Event()

    def status(self) -> str:
        """Return one line about the last poll."""
        snapshot = self.picture.snapshot
        return f"{len(snapshot.stats)} of {counted(len(snapshot.nodes), 'nsqd')} answering"

    async def run(self) -> None:
        """Poll until ``stop``."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            next_at = loop.time() + self.interval
            await self.poll()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_at):
                    await self._stopping.wait()

    def stop(self) -> None:
        """End ``run``, and everybody's wait for a turn."""
        self._stopping.set()
        self._turned.set()

    async def close(self) -> None:
        """Stop, and end all requests."""
        self.stop()
        await self.poll.close()
        await end(task for _, task in self._found.values())

    async def turn(self) -> bool:
        """Wait for the next picture; returns false after ``stop``."""
        await self._turned.wait()
        return not self._stopping.is_set()

    async def detail(self, topic: str) -> Snapshot:
        """Return the answers about one topic, with consumers, at most one interval old."""
        now = asyncio.get_running_loop().time()
        asked, task = self._found.get(topic, (0.0, None))
        if task is None or task.cancelled() or (task.done() and now - asked > self.interval * 0.9):
            task = asyncio.get_running_loop().create_task(self._ask(topic))
            self._found.pop(topic, None)
            self._found[topic] = now, task
            for old in [each for each in self._found if self._found[each][1].done()]:
                if len(self._found) > _MAX_DETAILS:
                    del self._found[old]
        return await asyncio.shield(task)

    async def _ask(self, topic: str) -> Snapshot:
        async with self._asking:  # looks share the deadline of their cluster
            return await self._details.look(topic, include_clients=True)

    async def _poll(self) -> None:
        at = time.time()
        snapshot = await self._cluster.look()
        found = self._rates.record(snapshot.samples(), snapshot.topics())
        self._record(snapshot)
        rows = {(row.topic, row.channel): row for row in found}
        topics = [_line(name, list(some)) for name, some in groupby(found, lambda row: row.topic)]
        self.picture = Picture(at, snapshot, rows, topics, list(findings_of(snapshot)))
        self.polls += 1
        self._turned.set()
        if not self._stopping.is_set():
            self._turned = asyncio.Event()

    def _record(self, snapshot: Snapshot) -> None:
        """Add a point to the history if it is time; rates cover the time since the last point."""
        if self.polls and snapshot.at - self._recorded < min(SPACING, SPACING - self.interval / 2):
            return
        self._recorded = snapshot.at
        samples = snapshot.samples()
        self._node_rates = {name: self._node_rates.get(name, Rates()) for name in samples}
        rows = {
            name: None if sample is None else self._node_rates[name].record({name: sample})
            for name, sample in samples.items()
        }
        self.history.add(snapshot.at, rows)


def _line(name: str, rows: Sequence[Row]) -> TopicLine:
    """Sum up the rows of a topic: its own, if an nsqd answered, then those of its channels."""
    own = next((row for row in rows if not row.channel), None)
    channels = [row for row in rows if row.channel]
    outs = [row.egress for row in channels]
    ages = [age(row) for row in channels or rows if row.totals.depth]
    known_ages = [each for each in ages if each is not None]
    return TopicLine(
        name,
        depth=sum(row.totals.depth for row in rows),
        in_flight=sum(row.totals.in_flight for row in channels),
        deferred=sum(row.totals.deferred for row in channels),
        ingress=own.ingress if own else None,
        egress=None if None in outs else sum(filter(None, outs)),
        oldest=max(known_ages, default=0.0) if len(known_ages) == len(ages) else None,
        channels=len(channels),
        clients=sum(row.totals.clients for row in channels),
        paused=any(row.totals.paused for row in rows),
        missing=max(row.missing for row in rows),
    )
