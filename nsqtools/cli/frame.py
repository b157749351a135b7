"""Common parts of commands and groups: ``-h``, and shared options before a command.

This module loads only click, because every start of the program loads it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHARED_FLAGS = "nsqtools.shared_flags"
"""Key of ``Context.meta`` for the values of shared flags before the command, by name."""

_ENDING = ("-h", "-help", "--help", "-version", "--version")


def _show_brief(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(brief(ctx), color=ctx.color)
        ctx.exit()


def brief(ctx: click.Context) -> str:
    """The text of ``-h``; for a command without a brief text the text of ``--help``."""
    write = getattr(ctx.command, "format_brief", ctx.command.format_help)
    formatter = ctx.make_formatter()
    write(ctx, formatter)
    return formatter.getvalue().rstrip("\n")


def brief_help(text: str) -> click.Option:
    """The option ``-h`` for a command with ``format_brief``; click adds ``--help``."""
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

    ``shutil.get_terminal_size`` does the same, but shutil loads three compressors.
    """
    try:
        if width := int(os.environ.get("COLUMNS", "0")):
            return width
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # stdout is closed or no terminal
        return 80


class Context(click.Context):
    """A context with help as wide as the terminal, from 50 to 80 columns."""

    def make_formatter(self) -> click.HelpFormatter:
        """Make a formatter without loading shutil."""
        return click.HelpFormatter(width=max(min(columns(), 80), 50))


def description(function: Callable[..., Any] | None) -> str | None:
    """The docstring in the source of a command: PYTHONOPTIMIZE=2 removes it from the program."""
    if not function or sys.flags.optimize < 2:
        return None
    import ast
    import inspect

    try:
        source = inspect.cleandoc(inspect.getsource(inspect.unwrap(function)))
    except OSError:  # there is no source
        return None
    definition = ast.parse(source).body[0]
    return ast.get_docstring(definition) if isinstance(definition, ast.FunctionDef) else None


class Group(click.Group):
    """A group accepting the shared options of all commands before the command, too."""

    context_class = Context

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.help = self.help or description(self.callback)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the shared options off the beginning, and parse the rest."""
        return super().parse_args(ctx, self.take_shared(ctx, args))

    def take_shared(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the values of leading shared options in ``ctx.meta``; returns the other arguments.

        Only a leading option causes the declarations of options to be loaded. Raises
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
    """Write examples to copy: long lines continue after a backslash."""
    if not examples:
        return
    with formatter.section("Examples"):
        for sentence, line in examples:
            formatter.write_text(f"{sentence}:")
            indent = " " * (formatter.current_indent + 2)
            for part in folded(line, formatter.width - len(indent)):
                formatter.write(f"{indent}{part}\n")


def folded(line: str, width: int) -> list[str]:
    """A line of shell, split into lines of this width to paste unchanged.

    Lines break before an option or before the next command of a pipe. A quoted text is only broken
    if it is longer than a line: such texts are SQL, where white space is insignificant.
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
