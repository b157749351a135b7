"""The generated documents are those that are committed, and every command's help has its parts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nsqtools.cli import cli
from nsqtools.cli.docgen import documents, main
from nsqtools.cli.options import ConfigOption
from nsqtools.cli.tree import Node, walk
from tests.support.loaded import run_python

ROOT = Path(__file__).parents[2]
MARKERS = """\
# x
<!-- commands -->
<!-- /commands -->
and
<!-- options -->
old
<!-- /options -->
"""
NODES = walk(cli)
LEAVES = [node for node in NODES if not isinstance(node.command, click.Group)]
EACH_NODE = pytest.mark.parametrize("node", NODES, ids=lambda node: node.page)


def files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_what_is_committed_is_what_is_generated() -> None:
    assert main(["--check", str(ROOT)]) == 0, "run python -m nsqtools.cli.docgen"


def test_what_is_written_passes_the_check_and_what_differs_is_named_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(MARKERS)
    (tmp_path / "man").mkdir()
    (tmp_path / "man/nsqtools-gone.1").write_text("gone")
    assert main([str(tmp_path)]) == 0
    assert files(tmp_path) == documents(tmp_path)
    (tmp_path / "man/nsqtools-tail.1").write_text("old")
    (tmp_path / "man/nsqtools.1").unlink()
    (tmp_path / "man/nsqtools-gone.1").write_text("gone")
    before = files(tmp_path)
    capsys.readouterr()
    assert main(["--check", str(tmp_path)]) == 1
    assert sorted(capsys.readouterr().out.split()) == [
        "man/nsqtools-gone.1",
        "man/nsqtools-tail.1",
        "man/nsqtools.1",
    ]
    assert files(tmp_path) == before


def test_the_commands_do_not_load_the_generator() -> None:
    script = (
        "import click, sys\n"
        "from nsqtools.cli import cli\n"
        "for name in cli.table: cli.get_command(click.Context(cli), name)\n"
        "print(*sys.modules)"
    )
    names = ("docgen", "manpages", "tomlpage", "roff", "facts", "starter")
    generator = {f"nsqtools.cli.{name}" for name in names}
    assert not generator & set(run_python(script).split())


@EACH_NODE
def test_help_begins_with_one_sentence_and_groups_the_options(node: Node) -> None:
    done = CliRunner().invoke(cli, [*node.words.split()[1:], "--help"])
    assert done.exit_code == 0
    sentence = " ".join(done.output.split("\n\n")[1].split())
    assert sentence == f"{node.summary}."
    assert len(sentence) <= 80
    if isinstance(node.command, click.Group):
        return
    for option in node.options:
        title = option.section if isinstance(option, ConfigOption) else "Other options"
        section = done.output.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert option.opts[-1].removeprefix("--") in section
    assert "\nOptions:\n" not in done.output
