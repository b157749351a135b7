"""The commands as documents see them: the click tree, walked without running anything."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.options import Command, ConfigOption
from nsqtools.cli.settings import groups_of
from nsqtools.config.option import flag_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsqtools.config.option import Options

# What stands behind the help of an option: "[default: 6; range: 1 to 9]".
_NOTE = re.compile(r"\s*\[((?:default|range): (?:(?!\[(?:default|range): ).)*)\]$")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A command in its tree. ``section`` is its heading in the help of the group above."""

    ctx: click.Context
    section: str

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
        return self.command.examples if isinstance(self.command, Command) else ()

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

    @property
    def flagless(self) -> list[ConfigOption]:
        """Options that only variables, --consumer-opt and its like, and the file can set."""
        return [
            ConfigOption(
                [name, f"--{flag_name(name)}"],
                declared=declared,
                section=cls.title,
                shared=cls.shares(declared),
                preset=presets.get(name, cls.__dataclass_fields__[name].default),
            )
            for cls, presets in self.groups
            for name, declared in cls.declared().items()
            if not declared.flag
        ]


def walk(root: click.Group) -> list[Node]:
    """All commands that are not hidden, each group before its own."""
    return list(_walk(Node(click.Context(root, info_name=root.name, **root.context_settings), "")))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node.command, click.Group):
        table = getattr(node.command, "table", {})
        for name in node.command.list_commands(node.ctx):
            command = node.command.get_command(node.ctx, name)
            if command and not command.hidden:
                ctx = click.Context(
                    command, info_name=name, parent=node.ctx, **command.context_settings
                )
                yield from _walk(Node(ctx, table[name].section if name in table else "Commands"))


def about(option: click.Option, ctx: click.Context) -> tuple[str, str, str]:
    """Help, default and range, the latter two empty where there is nothing to say."""
    record = option.get_help_record(ctx)
    text = record[1] if record else ""
    facts: dict[str, str] = {}
    while note := _NOTE.search(text):
        text = text[: note.start()]
        facts |= dict(fact.split(": ", 1) for fact in note[1].split("; "))
    return text, facts.get("default", ""), facts.get("range", "")
