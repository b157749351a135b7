"""Charts as SVG paths, drawn from the history."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.policy.history import FIELDS, POINTS, SPACING, Points, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsqtools.policy.history import History
    from nsqtools.policy.rates import ChannelKey, Row

_SHORTEST = 60.0
_MAX_NODES = 7  # more lines could not be told apart
WIDTH, HEIGHT = 480, 96
SPARK_WIDTH, SPARK_HEIGHT = 96, 20

_TITLES = {
    "depth": "Waiting",
    "in_flight": "In flight",
    "deferred": "Deferred",
    "ingress": "In per second",
    "egress": "Out per second",
    "requeues": "Requeued per second",
    "timeouts": "Timed out per second",
}


class Chart(NamedTuple):
    """A chart of one number; ``top`` is the value at its upper edge, ``span`` its time in s.

    ``last`` is the newest value, None if it is unknown. ``lines`` have a label and path data each.
    """

    title: str
    last: float | None
    top: float
    span: float
    lines: Sequence[tuple[str, str]]


def charts(history: History, key: ChannelKey, at: float, row: Row) -> list[Chart]:
    """Return the charts of a topic or channel: the sum, and a line for each of a few nsqds.

    The sum ends with the newest numbers, ``row`` at the time ``at``.
    """
    names = list(_TITLES) if key[1] else ["depth", "ingress"]
    nodes = history.nodes(key)[:_MAX_NODES]
    found = []
    for name in names:
        times, values = history.total([key], name)
        newest = None if row.missing else numbers_of(row)[FIELDS.index(name)]
        series = [("all", Points([*times, at], [*values, newest]))]
        if len(nodes) > 1:
            series += [(node, history.of_node(key, node, name)) for node in nodes]
        top, span = _top(points for _, points in series), _span(series[0][1])
        lines = [(label, path(each, top, at, span)) for label, each in series]
        found.append(Chart(_TITLES[name], newest, top, span, lines))
    return found


def spark(history: History, keys: Iterable[ChannelKey]) -> str:
    """Return the path of a small chart of the sum of the depths."""
    points = history.total(keys, "depth")
    now = points.times[-1] if points.times else 0.0
    return path(points, _top([points]), now, _span(points), SPARK_WIDTH, SPARK_HEIGHT)


def path(
    points: Points, top: float, now: float, span: float, width: int = WIDTH, height: int = HEIGHT
) -> str:
    """Return SVG path data for the ``span`` seconds before ``now``, with gaps at unknown values."""
    parts, is_drawn = [], False
    for at, value in zip(points.times, points.values, strict=True):
        if value is None:
            is_drawn = False
            continue
        x = width * (1 - (now - at) / span)
        y = height - 1 - (height - 2) * value / top
        parts.append(f"{'L' if is_drawn else 'M'}{x:.1f},{y:.1f}")
        if not is_drawn:
            parts.append("h0.5")  # so that a lone point can be seen
        is_drawn = True
    return "".join(parts)


def _top(series: Iterable[Points]) -> float:
    """Return 1, 2 or 5 times a power of ten that no value exceeds."""
    most = max((value for each in series for value in each.values if value), default=0.0)
    if most <= 1:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(unit * step for step in (1, 2, 5, 10) if unit * step >= most)


def _span(points: Points) -> float:
    """Return the time that a chart covers, in seconds: an hour, or less after the start."""
    covered = points.times[-1] - points.times[0] if points.times else 0.0
    return max(_SHORTEST, min(covered, POINTS * SPACING))
