"""The output of ``nsqtools config init``: a configuration file, all commented out."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING

from nsqtools.cli.tree import CommandNode, common_options, contexts, file_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import click

    from nsqtools.cli.tree import CommandOption

_HEAD = """\
# Configuration of nsqtools, described in nsqtools.toml(5). Put it into
# $XDG_CONFIG_HOME/nsqtools/config.toml or /etc/nsqtools/config.toml, or name it with --config.
# Precedence, highest first: flag, environment variable, profile, other tables, default.

# The profile to use without --profile. The end of this file shows a profile.
# default_profile = "prod"

[defaults]
# The ten settings most users need, with examples. Remove the # before a setting to use it.
"""

_FIRST: Mapping[str, tuple[str, str]] = {
    "lookupd-http-address": (
        "The nsqlookupds of your cluster.",
        '["lookup1.example:4161", "lookup2.example:4161"]',
    ),
    "nsqd-tcp-address": ("Without nsqlookupd: the TCP addresses of nsqds.", '["127.0.0.1:4150"]'),
    "nsqd-http-address": (
        "Without nsqlookupd: the HTTP addresses of nsqds, for stats, topic, channel and node.",
        '["127.0.0.1:4151"]',
    ),
    "max-in-flight": ("Maximum messages in flight per topic, over all connections.", "500"),
    "msg-timeout": ("Time after which nsqd delivers an unfinished message again.", '"5m"'),
    "tls-v1": ("Use TLS for connections to nsqd.", "true"),
    "tls-root-ca-file": (
        "CA certificates to trust instead of the system's.",
        '"/etc/nsqtools/ca.pem"',
    ),
    "auth-secret-file": ("File with the AUTH secret.", '"/etc/nsqtools/secret"'),
    "timeout": ("Timeout of commands that query servers over HTTP.", '"20s"'),
    "log-format": ("Format of log lines: text or json.", '"json"'),
}

_REST = "# All other settings that commands share, each with its default."

_PROFILE = """\
# A profile may have shared settings and tables of commands.
# [profile.prod]
# lookupd-http-address = ["lookup1.example:4161", "lookup2.example:4161"]
# auth-secret-file = "/etc/nsqtools/secret"
# [profile.prod.tail]
# max-in-flight = 500"""


def starting_file(root: click.Context) -> str:
    """The text: ten settings with examples, then every option, commented out with its default."""
    nodes = [CommandNode(ctx) for ctx in contexts(root)]
    common = common_options(nodes)
    first = [line for key, (note, value) in _FIRST.items() for line in _setting(key, note, value)]
    others = [option for option in common.values() if option.key not in _FIRST]
    rest = [line for each in others for line in _entry(each)]
    parts = ["\n".join([_HEAD, *first]), "\n".join([_REST, *rest])]
    for node in nodes:
        known = file_options(node.groups)
        if known:
            own = [
                option
                for name, option in known.items()
                if name not in common and option.declared.is_listed
            ]
            parts.append(_table(node.table, own))
    return "\n\n".join([*parts, _PROFILE]) + "\n"


def _setting(key: str, note: str, value: str) -> list[str]:
    return [f"# {note}", f"# {key} = {value}"]


def _table(name: str, options: Iterable[CommandOption]) -> str:
    return "\n".join([f"[{name}]", *(line for each in options for line in _entry(each))])


def _entry(option: CommandOption) -> Iterator[str]:
    declared = option.declared
    notes = [declared.help]
    if declared.choices:
        notes.append(f"One of {', '.join(filter(None, declared.choices))}.")
    if option.range_text:
        notes.append(f"Range: {option.range_text}.")
    if declared.default_note:
        notes.append(f"Default: {declared.default_note}.")
    yield from _setting(option.key, " ".join(notes), _default(option))


def _default(option: CommandOption) -> str:
    """A literal of TOML."""
    declared, value = option.declared, option.declared.default
    if declared.multiple:
        return dumps(list(value))
    return dumps(declared.show(value) if declared.kind in ("duration", "size") else value)
