"""The live view as data: takes keys and reports, returns lines to draw."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.cli.commands.stats.formats import noted, style_of
from nsqtools.cli.exits import one_line
from nsqtools.config.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsqtools.cli.commands.stats.report import Report
    from nsqtools.policy.rates import Key, Row

    Line = list[tuple[str, str]]
    """Parts of a line: text, and a style of rich or nothing."""

    History = Mapping[Key, tuple[array[float], ...]]

SPAN = 300
"""How far back sparklines go, in seconds, unless reports are very frequent or very rare."""

_SAMPLES = (30, 600)  # least and most of them

HELP = "q quit  s sort  r reverse  / filter  space hold  arrows scroll"

_NUMBER = 7  # width of a column of numbers
_SPARK = (10, 40)  # least and greatest width
_NAME = 10  # least width of a topic or channel that does not fit


class Column(NamedTuple):
    """A column; ``value`` is what rows are sorted by, and what a cell shows."""

    title: str
    value: Callable[[Row], str | float | None]
    spark: bool = False


_COLUMNS = (
    Column("topic", lambda row: row.topic),
    Column("channel", lambda row: row.channel),
    Column("depth", lambda row: row.totals.depth),
    Column("depth", lambda row: None, spark=True),
    Column("inflt", lambda row: row.totals.in_flight),
    Column("def", lambda row: row.totals.deferred),
    Column("in/s", lambda row: row.ingress),
    Column("in/s", lambda row: None, spark=True),
    Column("out/s", lambda row: row.egress),
    Column("out/s", lambda row: None, spark=True),
    Column("req/s", lambda row: row.requeue_rate),
    Column("t-o/s", lambda row: row.timeout_rate),
    Column("clients", lambda row: row.totals.clients),
)
_NAMES = 2
_DROPPED = (9, 5, 11, 7, 10, 3, 12, 4)  # where there is no room, in this order
SORTABLE = tuple(n for n, column in enumerate(_COLUMNS) if not column.spark)


class _Seen(NamedTuple):
    """What is drawn: a report, the history of its rows, and the span of that in seconds."""

    report: Report
    history: History
    span: float


@dataclass(slots=True)
class ViewState:
    """The state of the view. ``interval`` is the time between reports, in seconds."""

    interval: float
    ascii: bool = False
    sort: int = 2
    descending: bool = True
    filter: str = ""
    editing: bool = False
    held: _Seen | None = None
    offset: int = 0
    _report: Report | None = None
    _page: int = 1
    _history: History = field(default_factory=dict)
    _times: array[float] = field(default_factory=lambda: array("d"))

    def update(self, report: Report) -> None:
        """Take a report; rows that it lacks are forgotten."""
        self._report = report
        gone = array("f", [nan]) * len(self._times)  # one that is new was not there before
        self._times.append(report.snapshot.at)
        least, most = _SAMPLES
        over = len(self._times) - max(least, min(most, ceil(SPAN / self.interval) + 1))
        history: dict[Key, tuple[array[float], ...]] = {}
        for row in report.rows:
            key = (row.topic, row.channel)
            past = self._history.get(key) or (gone[:], gone[:], gone[:])
            values = (float(row.totals.depth), row.ingress, row.egress)
            for each, value in zip(past, values, strict=True):
                each.append(nan if value is None or not row.nodes else value)
                del each[: max(0, over)]
            history[key] = past
        del self._times[: max(0, over)]
        self._history = history

    def _seen(self) -> _Seen | None:
        span = self._times[-1] - self._times[0] if self._times else 0.0
        return _Seen(self._report, self._history, span) if self._report else None

    def _hold(self) -> None:
        """Hold the view, or go on. The held history is a copy, since recording continues."""
        seen = self._seen()
        if self.held or not seen:
            self.held = None
            return
        history = {key: tuple(each[:] for each in past) for key, past in seen.history.items()}
        self.held = seen._replace(history=history)

    def press(self, key: str) -> bool:
        """Take a key, a character or a name such as ``up``; False ends the view."""
        if key in _SCROLLS:
            self._scroll(key)
        elif self.editing:
            self._edit(key)
        elif key in ("q", "Q"):
            return False
        elif key in ("s", "S"):
            self._sort_by(1 if key == "s" else -1)
        elif key == "r":
            self.descending = not self.descending
        elif key == "/":
            self.editing = True
        elif key == "escape":
            self.filter = ""
        elif key == " ":
            self._hold()
        elif key in _LETTERS:
            self._scroll(_LETTERS[key])
        return True

    def _sort_by(self, step: int) -> None:
        """Sort by another column: numbers descending, names ascending."""
        place = (SORTABLE.index(self.sort) + step) % len(SORTABLE)
        self.sort = SORTABLE[place]
        self.descending = self.sort >= _NAMES
        self.offset = 0

    def _edit(self, key: str) -> None:
        if key == "enter":
            self.editing = False
        elif key == "escape":
            self.editing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        self.offset = 0

    def _scroll(self, key: str) -> None:
        match key:
            case "up":
                self.offset -= 1
            case "down":
                self.offset += 1
            case "pageup":
                self.offset -= self._page
            case "pagedown":
                self.offset += self._page
            case "home":
                self.offset = 0
            case "end":
                self.offset = 1 << 30
        self.offset = max(0, self.offset)  # the other end is known when lines are made

    def lines(self, width: int, height: int) -> list[Line]:
        """At most ``height`` lines of ``width`` characters."""
        seen = self.held or self._seen()
        if seen is None or width < 1 or height < 1:
            return []
        report = seen.report
        rows = self._rows(report)
        below = [*_silent(report), self._footer(width)]
        self._page = max(1, height - 2 - len(below))
        self.offset = max(0, min(self.offset, len(rows) - self._page))
        shown = rows[self.offset : self.offset + self._page]
        widths = _widths(rows, width - _notes_width(rows, report))
        body = [self._line(row, widths, seen, width) for row in shown]
        blank: list[Line] = [[] for _ in range(self._page - len(body))]
        head = [self._title(report, len(rows)), self._header(widths, seen.span)]
        # Where there is next to no room, the rows matter most.
        lines = [*head, *body, *blank, *below]
        lines = lines[:height] if height > 3 else lines[: 2 + self._page][-height:]
        return [_cut(line, width) for line in lines]

    def _rows(self, report: Report) -> list[Row]:
        words = self.filter.lower().split()
        rows = [
            row
            for row in report.rows
            if all(word in f"{row.topic}/{row.channel}".lower() for word in words)
        ]
        value = _COLUMNS[self.sort].value
        known = [row for row in rows if value(row) is not None]
        known.sort(key=value, reverse=self.descending)  # type: ignore[arg-type] # one type each
        return [*known, *(row for row in rows if value(row) is None)]

    def _title(self, report: Report, count: int) -> Line:
        snapshot = report.snapshot
        silent = len(snapshot.failures)
        parts = [
            time.strftime("%H:%M:%S", time.localtime(report.at)),
            f"{len(snapshot.nodes)} nsqds{f' ({silent} silent)' if silent else ''}",
            f"{count} of {len(report.rows)} rows" if self.filter else f"{count} rows",
            f"every {format_duration(self.interval)}",
        ]
        if self.filter and not self.editing:
            parts.append(f"filter: {one_line(self.filter)}")
        text = "  ".join(parts)
        held = [("held, space goes on", "reverse"), ("  ", "")] if self.held else []
        return [*held, (text, "bold")]

    def _header(self, widths: Mapping[int, int], span: float) -> Line:
        parts: Line = []
        for number, wide in widths.items():
            column = _COLUMNS[number]
            title = column.title if not column.spark else f"{column.title}, {_rough(span)}"
            chosen = number == self.sort
            if chosen:
                arrows = "v^" if self.ascii else "▼▲"
                title = f"{title}{arrows[0] if self.descending else arrows[1]}"
            text = title.ljust(wide) if number < _NAMES or column.spark else title.rjust(wide)
            parts += [(text[:wide], "bold reverse" if chosen else "bold"), (" ", "")]
        return parts

    def _line(self, row: Row, widths: Mapping[int, int], seen: _Seen, width: int) -> Line:
        past = seen.history.get((row.topic, row.channel), ())
        cells = []
        for number, wide in widths.items():
            column = _COLUMNS[number]
            if column.spark:
                values = past[_SPARKS.index(number)] if past else ()
                cells.append(sparkline(values, wide, _ASCII if self.ascii else _BLOCKS))
            elif number < _NAMES:
                name = one_line(str(column.value(row))) or "-"
                cells.append(_fit(name, wide, self.ascii).ljust(wide))
            else:
                cells.append(short(column.value(row)).rjust(wide))  # type: ignore[arg-type]
        text = " ".join([*cells, *noted(row, seen.report)])
        return [(_fit(text, width, self.ascii), style_of(row))]

    def _footer(self, width: int) -> Line:
        if not self.editing:
            return [(HELP, "dim")]
        typed = one_line(self.filter)[-max(1, width - 2) :]
        return [(f"/{typed}", "bold"), (" ", "reverse")]


_SCROLLS = ("up", "down", "pageup", "pagedown", "home", "end")
_LETTERS = {"k": "up", "j": "down", "g": "home", "G": "end"}
_SPARKS = (3, 7, 9)


def _rough(span: float) -> str:
    """``42s``, ``5m`` or ``2h``: as long as it is, in few characters."""
    for unit, seconds in (("s", 1), ("m", 60)):
        if round(span / seconds) < 100:
            return f"{round(span / seconds)}{unit}"
    return f"{round(span / 3600)}h"


def _silent(report: Report) -> list[Line]:
    """A line about servers that do not answer, if there are any."""
    lookupds = [str(error) for error in report.snapshot.lookupds.values() if error]
    errors = [*report.silent, *lookupds]
    if not errors:
        return []
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return [[(f"no answer: {one_line(errors[0])}{more}", "red")]]


def _notes_width(rows: Sequence[Row], report: Report) -> int:
    """The width of the longest note, so that columns stay in place while scrolling."""
    longest = max((len(" ".join(noted(row, report))) for row in rows), default=0)
    return min(longest + 1, 20) if longest else 0


def _widths(rows: Sequence[Row], width: int) -> dict[int, int]:
    """The columns that have room, and their widths, with a blank between."""
    names = [
        max([len(_COLUMNS[n].title) + 1, *(len(str(_COLUMNS[n].value(row))) for row in rows)])
        for n in range(_NAMES)
    ]
    chosen = list(range(len(_COLUMNS)))
    least = [min(each, _NAME) for each in names]

    def room() -> int:
        """What is left for longer names and sparklines."""
        others = sum(_least(n) for n in chosen[_NAMES:])
        return width - others - len(chosen) - sum(least)

    for number in _DROPPED:
        if room() >= min(sum(names) - sum(least), 30):
            break
        chosen.remove(number)
    left = max(0, room())
    wide = {}
    for n in range(_NAMES):
        more = min(names[n] - least[n], left if n else max(left // 2, left - names[1] + least[1]))
        wide[n] = least[n] + more
        left -= more
    sparks = [n for n in chosen if _COLUMNS[n].spark]
    for n in chosen[_NAMES:]:
        wide[n] = min(_SPARK[1], _least(n) + left // len(sparks)) if n in sparks else _least(n)
    return wide


def _least(number: int) -> int:
    """The least width of a column, other than a name's: with room to mark its title."""
    column = _COLUMNS[number]
    return _SPARK[0] if column.spark else max(_NUMBER, len(column.title) + 1)


