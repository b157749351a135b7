"""The output of ``nsqtools config init``: a configuration file with every option, commented out."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING

from nsqtools.cli.tree import CommandNode, common_options, contexts, file_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import click

    from nsqtools.cli.tree import CommandOption

_HEAD = """\
# Configuration of nsqtools, described in nsqtools.toml(5). Put it into
# $XDG_CONFIG_HOME/nsqtools/config.toml or /etc/nsqtools/config.toml, or name it with --config.
# Precedence, highest first: flag, environment variable, profile, other tables, default.

# default_profile = "prod"

# A profile may have shared options and tables of commands.
# [profile.prod]
# lookupd-http-address = ["lookup1.example:4161", "lookup2.example:4161"]
# auth-secret-file = "/etc/nsqtools/secret"
# [profile.prod.tail]
# max-in-flight = 500"""


def starting_file(root: click.Context) -> str:
    """The text. With the comment signs before keys removed, it sets every option to its default."""
    nodes = [CommandNode(ctx) for ctx in contexts(root)]
    common = common_options(nodes)
    parts = [_HEAD, _table("defaults", common.values())]
    for node in nodes:
        known = file_options(node.groups)
        if known:
            own = [option for name, option in known.items() if name not in common]
            parts.append(_table(node.table, own))
    return "\n\n".join(parts) + "\n"


def _table(name: str, options: Iterable[CommandOption]) -> str:
    return "\n".join([f"[{name}]", *(line for each in options for line in _entry(each))])


def _entry(option: CommandOption) -> Iterator[str]:
    declared = option.declared
    notes = [declared.help]
    if declared.choices:
        notes.append(f"One of {', '.join(choice or 'nothing' for choice in declared.choices)}.")
    if option.range_text:
        notes.append(f"Range: {option.range_text}.")
    if declared.default_note:
        notes.append(f"Default: {declared.default_note}.")
    yield f"# {' '.join(notes)}"
    yield f"# {option.key} = {_default(option)}"


def _default(option: CommandOption) -> str:
    """A literal of TOML."""
    declared, value = option.declared, option.declared.default
    if declared.multiple:
        return dumps(list(value))
    return dumps(declared.show(value) if declared.kind in ("duration", "size") else value)
