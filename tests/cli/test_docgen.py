"""What is generated of the commands: help and manual pages."""

import re
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from nsqtools.cli import cli
from nsqtools.cli.docs import SCRIPTS, script, sections
from nsqtools.cli.docs.__main__ import PICTURE, documents, write
from nsqtools.cli.frame import folded
from nsqtools.cli.options import DeclaredFlag, section_of
from nsqtools.cli.tree import CommandNode, walk
from nsqtools.config.option import flag_name
from tests.support.binaries import needs
from tests.support.examples import shown

ROOT = Path(__file__).parents[2]
NODES = walk(cli)
EACH_NODE = pytest.mark.parametrize("node", NODES, ids=lambda node: node.page)
PAGES = {
    name.rpartition("/")[2]: text for name, text in documents().items() if name.startswith("man/")
}


def files(root: Path) -> dict[str, str]:
    found = {str(p.relative_to(root)): p.read_text() for p in (root / "man").rglob("*.[1-9]")}
    return found | {PICTURE: (root / PICTURE).read_text()}


def test_what_is_committed_is_what_is_generated() -> None:
    assert files(ROOT) == documents(), "run python -m nsqtools.cli.docs"


def test_the_picture_has_the_lines_of_the_guide() -> None:
    drawn = ElementTree.parse(ROOT / PICTURE)
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    (art,) = shown(sections("delivery", "guides")["A message's life"])
    assert [text for text in texts if text] == [line for line in art.splitlines() if line]


def test_what_is_written_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "man/man1").mkdir(parents=True)
    for name in ("gone", "tail"):
        (tmp_path / f"man/man1/nsqtools-{name}.1").write_text("old")
    write(tmp_path)
    assert files(tmp_path) == documents()


@EACH_NODE
def test_help_begins_with_one_sentence_and_groups_the_options(node: CommandNode) -> None:
    done = CliRunner().invoke(cli, [*node.command_path.split()[1:], "--help"])
    assert done.exit_code == 0
    sentence = " ".join(done.output.split("\n\n")[1].split())
    assert sentence == f"{node.summary}."
    assert len(sentence) <= 80
    if isinstance(node.command, click.Group):
        return
    for option in node.options:
        title = section_of(option)
        section = done.output.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert option.opts[-1].removeprefix("--") in section
    assert "\nOptions:\n" not in done.output


@EACH_NODE
def test_the_short_help_is_one_screen_of_essential_options_and_examples(node: CommandNode) -> None:
    done = CliRunner().invoke(cli, [*node.command_path.split()[1:], "-h"])
    lines = done.output.splitlines()
    assert (done.exit_code, len(lines) <= 40, max(map(len, lines)) <= 80) == (0, True, True)
    assert lines[0].startswith(f"Usage: {node.command_path} ")
    for sentence, _ in node.examples[:2]:
        assert f"  {sentence}:" in lines
    declared = [each for each in node.options if isinstance(each, DeclaredFlag)]
    assert len(node.examples) > 1 or not declared
    if not (essential := getattr(node.command, "essential", ())):
        return
    words = {word for _, line in node.examples[:2] for word in line.split()}
    for option in declared:
        assert (
            option.name in essential or option.command_option.shared or not words & {*option.opts}
        )
    assert len(essential) <= 12
    options = "\n".join(lines).partition("\nOptions:\n")[2]
    shown = re.findall(r"^  (?:-\w, )?--([\w-]+)", options, re.MULTILINE)
    assert shown == [flag_name(name) for name in essential]
    assert "--help" in lines[-1]


@EACH_NODE
def test_an_example_that_is_folded_is_the_same_to_a_shell(node: CommandNode) -> None:
    for _, line in node.examples:
        lines = folded(line, 74)
        assert max(map(len, lines)) <= 74
        unfolded = "\n".join(lines).replace("\\\n", "")
        assert unfolded.split() == line.split()
        assert len(shlex.split(unfolded)) == len(shlex.split(line))


def test_the_scripts_of_shells_are_said_once() -> None:
    links = {path.name: path.read_text() for path in (ROOT / "completions").iterdir()}
    assert links == {name: script(shell) for shell, name in SCRIPTS.items()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_valid_and_refers_to_pages_that_there_are(name: str) -> None:
    targets = re.findall(r"\bXr (\S+) (\d)", PAGES[name])
    assert {f"{page}.{number}" for page, number in targets} - set(PAGES) == set()
    assert re.search(r"^\.Sh SEE ALSO\n(\.(?!Sh).*\n)*\.Xr", PAGES[name], re.MULTILINE)
    command = [needs("mandoc", "that manual pages are valid mdoc(7)"), "-Tlint", "-W", "warning"]
    done = subprocess.run(command, input=PAGES[name], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
