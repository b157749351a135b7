"""What ``nsqtools config init`` prints: a configuration file with every option, commented out."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING

from nsqtools.cli.docs.facts import about, common_keys, keys
from nsqtools.cli.tree import Node, contexts
from nsqtools.config.option import flag_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import click

    from nsqtools.cli.options import ConfigOption

_HEAD = """\
# Configuration of nsqtools, described in nsqtools.toml(5). Put it into
# $XDG_CONFIG_HOME/nsqtools/config.toml or /etc/nsqtools/config.toml, or name it with --config.
# A flag is stronger than its environment variable, that than the profile, that than the rest.

# default_profile = "prod"

# A profile holds what [defaults] may hold, and tables of commands.
# [profile.prod]
# lookupd-http-address = ["lookup1.example:4161", "lookup2.example:4161"]
# auth-secret-file = "/etc/nsqtools/secret"
# [profile.prod.tail]
# max-in-flight = 500"""


def starting_file(root: click.Context) -> str:
    """Its text, which without the comment signs before keys still sets every option's default."""
    nodes = [node for node in map(Node, contexts(root)) if keys(node)]
    common = common_keys(nodes)
    parts = [_HEAD, _table("defaults", common.values())]
    for node in nodes:
        own = [option for name, option in keys(node).items() if name not in common]
        parts.append(_table(node.table, own))
    return "\n\n".join(parts) + "\n"


def _table(name: str, options: Iterable[ConfigOption]) -> str:
    return "\n".join([f"[{name}]", *(line for each in options for line in _entry(each))])


def _entry(option: ConfigOption) -> Iterator[str]:
    facts, choices = about(option), option.declared.choices
    notes = [facts.help]
    if choices:
        notes.append(f"One of {', '.join(choice or 'nothing' for choice in choices)}.")
    if facts.range:
        notes.append(f"Range: {facts.range}.")
    if facts.is_phrase:
        notes.append(f"Default: {facts.default}.")
    yield f"# {' '.join(notes)}"
    yield f"# {flag_name(option.name)} = {_default(option)}"


def _default(option: ConfigOption) -> str:
    """A literal of TOML."""
    declared, preset = option.declared, option.preset
    if declared.multiple:
        return dumps(list(preset or ()))
    return dumps(declared.show(preset) if declared.kind in ("duration", "size") else preset)
