"""The manual pages: complete and valid."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from nsqtools.cli import cli
from nsqtools.cli.docgen import documents
from nsqtools.cli.options import ConfigOption
from nsqtools.cli.settings import variables
from nsqtools.cli.tomlpage import EXAMPLE
from nsqtools.cli.tree import Node, walk
from nsqtools.config.option import flag_name
from tests.support.binaries import needs

NODES = walk(cli)


PAGES = {
    name.rpartition("/")[2]: text
    for name, text in documents(Path("/nowhere")).items()
    if name.startswith("man/")
}
EACH_NODE = pytest.mark.parametrize("node", NODES, ids=lambda node: node.page)
EACH_PAGE = pytest.mark.parametrize("name", PAGES)


def test_the_wheel_puts_each_page_into_its_section() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    installed = {source: place for source, place in shared.items() if source.startswith("man/")}
    assert installed == {f"man/{name}": f"share/man/man{name[-1]}/{name}" for name in PAGES}


def plain(text: str) -> str:
    """A page's source without the escapes that keep characters as they are."""
    escapes = {r"\-": "-", r"\%": "", r"\&": "", r"\(aq": "'", r"\(ti": "~", r"\e": "\\"}
    for escaped, char in escapes.items():
        text = text.replace(escaped, char)
    return text


def section(text: str, title: str) -> str:
    """One section of a page's source."""
    found = re.search(rf"^\.Sh {title}\n(.*?)(?=^\.Sh |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@EACH_PAGE
def test_mandoc_has_nothing_to_say(name: str) -> None:
    command = [needs("mandoc", "that manual pages are valid mdoc(7)"), "-Tlint", "-W", "warning"]
    done = subprocess.run(command, input=PAGES[name], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")


@EACH_NODE
def test_every_option_is_described_with_its_variables_and_key(node: Node) -> None:
    text = plain(section(PAGES[f"{node.page}.1"], "OPTIONS"))
    assert node.options
    for each in node.options:
        flag = re.compile(rf"Fl {re.escape(each.opts[-1][1:])}(?![\w-])")
        entry = next(e for e in text.split("\n.It ") if flag.search(e.split("\n")[0]))
        for name in (*each.opts, *each.secondary_opts):
            assert f"Fl {name[1:]}" in entry.split("\n")[0]
        if isinstance(each, ConfigOption):
            for variable in variables(node.ctx, each.name, shared=each.shared):
                assert f".Ev {variable} " in entry
            assert (f".Cm {flag_name(each.name)} ." in entry) == each.declared.in_file
    assert section(PAGES[f"{node.page}.1"], "ARGUMENTS").count(".It ") == len(node.arguments)


@EACH_PAGE
def test_every_reference_leads_to_a_page(name: str) -> None:
    targets = re.findall(r"\bXr (\S+) (\d)", PAGES[name])
    assert targets
    assert {f"{page}.{number}" for page, number in targets} - set(PAGES) == set()
    assert len(re.findall(r"^\.Xr", section(PAGES[name], "SEE ALSO"), re.MULTILINE)) >= 1


def test_the_example_of_the_file_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(EXAMPLE)
    done = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert EXAMPLE in plain(PAGES["nsqtools.toml.5"])
