"""Rows and JSON on stdout, for people or for the next program in the pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from nsqtools.cli.exits import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a header on a terminal; in a pipe rows of columns with tabs between.

    What is not printable in a cell is escaped: it neither drives a terminal nor breaks a row.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        click.echo("".join("\t".join(row) + "\n" for row in rows), nl=False)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in header:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_json(value: object) -> None:
    """One line, or indented on a terminal."""
    from json import dumps

    click.echo(dumps(value, indent=2 if sys.stdout.isatty() else None))
