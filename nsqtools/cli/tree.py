"""The tree of commands, for settings and documents; walking it runs no command.

Finding settings at a TAB press walks it, so this module loads only click and option classes.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, NamedTuple

import click

from nsqtools.config.option import flag_name
from nsqtools.config.pairs import PAIRS, pairs_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nsqtools.config.option import Option, Options

    Groups = Mapping[str, type[Options]]
    """The option classes of a command, by keyword."""


def contexts(ctx: click.Context, only: Iterable[str] = ()) -> Iterator[click.Context]:
    """A context and the contexts of all commands below it, each group before its commands.

    ``only`` limits the walk to the named commands of the context's group.
    """
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in only or ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            if command:
                below = click.Context(command, ctx, name, **command.context_settings)
                yield from contexts(below)


def words(ctx: click.Context) -> tuple[str, ...]:
    """The command as typed after the program's name, such as ``("lookup", "topics")``."""
    return (*words(ctx.parent), ctx.info_name or "") if ctx.parent else ()


def groups_of(command: click.Command) -> Groups:
    """The option classes of a command made with ``nsqtools.cli.options``; else empty."""
    return getattr(command.callback, "option_groups", {})


def command_names(ctx: click.Context) -> list[str]:
    """The sub-commands of a context's command; empty if it is not a group."""
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []


class CommandOption(NamedTuple):
    """An option of one command."""

    name: str
    declared: Option
    section: str
    """Its heading in help."""
    shared: bool
    """Whether it has a variable and a key for all commands."""

    @property
    def key(self) -> str:
        """Its name in the configuration file: the name of its flag."""
        return flag_name(self.name)

    @property
    def default_text(self) -> str:
        """The default as shown in help and documents; empty if nothing is worth showing."""
        if self.declared.required and not self.declared.instead:
            return ""
        if self.declared.default_note:
            return self.declared.default_note
        default = self.declared.default
        if self.declared.kind == "count" or default is False or default in ("", ()):
            return ""
        values = default if self.declared.multiple else (default,)
        return ", ".join(map(self.declared.show, values))

    @property
    def range_text(self) -> str:
        """The range, unless it is "at least 0"."""
        is_shown = self.declared.maximum is not None or self.declared.minimum
        return self.declared.range if is_shown else ""


def command_options(groups: Groups) -> Iterator[CommandOption]:
    """All options of a command's classes, with or without a flag.

    Duplicates are yielded; use the first for a flag or a key.
    """
    for cls in groups.values():
        for name, declared in cls.declared().items():
            declaring: type[Options] = next(each for each in cls.__mro__ if name in vars(each))
            section = declaring.title or cls.title
            yield CommandOption(name, declared, section, cls.shares(declared))
        if cls.opt_flag:
            yield CommandOption(pairs_key(cls), PAIRS, cls.title, cls.shared)


def file_options(groups: Groups) -> dict[str, CommandOption]:
    """The options allowed in the table of a command, by parameter."""
    found: dict[str, CommandOption] = {}
    for each in command_options(groups):
        if each.declared.in_file:
            found.setdefault(each.name, each)
    return found


def common_options(nodes: Iterable[CommandNode]) -> dict[str, CommandOption]:
    """Options allowed in [defaults] with the same meaning and default for all commands."""
    found: dict[str, list[CommandOption]] = {}
    for node in nodes:
        for name, each in file_options(node.groups).items():
            if each.shared and each.declared.is_listed:
                found.setdefault(name, []).append(each)
    return {
        name: first
        for name, (first, *others) in found.items()
        if all(other.declared == first.declared for other in others)
    }


class CommandNode:
    """A command in the tree, with the facts shown in documents."""

    __slots__ = ("ctx",)

    def __init__(self, ctx: click.Context) -> None:
        self.ctx = ctx

    @property
    def command(self) -> click.Command:
        """The command itself."""
        return self.ctx.command

    @property
    def command_path(self) -> str:
        """The command as typed: ``nsqtools lookup nodes``."""
        return self.ctx.command_path

    @property
    def page(self) -> str:
        """Name of the page: ``nsqtools-lookup-nodes``."""
        return self.command_path.replace(" ", "-")

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
        """The options listed by --help, in its order."""
        params = self.command.get_params(self.ctx)
        return [p for p in params if isinstance(p, click.Option) and not p.hidden]

    @property
    def arguments(self) -> list[click.Argument]:
        """Positional arguments."""
        return [p for p in self.command.params if isinstance(p, click.Argument)]

    @property
    def groups(self) -> Groups:
        """The option classes of the command."""
        return groups_of(self.command)


def walk(root: click.Group) -> list[CommandNode]:
    """All commands, each group before its commands."""
    top = click.Context(root, info_name=root.name, **root.context_settings)
    return [CommandNode(ctx) for ctx in contexts(top)]
