"""Generated documents: ``python -m nsqtools.cli.docs [--check] [ROOT]`` writes or compares them.

They are the manual pages in ``man/``, which is laid out as ``share/man`` is, the completions in
``completions/`` and two parts of ``README.md``. ``ROOT`` is the top of the checkout. With
``--check`` nothing is written: the names of files that differ are printed, and there being any is
exit status 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqtools.cli import cli
from nsqtools.cli.commands.completion import scripts
from nsqtools.cli.commands.pipeline.guide import guide
from nsqtools.cli.docs.facts import about
from nsqtools.cli.docs.manpages import page
from nsqtools.cli.docs.tomlpage import toml_page
from nsqtools.cli.options import ConfigOption
from nsqtools.cli.tree import walk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.cli.tree import Node

_PATH = re.compile(r"\S*[/_]\S*\w")
_ROOT = Path(__file__).parents[3]


def documents(root: Path) -> dict[str, str]:
    """The text of every generated file, by its name below ``root``; README.md if it is there."""
    nodes = walk(cli)
    found = {f"man/{node.page}.1": page(node, nodes) for node in nodes}
    found["man/nsqtools.toml.5"] = toml_page(nodes)
    found["man/nsqtools-pipeline.7"] = guide(nodes)
    found |= {f"completions/{name}": text for name, text in scripts().items()}
    readme = root / "README.md"
    if readme.exists():
        found["README.md"] = fill(readme.read_text(encoding="utf-8"), nodes)
    return found


def fill(text: str, nodes: Sequence[Node]) -> str:
    """A text with what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` made anew."""
    for name, part in (("commands", commands_table(nodes)), ("options", options_tables(nodes))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if found and closed:
            text = f"{before}{begin}{part}{end}{after}"
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """Text as code, if there is any; in a table a bar is escaped even there."""
    shown = text.replace("|", "\\|")
    return f"`` {shown} ``" if "`" in text else shown and f"`{shown}`"


def _phrase(text: str) -> str:
    """Words, with names of files and the like as code."""
    return _PATH.sub(lambda match: _code(match[0]), _cell(text))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [f"| {' | '.join(line)} |\n" for line in (header, *rows)]
    return "".join([shown[0], "|---" * len(header), "|\n", *shown[1:]])


def _commands(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if not isinstance(node.command, click.Group)]


def commands_table(nodes: Sequence[Node]) -> str:
    """Every command with its sentence, as a table in Markdown."""
    rows = [(_code(node.words), _cell(node.summary)) for node in _commands(nodes)]
    return _table(("command", "what it does"), rows)


def options_tables(nodes: Sequence[Node]) -> str:
    """Every option: a table in Markdown for those of a section that the same commands have."""
    takers: dict[tuple[str, tuple[str, str, str]], list[str]] = {}
    for node in _commands(nodes):
        for option in node.options:
            if isinstance(option, ConfigOption):
                row = _option_row(option, node.ctx)
                takers.setdefault((option.section, row), []).append(node.words.partition(" ")[2])
    tables: dict[tuple[str, tuple[str, ...]], list[tuple[str, str, str]]] = {}
    for (section, row), commands in takers.items():
        tables.setdefault((section, tuple(commands)), []).append(row)
    everyone = [node.words.partition(" ")[2] for node in _commands(nodes) if node.groups]
    return "\n".join(
        f"**{section}** ({_takers(commands, everyone)})\n\n"
        f"{_table(('option', 'default', 'what it does'), rows)}"
        for (section, commands), rows in tables.items()
    )


def _takers(commands: Sequence[str], everyone: Sequence[str]) -> str:
    """Names of commands; a group's where all of its commands are meant."""
    if set(commands) == set(everyone):
        return "all commands"
    names = []
    for command in commands:
        group = command.rpartition(" ")[0]
        below = {each for each in everyone if group and each.rpartition(" ")[0] == group}
        names.append(group if len(below) > 1 and below <= set(commands) else command)
    return ", ".join(dict.fromkeys(names))


def _option_row(option: ConfigOption, ctx: click.Context) -> tuple[str, str, str]:
    spec, _ = option.get_help_record(ctx)
    known = about(option)
    default = _phrase(known.default) if known.is_phrase else _code(known.default)
    if known.required:
        default = "*required*"
    text = known.help
    if known.range:
        text = f"{text.removesuffix('.')} ({known.range})."
    return _code(spec), default, _cell(text)


def stale(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """Names of files in the generated folders that nothing generates any more."""
    folders = {name.partition("/")[0] for name in wanted if "/" in name}
    paths = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    there = {path.relative_to(root).as_posix() for path in paths}
    return sorted(there - set(wanted))


def differing(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """Names of files that are missing or have another text."""
    return [name for name, text in wanted.items() if _read(root / name) != text]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def main(argv: Sequence[str]) -> int:
    """Write or compare; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m nsqtools.cli.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("root", nargs="?", type=Path, default=_ROOT, help="top of the checkout")
    given = parser.parse_args(argv)
    wanted = documents(given.root)
    changed, gone = differing(given.root, wanted), stale(given.root, wanted)
    for name in changed + gone:
        print(name)
    if given.check:
        return 1 if changed or gone else 0
    for name in changed:
        path = given.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")
    for name in gone:
        (given.root / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
