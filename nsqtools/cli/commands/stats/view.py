"""The live view as data: takes keys and reports, returns what rich draws."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nsqtools.cli.commands.stats.formats import noted, style_of
from nsqtools.cli.exits import one_line
from nsqtools.config.units import counted, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions

    from nsqtools.cli.commands.stats.report import Report
    from nsqtools.policy.rates import Row

    History = Mapping[tuple[str, str, str], array[float]]
    """What a sparkline shows, by topic, channel and title."""

SPAN = 300
"""Seconds that sparklines cover, unless reports are very frequent or very rare."""

_SAMPLES = (30, 600)  # least and most of them

HELP = "q quit  s sort"

_NUMBER = 7  # width of a column of numbers
_SPARK = 10  # least width of a sparkline
_NAME = 8  # least width of a topic or a channel
_NAMES = 30  # room for both of them, if they fill it, before there is any for other columns
_NOTES = 20  # greatest width of notes


class Column(NamedTuple):
    """A column.

    Rows are sorted by ``value``, and a cell or its sparkline shows it. A window shows the columns
    up to the highest ``level`` that fits.
    """

    title: str
    value: Callable[[Row], float | None]
    level: int
    spark: bool = False

    @property
    def width(self) -> int:
        """The least width of a cell, with room to mark the title."""
        return _SPARK if self.spark else max(_NUMBER, len(self.title) + 1)


_COLUMNS = (
    Column("depth", lambda row: row.totals.depth, 0),
    Column("depth", lambda row: row.totals.depth, 2, spark=True),
    Column("inflt", lambda row: row.totals.in_flight, 1),
    Column("def", lambda row: row.totals.deferred, 1),
    Column("in/s", lambda row: row.ingress, 0),
    Column("in/s", lambda row: row.ingress, 3, spark=True),
    Column("out/s", lambda row: row.egress, 0),
    Column("out/s", lambda row: row.egress, 3, spark=True),
    Column("req/s", lambda row: row.requeue_rate, 1),
    Column("t-o/s", lambda row: row.timeout_rate, 1),
    Column("clients", lambda row: row.totals.clients, 1),
)
_SPARKS = [column for column in _COLUMNS if column.spark]
_ORDERS: Mapping[str, Callable[[Row], str | float | None]] = {
    "topic": lambda row: row.topic,
    "channel": lambda row: row.channel,
    **{column.title: column.value for column in _COLUMNS},
}
"""What rows can be sorted by."""


@dataclass(slots=True)
class ViewState:
    """The state of the view. ``interval`` is the time between reports, in seconds."""

    interval: float
    sort: str = "depth"
    _report: Report | None = None
    _history: History = field(default_factory=dict)
    _times: array[float] = field(default_factory=lambda: array("d"))

    def update(self, report: Report) -> None:
        """Take a report. Rows that it lacks are forgotten."""
        self._report = report
        unknown = array("f", [nan]) * len(self._times)
        self._times.append(report.snapshot.at)
        least, most = _SAMPLES
        over = max(0, len(self._times) - max(least, min(most, ceil(SPAN / self.interval) + 1)))
        del self._times[:over]
        history = {}
        for row in report.rows:
            for column in _SPARKS:
                key = (row.topic, row.channel, column.title)
                past = history[key] = self._history.get(key) or unknown[:]
                value = column.value(row)
                past.append(nan if value is None or not row.nodes else value)
                del past[:over]
        self._history = history

    def press(self, key: str) -> bool:
        """Take a key. Returns False to end the view."""
        if key == "s":
            orders = list(_ORDERS)
            self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
        return key not in ("q", "Q")

    @property
    def _is_descending(self) -> bool:
        """Names ascend, so that they are found; of numbers the highest come first."""
        return self.sort not in ("topic", "channel")

    def draw(self, width: int, height: int) -> Group:
        """The contents of a window of this width and height; the terminal cuts off the excess."""
        if self._report is None:
            return Group()
        report, rows = self._report, self._rows(self._report)
        below = [*_silent(report), _line(HELP, "dim")]
        room = max(1, height - 2 - len(below))
        return Group(
            self._title(report, room),
            self._table(report, rows, rows[:room], width),
            *[Text()] * (room - len(rows)),
            *below,
        )

    def _rows(self, report: Report) -> list[Row]:
        value = _ORDERS[self.sort]
        known = [row for row in report.rows if value(row) is not None]
        known.sort(key=value, reverse=self._is_descending)  # type: ignore[arg-type] # one type each
        return [*known, *(row for row in report.rows if value(row) is None)]

    def _title(self, report: Report, room: int) -> Text:
        snapshot, count = report.snapshot, len(report.rows)
        silent = len(snapshot.failures)
        parts = [
            time.strftime("%H:%M:%S", time.localtime(report.at)),
            f"{counted(len(snapshot.nodes), 'nsqd')}{f' ({silent} silent)' if silent else ''}",
            f"{room} of {count} rows" if count > room else counted(count, "row"),
            f"every {format_duration(self.interval)}",
        ]
        return _line("  ".join(parts), "bold")

    def _table(
        self, report: Report, rows: Sequence[Row], shown: Sequence[Row], width: int
    ) -> Table:
        """The rows shown below a header."""
        table, columns = _grid(report, rows, width)
        table.add_row(self._head("topic"), self._head("channel"), *map(self._header, columns))
        for row in shown:
            cells = [
                _Sparkline(self._history[row.topic, row.channel, column.title])
                if column.spark
                else Text(short(column.value(row)))
                for column in columns
            ]
            topic, channel = Text(one_line(row.topic)), Text(one_line(row.channel) or "-")
            note = Text(" ".join(noted(row, report)))
            table.add_row(topic, channel, *cells, note, style=style_of(row))
        return table

    def _header(self, column: Column) -> Text:
        if not column.spark:
            return self._head(column.title)
        return _line(f"{column.title}, {_rough(self._times[-1] - self._times[0])}", "bold")

    def _head(self, title: str) -> Text:
        if title != self.sort:
            return _line(title, "bold")
        return _line(f"{title}{'▼' if self._is_descending else '▲'}", "bold reverse")


def _grid(report: Report, rows: Sequence[Row], width: int) -> tuple[Table, list[Column]]:
    """An empty table, and the columns between names and notes that fit into a window.

    Widths are computed from all rows, shown or not, so that columns do not move when rows do.
    """
    notes = min(_NOTES, max((len(" ".join(noted(row, report))) for row in rows), default=0))
    topics = max([_NAME, *(len(row.topic) for row in rows)])
    channels = max([_NAME, *(len(row.channel) for row in rows)])
    for level in (3, 2, 1, 0):
        columns = [column for column in _COLUMNS if column.level <= level]
        least = notes + sum(column.width + 1 for column in columns) + 2
        left = width - least
        if left >= min(topics + channels, _NAMES):
            break
    topics = max(_NAME, min(topics, max(left // 2, left - channels)))
    channels = max(_NAME, min(channels, left - topics))
    table = Table.grid(padding=(0, 1), expand=any(column.spark for column in columns))
    if left < 2 * _NAME:  # rich would narrow all columns: the terminal cuts the last ones
        table.width = least + 2 * _NAME
    for names in (topics, channels):
        table.add_column(width=names, no_wrap=True)
    for column in columns:
        if column.spark:
            table.add_column(width=_SPARK, ratio=1, no_wrap=True)
        else:
            table.add_column(width=column.width, justify="right", no_wrap=True)
    table.add_column(width=notes or 1, no_wrap=True)
    return table, columns


def _line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _rough(span: float) -> str:
    """A rounded duration in few characters: ``42s``, ``5m`` or ``2h``."""
    for unit, seconds in (("s", 1), ("m", 60)):
        if round(span / seconds) < 100:
            return f"{round(span / seconds)}{unit}"
    return f"{round(span / 3600)}h"


def _silent(report: Report) -> list[Text]:
    """A line about servers that do not answer, if there are any."""
    lookupds = [str(error) for error in report.snapshot.lookupds.values() if error]
    errors = [*report.silent, *lookupds]
    if not errors:
        return []
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return [_line(f"no answer: {one_line(errors[0])}{more}", "red")]


class _Sparkline(NamedTuple):
    """A cell that fills its column."""

    values: Sequence[float]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(sparkline(self.values, options.max_width))

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_SPARK, options.max_width)


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest value on the right, scaled to the highest; nan is a gap.

    If there are more values than characters, each character shows the highest of several.
    """
    if len(values) > width:
        values = [_highest(values, n, width) for n in range(width)]
    top = max((each for each in values if not isnan(each)), default=0.0)
    return "".join(_block(each, top) for each in values).rjust(width)


def _highest(values: Sequence[float], number: int, groups: int) -> float:
    first, after = (len(values) * n // groups for n in (number, number + 1))
    return max((each for each in values[first:after] if not isnan(each)), default=nan)


def _block(value: float, top: float) -> str:
    if isnan(value):
        return " "
    # Only zero has the lowest bar.
    return _BLOCKS[ceil(value * (len(_BLOCKS) - 1) / top) if top else 0]


def short(value: float | None) -> str:
    """At most 6 characters: ``99999``, ``123k``, ``1.23M``; ``-`` for an unknown value."""
    if value is None:
        return "-"
    if 0 < value < 10 and value != int(value):
        return f"{value:.1f}"
    if value < 99999.5:
        return str(round(value))
    scaled = value
    for unit in "kMGTPE":
        scaled /= 1000
        if scaled < 999.5:
            return f"{scaled:.3g}{unit}"
    return f"{value:.0e}"
