"""What ``nsqtools help --json`` prints: every command with its options, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nsqtools import __version__
from nsqtools.cli.resolver import variables
from nsqtools.cli.tree import CommandNode, command_options, contexts
from nsqtools.config.program import FileOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.cli.tree import CommandOption


def listing(root: click.Context, command: Sequence[str]) -> dict[str, Any]:
    """A command with those below it, or all; durations and sizes are texts.

    Raises click.UsageError if there is no such command.
    """
    nodes = [CommandNode(ctx) for ctx in contexts(root)]
    path = " ".join([root.info_name or "", *command, ""])
    wanted = [each for each in nodes if f"{each.words} ".startswith(path)]
    if not wanted:
        known = [each.words.partition(" ")[2] for each in nodes]
        raise click.exceptions.NoSuchCommand(" ".join(command), possibilities=known, ctx=root)
    return {"version": __version__, "commands": [_command(node) for node in wanted]}


def _command(node: CommandNode) -> dict[str, Any]:
    return {
        "command": node.words.partition(" ")[2],
        "help": node.help,
        "section": node.section if node.ctx.parent else "",
        "arguments": [
            {"name": each.make_metavar(node.ctx), "help": str(getattr(each, "help", None) or "")}
            for each in node.arguments
        ],
        "options": list(_options(node)),
        "examples": [{"about": about, "line": line} for about, line in node.examples],
    }


def _options(node: CommandNode) -> Iterator[dict[str, Any]]:
    """The declared options, also those without a flag; one that two classes have comes once."""
    flags = {each.name: each for each in node.options}
    essential = getattr(node.command, "essential", ())
    if not node.groups:
        return
    found: dict[str, CommandOption] = {}
    for each in command_options({**node.groups, "": FileOptions}):
        found.setdefault(each.name, each)
    for name, each in found.items():
        declared = each.declared
        flag = flags.get(name)
        yield {
            "name": each.key,
            "flags": [*flag.opts, *flag.secondary_opts] if flag else [],
            "kind": declared.kind,
            "placeholder": declared.placeholder,
            "multiple": declared.multiple,
            "required": declared.required,
            "default": _default(each),
            "default_note": declared.default_note,
            "minimum": _shown(each, declared.minimum),
            "maximum": _shown(each, declared.maximum),
            "choices": [choice for choice in declared.choices if choice],
            "help": declared.help,
            "variables": list(variables(node.ctx, name, shared=each.shared)),
            "key": each.key if declared.in_file else None,
            "table": node.table if declared.in_file else None,
            "section": each.section,
            "shared": each.shared,
            "secret": declared.secret,
            "essential": name in essential,
        }


def _default(option: CommandOption) -> Any:
    if option.declared.multiple:
        return [_shown(option, each) for each in option.declared.default]
    return _shown(option, option.declared.default)


def _shown(option: CommandOption, value: Any) -> Any:
    """A number, or what a user writes for it where it has a unit."""
    if value is None or option.declared.kind not in ("duration", "size"):
        return value
    return option.declared.show(value)
