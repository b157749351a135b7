"""Polls a cluster for everybody who looks, and keeps the last picture and an hour of history."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.clock import wall
from nsqtools.config.units import counted
from nsqtools.engine.clusterstats import ConsumerRates
from nsqtools.engine.doctor import findings_of
from nsqtools.policy.checks import age
from nsqtools.policy.history import History
from nsqtools.policy.rates import Counters, Rates, Row
from nsqtools.tasks import SharedCall, end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.engine.cluster import Cluster, Snapshot
    from nsqtools.engine.clusterstats import ConsumerRow
    from nsqtools.engine.doctor.findings import Finding
    from nsqtools.policy.rates import ChannelKey

_MAX_DETAILS = 50  # topics whose consumers are kept until they are asked for again


class TopicLine(NamedTuple):
    """A topic with its channels, over all nsqds that answer; ``missing`` nsqds do not.

    Rates are per second, None while unknown. ``oldest`` is the estimated age of the oldest message
    in seconds, infinite if messages wait and none leaves. A topic that only nsqlookupd knows is not
    ``is_held``.
    """

    name: str
    depth: int
    in_flight: int
    deferred: int
    ingress: float | None
    egress: float | None
    oldest: float | None
    clients: int
    paused: bool
    missing: int
    is_held: bool
    keys: Sequence[ChannelKey]


class TopicDetail(NamedTuple):
    """The answers about one topic; rates of consumers are those since the last look at it."""

    snapshot: Snapshot
    consumers: Sequence[ConsumerRow]


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
        return [*lookupds, *(f"nsqd {e}" for e in self.snapshot.silent.values())]


class ClusterWatch:
    """Polls ``cluster`` every ``interval`` seconds, and asks it for single topics.

    Each interval has one round of requests, and one more for each topic whose details are looked
    at. The number of requests does not depend on how many visitors look.
    """

    def __init__(self, cluster: Cluster, interval: float) -> None:
        self.interval = interval
        self.history = History()
        self.picture: Picture
        """Set by the first poll, which comes before ``run``."""
        self.polls = 0
        self.poll = SharedCall(self._poll)
        self._cluster = cluster
        self._rates = Rates()
        self._found: dict[str, tuple[float, asyncio.Task[TopicDetail]]] = {}
        self._consumers: dict[str, ConsumerRates] = {}
        self._renewed = asyncio.Event()
        self._stopping = asyncio.Event()

    def status(self) -> str:
        """Return one line about the last poll."""
        snapshot = self.picture.snapshot
        return f"{len(snapshot.stats)} of {counted(len(snapshot.nodes), 'nsqd')} answering"

    async def run(self) -> None:
        """Poll again after each interval, until ``stop``, or until cancelled, which stops too."""
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        try:
            while True:
                next_at = max(next_at + self.interval, loop.time())
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(next_at):
                        await self._stopping.wait()
                        return
                await self.poll()
        finally:
            self.stop()

    async def refresh(self) -> None:
        """Poll from now on: a poll or a look under way may have asked before a change."""
        if self.poll.is_running:
            await self.poll()
        await self.poll()
        if looks := [task for _, task in self._found.values() if not task.done()]:
            await asyncio.wait(looks)
        self._found = {topic: (-math.inf, task) for topic, (_, task) in self._found.items()}

    def stop(self) -> None:
        """End ``run``, and everybody's wait for a picture."""
        self._stopping.set()
        self._renewed.set()

    async def close(self) -> None:
        """Stop, and end all requests."""
        self.stop()
        await self.poll.close()
        await end(task for _, task in self._found.values())

    async def next_picture(self) -> bool:
        """Wait for the next picture; returns false after ``stop``."""
        await self._renewed.wait()
        return not self._stopping.is_set()

    async def detail(self, topic: str) -> TopicDetail:
        """Return the answers about one topic, at most one interval old."""
        now = asyncio.get_running_loop().time()
        asked, task = self._found.get(topic, (0.0, None))
        if task is None or task.cancelled() or (task.done() and now - asked > self.interval * 0.9):
            task = asyncio.get_running_loop().create_task(self._ask(topic))
            self._found.pop(topic, None)
            self._found[topic] = now, task
            self._consumers.setdefault(topic, ConsumerRates())
            for old in [each for each in self._found if self._found[each][1].done()]:
                if len(self._found) > _MAX_DETAILS:
                    del self._found[old], self._consumers[old]
        return await asyncio.shield(task)

    async def now(self, topic: str) -> Snapshot:
        """Return new answers about one topic."""
        return await self._cluster.again(self.picture.snapshot, topic)

    async def _ask(self, topic: str) -> TopicDetail:
        snapshot = await self.now(topic)
        return TopicDetail(snapshot, self._consumers[topic].record(snapshot))

    async def _poll(self) -> None:
        at = wall()
        snapshot = await self._cluster.look()
        samples = snapshot.samples()
        found = self._rates.record(samples, snapshot.topics())
        self.history.record(snapshot.at, samples, self.interval)
        rows = {(row.topic, row.channel): row for row in found}
        silent = Counter(name for each in snapshot.silent for name in snapshot.nodes[each].topics)
        for name in await self._cluster.unheld(snapshot):
            rows.setdefault((name, ""), Row(name, "", Counters(), nodes=0, missing=silent[name]))
        by_topic = groupby(sorted(rows), lambda key: key[0])
        topics = [_line(name, [rows[key] for key in keys]) for name, keys in by_topic]
        self.picture = Picture(at, snapshot, rows, topics, list(findings_of(snapshot)))
        self.polls += 1
        self._renewed.set()
        if not self._stopping.is_set():
            self._renewed = asyncio.Event()


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
        clients=sum(row.totals.clients for row in channels),
        paused=any(row.totals.paused for row in rows),
        missing=max(row.missing for row in rows),
        is_held=any(row.is_held for row in rows),
        keys=[(row.topic, row.channel) for row in rows],
    )
