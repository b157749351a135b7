"""The tree of commands, walked without running anything: for settings and for documents.

It loads no more than click: settings walk it at a TAB press.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsqtools.config.option import Options

    Groups = Mapping[str, tuple[type[Options], Mapping[str, Any]]]
    """Of a command: option classes by keyword, each with the command's own defaults."""


def contexts(ctx: click.Context) -> Iterator[click.Context]:
    """A context and those of all commands below it, each group before its own."""
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            if command:
                below = click.Context(command, ctx, name, **command.context_settings)
                yield from contexts(below)


def words(ctx: click.Context) -> tuple[str, ...]:
    """The command as it is typed after the program's name, such as ``("lookup", "topics")``."""
    return (*words(ctx.parent), ctx.info_name or "") if ctx.parent else ()


def groups_of(command: click.Command) -> Groups:
    """The option classes of a command made with ``nsqtools.cli.options``, or none."""
    return getattr(command.callback, "option_groups", {})


class Node:
    """A command in its tree, as documents see it."""

    __slots__ = ("ctx",)

    def __init__(self, ctx: click.Context) -> None:
        self.ctx = ctx

    @property
    def command(self) -> click.Command:
        """The command itself."""
        return self.ctx.command

    @property
    def words(self) -> str:
        """As it is typed: ``nsqtools lookup nodes``."""
        return self.ctx.command_path

    @property
    def page(self) -> str:
        """Name of the page: ``nsqtools-lookup-nodes``."""
        return self.words.replace(" ", "-")

    @property
    def table(self) -> str:
        """Name of its table in the configuration file: ``lookup.nodes``; empty at the top."""
        return ".".join(words(self.ctx))

    @property
    def section(self) -> str:
        """Its heading in the help of the group above."""
        table = getattr(self.ctx.parent.command, "table", {}) if self.ctx.parent else {}
        name = self.ctx.info_name
        return table[name].section if name in table else "Commands"

    @property
    def help(self) -> str:
        """The text of --help: a sentence, then paragraphs."""
        return inspect.cleandoc(self.command.help or "").partition("\f")[0].strip()

    @property
    def summary(self) -> str:
        """The first sentence of the help, without its full stop."""
        first = " ".join(self.help.split("\n\n")[0].split())
        return re.split(r"\.(?:\s|$)", first, maxsplit=1)[0]

    @property
    def examples(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a sentence without its full stop and a command line."""
        return getattr(self.command, "examples", ())

    @property
    def options(self) -> list[click.Option]:
        """What --help lists, in its order."""
        params = self.command.get_params(self.ctx)
        return [p for p in params if isinstance(p, click.Option) and not p.hidden]

    @property
    def arguments(self) -> list[click.Argument]:
        """Positional arguments."""
        return [p for p in self.command.params if isinstance(p, click.Argument)]

    @property
    def groups(self) -> list[tuple[type[Options], Mapping[str, Any]]]:
        """The option classes of the command, with the defaults that it replaces."""
        return list(groups_of(self.command).values())


def walk(root: click.Group) -> list[Node]:
    """All commands that are not hidden, each group before its own."""
    top = click.Context(root, info_name=root.name, **root.context_settings)
    return [Node(ctx) for ctx in contexts(top) if not ctx.command.hidden]
