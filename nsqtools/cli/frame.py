"""What commands and groups have in common: ``-h``, and shared options before a command.

This module loads only click: every start of the program loads it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED_FLAGS = "nsqtools.shared_flags"
"""Key of ``Context.meta``: the values of shared flags that stand before the command, by name."""

_ENDING = ("-h", "-help", "--help", "-version", "--version")


def _show_brief(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(brief(ctx), color=ctx.color)
        ctx.exit()


def brief(ctx: click.Context) -> str:
    """The text of ``-h``; that of ``--help`` if the command has no other."""
    write = getattr(ctx.command, "format_brief", ctx.command.format_help)
    formatter = ctx.make_formatter()
    write(ctx, formatter)
    return formatter.getvalue().rstrip("\n")


def brief_help(text: str) -> click.Option:
    """The option ``-h`` of a command that has ``format_brief``; ``--help`` is left to click."""
    return click.Option(
        ["-h", "brief_help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_brief,
        help=text,
    )


def columns() -> int:
    """The width of the terminal, or of $COLUMNS, or 80.

    As ``shutil.get_terminal_size``, which loads three compressors for it.
    """
    try:
        if width := int(os.environ.get("COLUMNS", "0")):
            return width
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # there is none, or it is no terminal
        return 80


class Context(click.Context):
    """A context whose help is as wide as the terminal, up to 80 columns."""

    def make_formatter(self) -> click.HelpFormatter:
        """Make one without asking shutil."""
        return click.HelpFormatter(width=max(min(columns(), 80), 50))


class Group(click.Group):
    """A group that takes the options that all commands share before the command, too."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse after the shared options were taken off the beginning."""
        return super().parse_args(ctx, self.take_shared(ctx, args))

    def take_shared(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the values of leading shared options in ``ctx.meta``; returns the other arguments.

        The declarations of options are loaded only where there is a leading option. Raises
        click.UsageError for an unknown option and for a wrong value.
        """
        if not args or not args[0].startswith("-"):
            return args
        if args[0] in _ENDING:
            return [re.sub("^-(?=..)-?", "--", args[0])]
        from nsqtools.cli.options import shared_flags

        values, rest = shared_flags().take(ctx, args)
        ctx.meta[SHARED_FLAGS] = {**ctx.meta.get(SHARED_FLAGS, {}), **values}
        return rest


def write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    """Examples that can be copied: long lines continue after a backslash."""
    if not examples:
        return
    with formatter.section("Examples"):
        for sentence, line in examples:
            formatter.write_text(f"{sentence}:")
            indent = " " * (formatter.current_indent + 2)
            for part in folded(line, formatter.width - len(indent)):
                formatter.write(f"{indent}{part}\n")


def folded(line: str, width: int) -> list[str]:
    """A line of shell in lines of this width, which can be pasted as they are.

    It is broken before an option or the next command of a pipe, and inside quotes only where what
    is quoted is longer than a line: there are statements, in which white space means nothing.
    """
    from textwrap import wrap  # not at each start

    words = re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""", line)
    parts: list[str] = []
    for word in words:
        if parts and not re.match(r"-|\|$", word):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 1 <= width - 2:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines += wrap(
                part,
                width - 2,
                initial_indent="  ",
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines
