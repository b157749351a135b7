"""The manual page nsqtools.toml(5): every table of the configuration file and every key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.cli.docs.facts import common_keys, keys
from nsqtools.cli.docs.manpages import FILES, assemble, bare, explained, named, values_macro
from nsqtools.cli.docs.roff import argument, inline, listed, macro, paragraphs, prose, verbatim, xr
from nsqtools.config.option import flag_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import click

    from nsqtools.cli.options import ConfigOption
    from nsqtools.cli.tree import Node

EXAMPLE = """\
default_profile = "staging"

[defaults]
log-format = "json"
client-id = "reports"

[tail]
timestamps = true
max-in-flight = 500

[profile.staging]
nsqd-tcp-address = ["127.0.0.1:4150"]

[profile.prod]
lookupd-http-address = ["lookup1.example:4161", "lookup2.example:4161"]
tls-v1 = true
tls-root-ca-file = "ca.pem"
auth-secret-file = "/etc/nsqtools/secret"

[profile.prod.pub]
nsqd-tcp-address = ["nsqd1.example:4150", "nsqd2.example:4150"]
publish-timeout = "2m"
"""

_DESCRIPTION = """\
The file is written in TOML. It holds options by the names of their flags, without the leading
dashes; an underscore does for a dash. There are these tables:

[defaults]
  Options that commands share.
[COMMAND]
  Options of one command, such as [tail]. For a command of a group there are [lookup.nodes] and
  [lookup], which holds for all commands of the group.
[profile.NAME]
  What [defaults] may hold, used if the profile of that name is chosen.
[profile.NAME.COMMAND]
  What [COMMAND] may hold, used likewise.

At the top, default_profile names the profile that is used unless --profile or $NSQTOOLS_PROFILE
names another. Without any of these no profile is used.

A text, a path, a duration such as "500ms" or "1h30m" and a size such as "64MiB" are written in
quotes, numbers, true and false without. A size can also be a number of bytes. An option that may be
repeated takes a list, or one value. A path is relative to the folder of the file, and may begin
with ~.

A table or a key that does not exist, or a value that is wrong, ends the command with status 2 and
a line that names the file, the table and the key. nsqtools config check looks at every table and
profile, and nsqtools config init prints a file with every option, commented out."""

_PRECEDENCE = """\
A value is taken from the first place that has one:

\b
1. the flag on the command line
2. the environment variable of the command, then that of all commands
3. [profile.NAME.COMMAND], then [profile.NAME]
4. [COMMAND], then [defaults]
5. the default

In one place an option of its own is stronger than one in consumer-opt or producer-opt. A value also
puts weaker ones of options that exclude it out of force: with --nsqd-tcp-address on the command
line, a lookupd-http-address of the file is not used. nsqtools config show COMMAND prints every
value and where it comes from."""

_SECRETS = """\
A secret belongs into a file of its own, which auth-secret-file names and which only its owner may
read: a warning says if others may. Second best is the variable NSQTOOLS_AUTH_SECRET. A file that
holds auth-secret itself must be kept as private. nsqtools config show masks secrets."""


def toml_page(nodes: Sequence[Node]) -> str:
    """The page, for the commands there are."""
    sections = {
        "NAME": named("nsqtools.toml", "configuration file of nsqtools"),
        "DESCRIPTION": paragraphs(_DESCRIPTION),
        "PRECEDENCE": paragraphs(_PRECEDENCE),
        "SECRETS": paragraphs(_SECRETS),
        "TABLES": _tables(nodes),
        "FILES": [
            *prose(
                "The file is that of --config or of $NSQTOOLS_CONFIG, or else the first of these "
                "that exists. --config none reads no file."
            ),
            *listed([(inline("Pa", name), prose(meaning)) for name, meaning in FILES]),
        ],
        "EXAMPLES": [
            *prose(
                "A profile for the machine at hand, used unless told otherwise, and one for "
                "production, chosen by --profile prod:"
            ),
            *verbatim(EXAMPLE.splitlines()),
        ],
        "SEE ALSO": xr([(node.page, 1) for node in nodes if _of_the_file(node)]),
    }
    return assemble("nsqtools.toml", 5, sections)


def _of_the_file(node: Node) -> bool:
    return node.words == "nsqtools" or "nsqtools.toml(5)" in node.help


def _tables(nodes: Sequence[Node]) -> list[str]:
    common = common_keys(nodes)
    lines = [
        ".Ss [defaults]",
        *prose(
            "These mean the same for all commands that have them. A key that is marked as shared "
            "in a table below may stand here too."
        ),
        *_entries(common, nodes[0].ctx, mark=False),
    ]
    bodies: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        if keys(node):
            group = node.table.rpartition(".")[0]
            bodies.setdefault((group, "\n".join(_table(node, common))), []).append(node)
    for (group, body), alike in bodies.items():
        names = [node.table for node in alike]
        lines.append(macro("Ss", f"[{group if len(names) > 1 else names[0]}]"))
        if len(names) > 1:
            lines += prose(f"Or for one of its commands: [{'], ['.join(names)}].")
        lines.append(body)
    return lines


def _table(node: Node, common: Mapping[str, ConfigOption]) -> list[str]:
    known = keys(node)
    own = {name: each for name, each in known.items() if name not in common}
    lines = _entries(own, node.ctx, mark=True)
    borrowed = [flag_name(name) for name in known if name in common]
    if borrowed:
        lines += [".Pp"] if lines else []
        lines += prose(f"And of [defaults]: {', '.join(borrowed)}.", literal=True)
    return lines


def _entries(options: Mapping[str, ConfigOption], ctx: click.Context, *, mark: bool) -> list[str]:
    return listed(
        [
            (
                _assignment(each, ctx),
                explained(each, *(["Shared."] if mark and each.shared else [])),
            )
            for each in options.values()
        ]
    )


def _assignment(option: ConfigOption, ctx: click.Context) -> str:
    """``count = N`` or ``topic = ["TOPIC", ...]``, after ``.It``."""
    key = f"Cm {argument(flag_name(option.name))} No ="
    if option.declared.kind in ("flag", "count", "integer", "number"):
        shown = {"flag": "Cm true Ns | Ns Cm false"}.get(option.declared.kind, "Ar N")
        return f"{key} {shown}"
    quoted = rf"\(dq Ns {values_macro(bare(option, ctx))} Ns \(dq"
    return rf"{key} \&[ Ns {quoted} , ...]" if option.multiple else f"{key} {quoted}"