def _fit(text: str, width: int, plain: bool) -> str:
    """The text, cut with a mark if it is too long."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + ("~" if plain else "…")[:width]


def _cut(line: Line, width: int) -> Line:
    """The parts of a line that have room."""
    cut: Line = []
    for text, style in line:
        cut.append((text[:width], style))
        width -= len(cut[-1][0])
    return cut


_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*%#"


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """The newest value on the right, scaled to the highest; nan is a gap.

    More values than characters share them, the highest of each group showing.
    """
    if len(values) > width:
        values = [_highest(values, n, width) for n in range(width)]
    top = max((each for each in values if not isnan(each)), default=0.0)
    return "".join(_block(each, top, blocks) for each in values).rjust(width)


def _highest(values: Sequence[float], number: int, groups: int) -> float:
    first, after = (len(values) * n // groups for n in (number, number + 1))
    return max((each for each in values[first:after] if not isnan(each)), default=nan)


def _block(value: float, top: float, blocks: str) -> str:
    if isnan(value):
        return " "
    # Only nothing is as low as nothing.
    return blocks[ceil(value * (len(blocks) - 1) / top) if top else 0]


def short(value: float | None) -> str:
    """At most 6 characters: ``99999``, ``123k``, ``1.23M``; ``-`` for what is not known."""
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
