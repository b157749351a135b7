"""Counts of the messages of a relayed topic."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nsqtools.metrics import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(slots=True)
class Counts:
    """Messages from a topic to its destination; redelivered messages count as received again."""

    topic: str
    destination: str
    received: int = 0
    relayed: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    lost: int = 0
    requeued: int = 0

    def __str__(self) -> str:
        """Return one line with all counts."""
        said = ", ".join(f"{value} {name.replace('_', '-')}" for name, value in self._values())
        return f"{self.topic} -> {self.destination}: {said}"

    def _values(self) -> Iterator[tuple[str, int]]:
        for each in fields(self)[2:]:
            yield each.name, getattr(self, each.name)


_HELP = {
    "relayed": "Messages that the destination has accepted.",
    "filtered": "Messages that were finished because the rules filter them out.",
    "dead_lettered": "Messages that were written as dead letters.",
    "lost": "Messages that were given up without a destination for dead letters.",
}


def metrics_of(counts: Iterable[Counts]) -> Iterator[Metric]:
    """Yield the counts for Prometheus, except those that consumers report."""
    all_counts = list(counts)
    for name, text in _HELP.items():
        samples = [
            Sample({"topic": each.topic, "destination": each.destination}, getattr(each, name))
            for each in all_counts
        ]
        yield Metric(f"nsqtools_relay_{name}_total", "counter", text, samples)
