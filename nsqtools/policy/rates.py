"""Sums of counters over all nsqds, and their rates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ChannelKey: TypeAlias = tuple[str, str]
"""Topic and channel; for the topic itself the channel is empty."""


class Counters(NamedTuple):
    """The counters of a topic or channel on one nsqd, or summed over several.

    ``messages``, ``requeues`` and ``timeouts`` only grow. ``depth`` includes ``backend_depth``; a
    topic's own depth is the messages not yet copied to a channel. ``paused`` is true if the topic
    or channel is paused on any of the nsqds.
    """

    messages: int = 0
    requeues: int = 0
    timeouts: int = 0
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    clients: int = 0
    paused: bool = False

    @property
    def memory_depth(self) -> int:
        """The number of messages waiting in memory."""
        return self.depth - self.backend_depth

    @property
    def held(self) -> int:
        """The number of unfinished messages."""
        return self.depth + self.in_flight + self.deferred

    def plus(self, other: Counters) -> Counters:
        """Return the sum of both."""
        return Counters._make((*map(add, self[:-1], other[:-1]), self.paused or other.paused))


_NOTHING = Counters()


class CounterSample(NamedTuple):
    """The counters of one nsqd at time ``at``, in seconds of any one clock.

    ``start_time`` is nsqd's start, in seconds since the epoch.
    """

    at: float
    start_time: int
    counters: Mapping[ChannelKey, Counters]


@dataclass(frozen=True, slots=True)
class Row:
    """A topic or channel over all answering nsqds; rates are per second, None if unknown.

    ``nodes`` is the number of nsqds with this topic or channel, ``missing`` the number of silent
    nsqds known to have it. Rates cover only the ``measured`` nsqds: those with a previous sample.
    """

    topic: str
    channel: str
    totals: Counters
    nodes: int
    missing: int
    ingress: float | None = None
    egress: float | None = None
    requeue_rate: float | None = None
    timeout_rate: float | None = None
    measured: int = 0

    @property
    def is_held(self) -> bool:
        """Whether an nsqd has it, or may have it."""
        return bool(self.nodes or self.missing)

    @property
    def whole(self) -> bool:
        """Whether the rates cover the same nsqds as the totals."""
        return self.measured == self.nodes


def shown(rows: Iterable[Row], channel: str = "") -> list[Row]:
    """Return all rows, or with a channel only the rows of channels."""
    return [row for row in rows if row.channel or not channel]


@dataclass(slots=True)
class _Sum:
    """Sums over nsqds, and rates per second over the measured nsqds."""

    totals: Counters = _NOTHING
    nodes: int = 0
    missing: int = 0
    measured: int = 0
    messages: float = 0.0
    held: float = 0.0
    requeues: float = 0.0
    timeouts: float = 0.0

    def measure(self, before: Counters, now: Counters, elapsed: float) -> None:
        self.measured += 1
        self.messages += (now.messages - before.messages) / elapsed
        self.held += (now.held - before.held) / elapsed
        self.requeues += (now.requeues - before.requeues) / elapsed
        self.timeouts += (now.timeouts - before.timeouts) / elapsed

    def row(self, key: ChannelKey) -> Row:
        row = Row(*key, self.totals, self.nodes, self.missing)
        if not self.measured:
            return row
        return replace(
            row,
            ingress=self.messages,
            egress=max(0.0, self.messages - self.held),
            requeue_rate=self.requeues,
            timeout_rate=self.timeouts,
            measured=self.measured,
        )


class Rates:
    """Sums samples of nsqds and computes rates from the previous samples.

    A rate covers the nsqds with a baseline. Restarted or silent nsqds, and recreated topics or
    channels, get rates from their next sample on. Egress counts messages no longer held: unlike
    in nsq_stat, messages in flight or deferred do not count.
    """

    def __init__(self) -> None:
        self._before: dict[str, CounterSample] = {}
        self._had: dict[str, frozenset[ChannelKey]] = {}

    def record(
        self,
        samples: Mapping[str, CounterSample | None],
        listed: Mapping[str, Iterable[str]] | None = None,
    ) -> list[Row]:
        """Return rows by topic and channel, a topic before its channels.

        ``samples`` are by nsqd; None for a silent nsqd. Such an nsqd counts as missing in the
        topics and channels of its last answer, until it answers or is no longer in ``samples``. If
        it has never answered, it counts as missing in the topics ``listed`` for it.
        """
        sums: dict[ChannelKey, _Sum] = {}
        unseen: Counter[str] = Counter()
        for node, sample in samples.items():
            if sample is None:
                for key in self._had.get(node, ()):
                    sums.setdefault(key, _Sum()).missing += 1
                if node not in self._had:
                    unseen.update((listed or {}).get(node, ()))
                continue
            before = self._baseline(node, sample)
            for key, counters in sample.counters.items():
                total = sums.setdefault(key, _Sum())
                total.totals = total.totals.plus(counters)
                total.nodes += 1
                if before is None:
                    continue
                # A topic or channel missing from the nsqd's last answer started from zero.
                first = before.counters.get(key, _NOTHING)
                if not _fell(first, counters):
                    total.measure(first, counters, sample.at - before.at)
        for (topic, _), total in sums.items():
            total.missing += unseen[topic]
        self._had = {
            node: self._had[node] if sample is None else frozenset(sample.counters)
            for node, sample in samples.items()
            if sample is not None or node in self._had
        }
        self._before = {node: sample for node, sample in samples.items() if sample is not None}
        return [sums[key].row(key) for key in sorted(sums)]

    def _baseline(self, node: str, sample: CounterSample) -> CounterSample | None:
        before = self._before.get(node)
        if before is None or before.start_time != sample.start_time or sample.at <= before.at:
            return None
        return before


def _fell(before: Counters, now: Counters) -> bool:
    """Whether the topic or channel was recreated, or nsqd restarted."""
    return (
        now.messages < before.messages
        or now.requeues < before.requeues
        or now.timeouts < before.timeouts
    )
