"""The numbers of every topic and channel on each nsqd over the last hour, in bounded memory."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.policy.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsqtools.policy.rates import ChannelKey, CounterSample, Row

POINTS = 180
"""Number of points kept."""
SPACING = 20.0
"""Seconds between two points: ``POINTS`` cover an hour, or for some intervals of polls less."""

FIELDS = ("depth", "in_flight", "deferred", "ingress", "egress", "requeues", "timeouts")
"""The recorded numbers: counts, then rates per second."""

_MAX_TOTALS = 500

_NOT_ASKED, _SILENT, _ANSWERED = range(3)


class Points(NamedTuple):
    """The values of one number at ``times``; None where it is unknown."""

    times: Sequence[float]
    values: Sequence[float | None]


def numbers_of(row: Row) -> tuple[float | None, ...]:
    """Return the numbers of ``FIELDS``."""
    totals = row.totals
    rates = (row.ingress, row.egress, row.requeue_rate, row.timeout_rate)
    return totals.depth, totals.in_flight, totals.deferred, *rates


class History:
    """Keeps a ring of points, one every ``SPACING`` seconds.

    A number that was always 0 takes no memory, and most numbers are. A topic or channel that no
    nsqd has had for a whole ring is forgotten, and so is such an nsqd.
    """

    def __init__(self) -> None:
        self._count = 0
        self._rates: dict[str, Rates] = {}
        self._totals: dict[tuple[tuple[ChannelKey, ...], str], Points] = {}
        self._times = array("d", [math.nan]) * POINTS
        self._nodes: dict[str, bytearray] = {}
        self._series: dict[ChannelKey, dict[str, _Series]] = {}

    def record(
        self, at: float, samples: Mapping[str, CounterSample | None], interval: float
    ) -> None:
        """Take the answers of a poll by nsqd, None for a silent nsqd; add a point if it is time.

        Polls come every ``interval`` seconds. Rates cover the time since the last point.
        """
        since = at - self._times[self._count % POINTS]
        if self._count and since < SPACING - interval / 2:
            return
        self._rates = {name: self._rates.get(name, Rates()) for name in samples}
        rows = {
            name: None if sample is None else self._rates[name].record({name: sample})
            for name, sample in samples.items()
        }
        self.add(at, rows)

    def add(self, at: float, rows: Mapping[str, Iterable[Row] | None]) -> None:
        """Add a point: the rows of each nsqd, None for a silent nsqd.

        ``at`` is in monotonic seconds.
        """
        self._count += 1
        slot = self._count % POINTS
        self._totals.clear()
        self._times[slot] = at
        for states in self._nodes.values():
            states[slot] = _NOT_ASKED
        for node, found in rows.items():
            states = self._nodes.setdefault(node, bytearray(POINTS))
            states[slot] = _SILENT if found is None else _ANSWERED
            for row in found or ():
                series = self._series.setdefault((row.topic, row.channel), {})
                series.setdefault(node, _Series()).put(self._count, slot, row)
        self._forget()

    def _forget(self) -> None:
        oldest = self._count - POINTS
        for key, by_node in list(self._series.items()):
            for node in [node for node, each in by_node.items() if each.last <= oldest]:
                del by_node[node]
            if not by_node:
                del self._series[key]
        for node in [node for node, states in self._nodes.items() if not any(states)]:
            del self._nodes[node]

    def nodes(self, key: ChannelKey) -> list[str]:
        """Return the nsqds that had the topic or channel."""
        return sorted(self._series.get(key, ()))

    def of_node(self, key: ChannelKey, node: str, name: str) -> Points:
        """Return a number of a topic or channel on one nsqd; ``name`` is one of ``FIELDS``."""
        series = self._series.get(key, {}).get(node) or _Series()
        return self._known(series.at(self._points(), name))

    def total(self, keys: Iterable[ChannelKey], name: str) -> Points:
        """Return the sum of a number over topics, channels and nsqds.

        The sum is unknown where an nsqd that has one of them was silent, or where it has no rate.
        It is kept until the next point, because many look at it meanwhile.
        """
        wanted = (*keys,), name
        if wanted not in self._totals:
            if len(self._totals) >= _MAX_TOTALS:
                self._totals.clear()
            self._totals[wanted] = self._sum(*wanted)
        return self._totals[wanted]

    def _sum(self, keys: Iterable[ChannelKey], name: str) -> Points:
        points = self._points()
        sums: list[float | None] = [None] * len(points)
        for by_node in filter(None, map(self._series.get, keys)):
            for node, series in by_node.items():
                states = self._nodes[node]
                for position, value in enumerate(series.at(points, name)):
                    if value is not None:
                        sums[position] = (sums[position] or 0.0) + value
                    elif states[points[position] % POINTS] == _SILENT:
                        sums[position] = math.nan
        return self._known(sums)

    def _points(self) -> range:
        """Return the numbers of the points kept, counted from 1."""
        return range(max(0, self._count - POINTS) + 1, self._count + 1)

    def _known(self, values: Sequence[float | None]) -> Points:
        times = [self._times[point % POINTS] for point in self._points()]
        return Points(
            times, [None if each is None or math.isnan(each) else each for each in values]
        )


class _Series:
    """The numbers of a topic or channel on one nsqd. A number without an array was always 0."""

    __slots__ = ("_points", "_values", "last")

    def __init__(self) -> None:
        self.last = 0
        """The number of the last point."""
        self._points = array("I", [0]) * POINTS  # the number of the point at each position
        self._values: list[array[float] | None] = [None] * len(FIELDS)

    def put(self, count: int, slot: int, row: Row) -> None:
        """Record point number ``count`` at this position."""
        self.last = self._points[slot] = count
        for position, number in enumerate(numbers_of(row)):
            values = self._values[position]
            if values is None:
                if number == 0:
                    continue
                values = self._values[position] = array("f", bytes(4 * POINTS))
            values[slot] = math.nan if number is None else number

    def at(self, points: range, name: str) -> list[float | None]:
        """Return a number at these points: NaN where it is unknown, None without a point."""
        values = self._values[FIELDS.index(name)]
        slots = [point % POINTS for point in points]
        return [
            None if self._points[slot] != point else values[slot] if values else 0.0
            for point, slot in zip(points, slots, strict=True)
        ]
