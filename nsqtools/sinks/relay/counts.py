"""Counts of the messages of a relayed topic."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nsqtools.metrics import of_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqtools.metrics import Metric


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
        names = [each.name for each in fields(self)[2:]]
        text = ", ".join(f"{getattr(self, name)} {name.replace('_', '-')}" for name in names)
        return f"{self.topic} -> {self.destination}: {text}"


_ROWS = (
    ("relayed", "relayed_total", "Messages that the destination has accepted."),
    (
        "filtered",
        "filtered_total",
        "Messages that were finished because the rules filter them out.",
    ),
    ("dead_lettered", "dead_lettered_total", "Messages that were written as dead letters."),
    ("lost", "lost_total", "Messages that were given up without a destination for dead letters."),
)


def metrics_of(counts: Iterable[Counts]) -> Iterator[Metric]:
    """Return the counts for Prometheus, except those that consumers report."""
    found = [({"topic": each.topic, "destination": each.destination}, each) for each in counts]
    return of_fields("nsqtools_relay_", _ROWS, found)
