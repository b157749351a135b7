"""Standard output of commands: tables, JSON and messages, for people or for the next program."""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nsqtools.cli.exits import one_line
from nsqtools.cli.frame import columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsqtools.config.consuming import TailOptions
    from nsqtools.config.records import RecordOptions
    from nsqtools.records.bodies.selection import Selection
    from nsqtools.records.layout import Layout
    from nsqtools.records.writers import Writer

STDOUT = 1

_GAP = "  "
_PART = 1000  # rows printed together
_SHORTEST = 12  # least width of a shortened cell


class TableLayout(NamedTuple):
    """The columns of numbers, and the count of leading columns to shorten if need be."""

    numbers: range = range(0)
    cut: int = 0


_PLAIN = TableLayout()


def print_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print cells with any text, laid out by ``rows_text``; to a pipe or file, a part at a time.

    Unprintable characters in a cell are escaped: they cannot control a terminal or break a row.
    """
    cells = ([one_line(cell) for cell in row] for row in rows)
    if sys.stdout.isatty():
        click.echo(rows_text(header, list(cells)), nl=False)
    while some := list(islice(cells, _PART)):
        click.echo(rows_text(header, some), nl=False)


def rows_text(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    layout: TableLayout = _PLAIN,
    styles: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Rows of printable cells: a table on a terminal, else tab-separated lines without header.

    A table has a bold header, and each row has its style: arguments of ``click.style``. If lines
    are still too long after names were cut, the terminal wraps them.
    """
    if not sys.stdout.isatty():
        return "".join("\t".join(row) + "\n" for row in rows)
    lines = aligned([header, *rows], layout, columns())
    looks = [{"bold": True}, *(styles or [{}] * len(rows))]
    styled = (click.style(t, **look) if look else t for t, look in zip(lines, looks, strict=True))
    return "".join(f"{line}\n" for line in styled)


def aligned(rows: Sequence[Sequence[str]], layout: TableLayout, width: int) -> list[str]:
    """Lines with aligned columns, shortened to this width as far as the layout allows."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    for n in sorted(range(layout.cut), key=lambda n: -widths[n]):
        less = max(0, min(over, widths[n] - _SHORTEST))
        widths[n] -= less
        over -= less

    def cell(text: str, n: int) -> str:
        if (wide := _width(text)) > widths[n]:
            text = text[: widths[n] - 1] + "…"
            wide = _width(text)
        blanks = " " * (widths[n] - wide)
        return blanks + text if n in layout.numbers else text + blanks

    return [_GAP.join(cell(text, n) for n, text in enumerate(row)).rstrip() for row in rows]


def _width(text: str) -> int:
    """The width of a text on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def print_json(value: object) -> None:
    """One line, or indented on a terminal."""
    from json import dumps

    click.echo(dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_json_list(name: str, items: Iterable[object]) -> None:
    """Print ``{name: [item, ...]}`` as ``print_json`` does; to a pipe or file, a part at a time."""
    from json import dumps

    if sys.stdout.isatty():
        print_json({name: list(items)})
        return
    texts, mark = map(dumps, items), f"{{{dumps(name)}: ["
    while some := list(islice(texts, _PART)):
        click.echo(mark + ", ".join(some), nl=False)
        mark = ", "
    click.echo("]}" if mark == ", " else f"{mark}]}}")


def layout_of(form: RecordOptions) -> Layout:
    """The format of a stream of messages."""
    from nsqtools.records.layout import Layout

    return Layout.choose(
        json=form.json, length_prefix=form.length_prefix, delimiter=form.delimiter, null=form.null
    )


def selection_of(form: TailOptions) -> Selection | None:
    """What to print of the messages, None for all; raises ConfigError."""
    if not (form.where or form.decode):
        return None
    from nsqtools.records.bodies.selection import Selection

    return Selection(form.decode, form.where)


def stream_writer(form: TailOptions) -> Writer:
    """The writer of messages to standard output; raises ConfigError for a faulty template."""
    from nsqtools.records.forms import make_writer
    from nsqtools.records.template import Template

    escape = os.isatty(STDOUT)
    layout = layout_of(form)
    if form.format:
        return Template(form.format, escape=escape)
    return make_writer(
        layout, print_topic=form.print_topic, timestamps=form.timestamps, escape=escape
    )
