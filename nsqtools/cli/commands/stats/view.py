"""The live view as data: takes keys and reports, returns contents for rich to draw."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nsqtools.cli.commands.stats.formats import noted, style_of
from nsqtools.cli.exits import one_line
from nsqtools.config.units import counted, format_duration
from nsqtools.policy.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsqtools.cli.commands.stats.report import Report
    from nsqtools.policy.rates import Row

HELP = "q quit  s sort"

_NUMBER = 7  # width of a column of numbers
_NAME = 8  # minimum width of a topic or a channel
_NAMES = 30  # minimum room for both, if they need it: more important than optional columns
_NOTES = 20  # maximum width of notes
_TREND = 12  # width of the trend
_BLOCKS = "▁▂▃▄▅▆▇█"


class Column(NamedTuple):
    """A column.

    Cells show ``value``, and rows can be sorted by it. Columns without ``vital`` are shown only if
    all of them fit.
    """

    title: str
    value: Callable[[Row], float | None]
    vital: bool = False

    @property
    def width(self) -> int:
        """The minimum width of a cell, with room for a mark beside the title."""
        return max(_NUMBER, len(self.title) + 1)


_COLUMNS = (
    Column("depth", lambda row: row.totals.depth, vital=True),
    Column("inflt", lambda row: row.totals.in_flight),
    Column("def", lambda row: row.totals.deferred),
    Column("in/s", lambda row: row.ingress, vital=True),
    Column("out/s", lambda row: row.egress, vital=True),
    Column("req/s", lambda row: row.requeue_rate),
    Column("t-o/s", lambda row: row.timeout_rate),
    Column("clients", lambda row: row.totals.clients),
)
_ORDERS: Mapping[str, Callable[[Row], str | float | None]] = {
    "topic": lambda row: row.topic,
    "channel": lambda row: row.channel,
    **{column.title: column.value for column in _COLUMNS},
}
"""The keys to sort rows by."""


@dataclass(slots=True)
class ViewState:
    """The state of the view. ``interval`` is the time between reports, in seconds."""

    interval: float
    sort: str = "depth"
    _report: Report | None = None
    _history: History = field(default_factory=History)

    def update(self, report: Report) -> None:
        """Take a report."""
        self._report = report
        self._history.record(report.snapshot.at, report.snapshot.samples(), self.interval)

    def press(self, key: str) -> bool:
        """Take a key. Returns False to end the view."""
        if key == "s":
            orders = list(_ORDERS)
            self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
        return key not in ("q", "Q")

    @property
    def _is_descending(self) -> bool:
        """Names ascend, so they are easy to find; numbers descend."""
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
        rows = [row for row in report.rows if value(row) is not None]
        rows.sort(key=value, reverse=self._is_descending)  # type: ignore[arg-type] # one type each
        return [*rows, *(row for row in report.rows if value(row) is None)]

    def _title(self, report: Report, room: int) -> Text:
        snapshot, count = report.snapshot, len(report.rows)
        silent = len(snapshot.silent)
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
        table, columns, has_trend = _grid(report, rows, width)
        titles = ["topic", "channel", *(column.title for column in columns)]
        heads = [self._head(title) for title in titles]
        table.add_row(*heads, *[_line("trend", "bold")] * has_trend)
        for row in shown:
            cells = [Text(short(column.value(row))) for column in columns]
            topic, channel = Text(one_line(row.topic)), Text(one_line(row.channel) or "-")
            if has_trend:
                depths = self._history.total([(row.topic, row.channel)], "depth").values
                cells.append(Text(trend(depths)))
            note = Text(" ".join(noted(row, report)))
            table.add_row(topic, channel, *cells, note, style=style_of(row))
        return table

    def _head(self, title: str) -> Text:
        if title != self.sort:
            return _line(title, "bold")
        return _line(f"{title}{'▼' if self._is_descending else '▲'}", "bold reverse")


def _grid(report: Report, rows: Sequence[Row], width: int) -> tuple[Table, list[Column], bool]:
    """Return an empty table, its columns between names and notes, and whether it has a trend.

    The table has as many columns as fit into a window; the column of the trend follows them. Widths
    are computed from all rows, shown or not, so columns stay in place when rows move.
    """
    notes = min(_NOTES, max((len(" ".join(noted(row, report))) for row in rows), default=0))
    topics = max([_NAME, *(len(row.topic) for row in rows)])
    channels = max([_NAME, *(len(row.channel) for row in rows)])
    whole, vital = list(_COLUMNS), [column for column in _COLUMNS if column.vital]
    for columns, has_trend in ((whole, True), (whole, False), (vital, False)):
        least = notes + sum(column.width + 1 for column in columns) + 2 + has_trend * (_TREND + 1)
        left = width - least
        if left >= min(topics + channels, _NAMES):
            break
    topics = max(_NAME, min(topics, max(left // 2, left - channels)))
    channels = max(_NAME, min(channels, left - topics))
    table = Table.grid(padding=(0, 1))
    if left < 2 * _NAME:  # rich would narrow all columns: the terminal cuts the last ones
        table.width = least + 2 * _NAME
    for names in (topics, channels):
        table.add_column(width=names, no_wrap=True)
    for column in columns:
        table.add_column(width=column.width, justify="right", no_wrap=True)
    if has_trend:
        table.add_column(width=_TREND, no_wrap=True)
    table.add_column(width=notes or 1, no_wrap=True)
    return table, columns, has_trend


def trend(values: Sequence[float | None]) -> str:
    """Values in order as a line of blocks, blank where all are unknown; the highest is full."""
    cells = min(_TREND, len(values))
    parts = [
        values[n * len(values) // cells : (n + 1) * len(values) // cells] for n in range(cells)
    ]
    tops = [max((each for each in part if each is not None), default=None) for part in parts]
    most = max(filter(None, tops), default=1.0)
    return "".join(
        " " if top is None else _BLOCKS[round((len(_BLOCKS) - 1) * top / most)] for top in tops
    )


def _line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _silent(report: Report) -> list[Text]:
    """A line about silent servers, if there are any."""
    lookupds = [str(error) for error in report.snapshot.lookupds.values() if error]
    errors = [*report.silent, *lookupds]
    if not errors:
        return []
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return [_line(f"no answer: {one_line(errors[0])}{more}", "red")]


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
