"""Reports as tables on a terminal.

The columns are set here: rich's own tables take milliseconds for a row, and there may be thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from nsqtools.cli.commands.stats.formats import compression, noted, style_of
from nsqtools.cli.exits import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.cli.commands.stats.report import Consumer, Report
    from nsqtools.policy.rates import Row

    Cells = Sequence[str]

_NAMES = 2  # columns of names, the first, which are cut where there is no room
_SHORTEST = 12  # what is left of a name
_GAP = "  "


class Tables:
    """Prints each report as a table, with a line for each server that does not answer."""

    def __init__(self, *, consumers: bool = False) -> None:
        self._consumers = consumers
        self._console = Console(highlight=False)

    def print(self, report: Report) -> None:
        """Print one; a blank line is between it and the next."""
        titles = _CONSUMER_TITLES if self._consumers else _TITLES
        numbers = _CONSUMER_NUMBERS if self._consumers else _NUMBERS
        if self._consumers:
            rows = [(_consumer(each), "") for each in report.consumers or ()]
        else:
            rows = [(_cells(row, report), style_of(row)) for row in report.rows]
        encoding = (self._console.encoding or "").lower()
        mark = "…" if encoding.startswith("utf") else "~"
        lines = aligned([titles, *(cells for cells, _ in rows)], numbers, self._console.width, mark)
        with self._console:  # one write
            self._line(lines[0], "bold")
            for line, (_, style) in zip(lines[1:], rows, strict=True):
                self._line(line, style)
            for error in report.silent:
                self._line(f"no answer: {one_line(error)}", "red")
            self._line("", "")

    def _line(self, text: str, style: str) -> None:
        self._console.print(Text(text, style), soft_wrap=True)


_TITLES = (
    *("topic", "channel", "in/s", "out/s", "depth", "disk", "inflt", "def"),
    *("req", "t-o", "msgs", "clients", "notes"),
)
_NUMBERS = range(_NAMES, 12)
_CONSUMER_TITLES = (
    *("topic", "channel", "rdy", "inflt", "fin/s", "req/s", "fin", "req"),
    *("tls", "comp", "auth", "nsqd", "host", "agent"),
)
_CONSUMER_NUMBERS = range(_NAMES, 8)


def aligned(rows: Sequence[Cells], numbers: range, width: int, mark: str) -> list[str]:
    """Lines with cells below each other, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    for n in sorted(range(_NAMES), key=lambda n: -widths[n]):
        less = max(0, min(over, widths[n] - _SHORTEST))
        widths[n] -= less
        over -= less
    return [
        _GAP.join(
            cell.rjust(widths[n]) if n in numbers else _cut(cell, widths[n], mark).ljust(widths[n])
            for n, cell in enumerate(cells)
        ).rstrip()
        for cells in rows
    ]


def _cut(text: str, width: int, mark: str) -> str:
    return text if len(text) <= width else text[: width - 1] + mark


def _cells(row: Row, report: Report) -> Cells:
    own = row.totals
    counts = (own.depth, own.backend_depth, own.in_flight, own.deferred)
    since = (own.requeues, own.timeouts, own.messages, own.clients)
    return (
        one_line(row.topic),
        one_line(row.channel) or "-",
        *map(rate, (row.ingress, row.egress)),
        *(f"{each:,}" for each in (*counts, *since)),
        " ".join(noted(row, report.latencies.get((row.topic, row.channel), ()))),
    )


def _consumer(each: Consumer) -> Cells:
    own = each.stats
    return (
        *(one_line(each.topic), one_line(each.channel)),
        *(f"{own.ready_count:,}", f"{own.in_flight:,}"),
        *map(rate, (each.finish_rate, each.requeue_rate)),
        *(f"{own.finish_count:,}", f"{own.requeue_count:,}"),
        *("yes" if own.tls else "", compression(own), "yes" if own.authed else ""),
        *(each.nsqd, one_line(own.hostname), one_line(own.user_agent)),
    )


def rate(value: float | None) -> str:
    """Per second; ``-`` while it is not known."""
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"
