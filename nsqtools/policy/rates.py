"""What was counted, over all nsqds, and how fast it grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Key: TypeAlias = tuple[str, str]
"""Topic and channel; without a channel it is the topic itself."""

Sample: TypeAlias = "tuple[int, Mapping[Key, Counters]]"
"""When the nsqd was started, in seconds since the epoch, and what it counts."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A topic or channel on one nsqd, or the sum over several; paused if it is on any of them.

    ``messages``, ``requeues`` and ``timeouts`` only grow. ``depth`` includes ``backend_depth``.
    A topic's own depth is what no channel has taken yet.
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
    def held(self) -> int:
        """What is not finished yet."""
        return self.depth + self.in_flight + self.deferred

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.messages + other.messages,
            self.requeues + other.requeues,
            self.timeouts + other.timeouts,
            self.depth + other.depth,
            self.backend_depth + other.backend_depth,
            self.in_flight + other.in_flight,
            self.deferred + other.deferred,
            self.clients + other.clients,
            self.paused or other.paused,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A topic or channel over all nsqds that answered; rates are per second, None if unknown.

    ``nodes`` is how many have it, ``missing`` how many had it and do not answer now.
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


@dataclass(slots=True)
class _Growth:
    """Sums over nsqds, per second."""

    messages: float = 0.0
    held: float = 0.0
    requeues: float = 0.0
    timeouts: float = 0.0

    def add(self, before: Counters, now: Counters, elapsed: float) -> None:
        self.messages += (now.messages - before.messages) / elapsed
        self.held += (now.held - before.held) / elapsed
        self.requeues += (now.requeues - before.requeues) / elapsed
        self.timeouts += (now.timeouts - before.timeouts) / elapsed


@dataclass(slots=True)
class _Sum:
    totals: Counters = field(default_factory=Counters)
    nodes: int = 0
    missing: int = 0
    growth: _Growth | None = None


_NOTHING = Counters()


class Rates:
    """Sums samples of nsqds and compares them with the ones before.

    A rate is that of the nsqds that have a baseline: one that has been restarted, one that was
    silent and what was made anew begin with the next sample. Egress counts what left: what is in
    flight or deferred has not (nsq_stat counts it as gone).
    """

    def __init__(self) -> None:
        self._before: dict[str, Sample] = {}
        self._had: dict[str, frozenset[Key]] = {}
        self._at = 0.0

    def record(self, samples: Mapping[str, Sample | None], *, now: float) -> list[Row]:
        """Rows by topic and channel, a topic before its channels.

        ``samples`` are by nsqd; None is one that does not answer, and what it had is missing until
        it is left out. ``now`` is in seconds of a clock that never goes back.
        """
        sums: dict[Key, _Sum] = {}
        elapsed = now - self._at
        for node, sample in samples.items():
            if sample is None:
                for key in self._had.get(node, ()):
                    sums.setdefault(key, _Sum()).missing += 1
                continue
            before = self._baseline(node, sample) if elapsed > 0 else None
            for key, counters in sample[1].items():
                total = sums.setdefault(key, _Sum())
                total.totals += counters
                total.nodes += 1
                # What a node did not have when it answered last began from nothing since.
                first = None if before is None else before.get(key, _NOTHING)
                if first is not None and not _fell(first, counters):
                    total.growth = total.growth or _Growth()
                    total.growth.add(first, counters, elapsed)
        self._had = {
            node: self._had.get(node, frozenset()) if sample is None else frozenset(sample[1])
            for node, sample in samples.items()
        }
        self._before = {node: sample for node, sample in samples.items() if sample is not None}
        self._at = now
        return [_row(key, sums[key]) for key in sorted(sums)]

    def _baseline(self, node: str, sample: Sample) -> Mapping[Key, Counters] | None:
        before = self._before.get(node)
        return before[1] if before and before[0] == sample[0] else None


def _fell(before: Counters, now: Counters) -> bool:
    """Whether it was deleted and made anew, or nsqd restarted."""
    return (
        now.messages < before.messages
        or now.requeues < before.requeues
        or now.timeouts < before.timeouts
    )


def _row(key: Key, found: _Sum) -> Row:
    growth = found.growth
    if growth is None:
        return Row(*key, found.totals, found.nodes, found.missing)
    return Row(
        *key,
        found.totals,
        found.nodes,
        found.missing,
        growth.messages,
        max(0.0, growth.messages - growth.held),
        growth.requeues,
        growth.timeouts,
    )
