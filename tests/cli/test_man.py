"""The manual pages: complete, valid, and readable whatever a help text holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
import pytest
from click.testing import CliRunner

from nsqtools.cli import Entry, LazyGroup, cli
from nsqtools.cli.docgen import documents
from nsqtools.cli.exits import Exit
from nsqtools.cli.facts import about, flagless, keys
from nsqtools.cli.manpages import exits, page
from nsqtools.cli.options import Command, ConfigOption, options
from nsqtools.cli.roff import argument, escape, macro, paragraphs, prose
from nsqtools.cli.settings import variables
from nsqtools.cli.tomlpage import EXAMPLE
from nsqtools.cli.tree import Node, walk
from nsqtools.config.option import Options, flag_name, option
from tests.support.binaries import needs

if TYPE_CHECKING:
    from collections.abc import Callable
NODES = walk(cli)


def pages() -> dict[str, str]:
    """All pages by file name."""
    found = documents(Path("/nowhere")).items()
    return {name.rpartition("/")[2]: text for name, text in found if name.startswith("man/")}


PAGES = pages()
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


def lint(text: str) -> str:
    mandoc = needs("mandoc", "that manual pages are valid mdoc(7)")
    done = subprocess.run(
        [mandoc, "-Tlint", "-W", "warning"], input=text, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def with_mandoc(text: str) -> str:
    mandoc = needs("mandoc", "how manual pages look")
    command = [mandoc, "-Tutf8", "-Owidth=500"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return re.sub(".\b", "", done.stdout)


def with_groff(text: str) -> str:
    groff = needs("groff", "how manual pages look where man is man-db's")
    command = [groff, "-mdoc", "-Tutf8", "-P-cbou", "-rLL=500n", "-ww", "-Wbreak"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.replace("\N{HYPHEN}", "-")


@EACH_PAGE
def test_mandoc_has_nothing_to_say(name: str) -> None:
    assert lint(PAGES[name]) == ""


@EACH_NODE
def test_a_page_is_named_after_its_command(node: Node) -> None:
    name = section(PAGES[f"{node.page}.1"], "NAME")
    assert name.startswith(f".Nm {node.page}\n")
    assert plain(name.split(".Nd ")[1].strip()) == " ".join(node.summary.split())


@EACH_NODE
def test_every_option_is_described_with_its_variables_and_key(node: Node) -> None:
    text = plain(section(PAGES[f"{node.page}.1"], "OPTIONS"))
    assert node.options
    for each in node.options:
        flag = re.compile(rf"Fl {re.escape(each.opts[-1][1:])}(?![\w-])")
        entry = next(e for e in text.split("\n.It ") if flag.search(e.split("\n")[0]))
        first, *body = entry.split("\n")
        for name in (*each.opts, *each.secondary_opts):
            assert f"Fl {name[1:]}" in first
        if isinstance(each, ConfigOption):
            check_facts(node, each, "\n".join(body))


@EACH_NODE
def test_every_option_without_a_flag_is_described_too(node: Node) -> None:
    text = plain(section(PAGES[f"{node.page}.1"], "OPTIONS"))
    options = flagless(node)
    for each in options:
        alike = [other for other in options if other.name == each.name]
        _, *entries = text.split(f"\n.It Cm {each.name} ")
        assert len(entries) == len(alike)
        check_facts(node, each, re.split(r"\n\.(?:It|El)\b", entries[alike.index(each)])[0])


def check_facts(node: Node, each: ConfigOption, entry: str) -> None:
    facts = about(each)
    words = " ".join(entry.split())
    assert not facts.default or f"Default: {facts.default}." in words
    assert not facts.range or f"Range: {facts.range}." in words
    assert ("Required." in words) == facts.required
    for variable in variables(node.ctx, each.name, shared=each.shared):
        assert f".Ev {variable} " in entry
    assert (f".Cm {flag_name(each.name)} ." in entry) == each.declared.in_file


@EACH_NODE
def test_arguments_and_examples_of_a_command_are_on_its_page(node: Node) -> None:
    text = PAGES[f"{node.page}.1"]
    assert section(text, "ARGUMENTS").count(".It ") == len(node.arguments)
    for _, line in node.examples:
        assert f"\n{line}\n" in plain(section(text, "EXAMPLES"))


@EACH_PAGE
def test_every_reference_leads_to_a_page(name: str) -> None:
    targets = re.findall(r"\bXr (\S+) (\d)", PAGES[name])
    assert targets
    assert {f"{page}.{number}" for page, number in targets} - set(PAGES) == set()
    assert len(re.findall(r"^\.Xr", section(PAGES[name], "SEE ALSO"), re.MULTILINE)) >= 1


def test_exit_codes_are_those_that_the_command_can_return() -> None:
    known = {node.words: set(exits(node, NODES)) for node in NODES}
    assert set().union(*known.values()) == known["nsqtools"]
    assert known["nsqtools to-file"] == set(Exit)
    assert known["nsqtools tail"] == set(Exit) - {Exit.LOCKED}
    assert known["nsqtools lookup"] == known["nsqtools lookup topics"]
    assert known["nsqtools lookup topics"] == set(Exit) - {Exit.PARTIAL, Exit.LOCKED}
    assert Exit.UNREACHABLE not in known["nsqtools config check"]
    for node in NODES:
        text = section(PAGES[f"{node.page}.1"], "EXIT STATUS")
        shown = {int(code) for code in re.findall(r"^\.It (\d+)$", text, re.MULTILINE)}
        assert shown == known[node.words]


def test_every_key_of_every_table_is_in_the_page_of_the_file() -> None:
    text = plain(PAGES["nsqtools.toml.5"])
    shared, *tables = re.split(r"^\.Ss ", section(text, "TABLES"), flags=re.MULTILINE)[1:]
    for node in NODES:
        table = node.words.partition(" ")[2].replace(" ", ".")
        if not keys(node):
            continue
        body = next(t for t in tables if f"[{table}]" in t.replace("\n", " "))
        for name in keys(node):
            key = flag_name(name)
            if f"\n.It Cm {key} No =" not in body:
                assert f"\n.It Cm {key} No =" in shared
                assert re.search(rf"[ \n]{key}[,.]", body.split("And of [defaults]:")[1])


def test_the_example_of_the_file_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(EXAMPLE)
    done = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert EXAMPLE in plain(PAGES["nsqtools.toml.5"])


def generated(folder: Path, **env: str) -> dict[str, bytes]:
    """What docgen writes in a process of its own, by name."""
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "nsqtools.cli.docgen", str(folder)],
        env={"PATH": os.environ["PATH"], **env},
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pages_depend_on_nothing_around_them(tmp_path: Path) -> None:
    here = generated(tmp_path / "a", TZ="UTC", LC_ALL="C.UTF-8", HOME="/root", COLUMNS="200")
    there = generated(
        tmp_path / "b",
        TZ="Pacific/Auckland",
        LC_ALL="tr_TR.UTF-8",
        HOME="/elsewhere",
        COLUMNS="20",
        NSQTOOLS_TOPIC="other",
        NSQTOOLS_CONFIG="/no/such/file",
        PYTHONHASHSEED="7",
    )
    assert here == there


NASTY = r""".Sh FAKE 'quoted' "double" back\slash \n \*(xx \fB \e ~/.x ^caret `tick` - -1 --no-x"""
UNICODE = "µs naïve \N{SNOWMAN} \x1b[31m\x00end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nasty(Options):
    title: ClassVar[str] = "In At .Sh"

    plain: str = option("Ns", "text", f"{NASTY}. {UNICODE}", metavar="NO")
    dots: str = option(".", "choice", ".TH is no macro.\n'br neither.", choices=(".", "In", "a b"))
    hidden: float = option(0.5, "duration", ". . .", minimum=0.25, flag=False)


@click.command(
    "na-sty",
    cls=Command,
    examples=((".Print it", r"""nsqtools na-sty --plain '\n' "$x" | sed 's/^.//' # `y` ~"""),),
)
@click.argument("in", metavar="[In]...", help=NASTY)
@options(nasty=Nasty)
def nasty() -> None: ...


nasty.help = (
    f"Do .what \\you 'want'.\n\n{NASTY}\n\n\b\n.SH verbatim\n\t'tabbed'\n\\end\n\n{UNICODE}\f no"
)
HOSTILE = LazyGroup(
    name="nsqtools",
    help="Be .nasty.",
    table={"na-sty": Entry(f"{__name__}:nasty", "Do what 'you' want.", "At")},
)


def test_hostile_texts_make_a_valid_page() -> None:
    nodes = walk(HOSTILE)
    assert [lint(page(node, nodes)) for node in nodes] == ["", ""]


@pytest.mark.parametrize("render", [with_mandoc, with_groff])
def test_hostile_texts_are_shown_as_they_stand(render: Callable[[str], str]) -> None:
    nodes = walk(HOSTILE)
    shown = " ".join(render(page(nodes[1], nodes)).split())
    for text in (
        "nsqtools-na-sty",
        "Do .what \\you 'want'",
        NASTY,
        ".SH verbatim 'tabbed' \\end",
        "µs naïve \N{SNOWMAN} \\x1b[31m\\x00end",
        "--plain NO",
        "--dots .|In|a b",
        ".TH is no macro. 'br neither.",
        "Default: Ns.",
        "hidden DURATION",
        "Range: at least 250ms.",
        r"""nsqtools na-sty --plain '\n' "$x" | sed 's/^.//' # `y` ~""",
    ):
        assert text in shown
    assert " no" not in shown.partition("\\x00end")[2][:4]


def test_each_sentence_begins_a_line_and_no_line_is_long() -> None:
    text = "One. Two (see there.) Three! " + "word " * 40 + "end."
    lines = prose(text)
    assert lines[:3] == ["One.", "Two (see there.)", "Three!"]
    assert max(map(len, lines)) <= 80
    assert " ".join(lines) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("big-endian --no-x -1 - (-q)", r"big-endian \-\-no\-x \-1 \- (\-q)"),
        ("a\\b", r"a\eb"),
        ("µ", r"\[u00B5]"),
        ("\x07", r"\ex07"),
    ],
)
def test_characters_that_mean_something_are_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("In", r"\&In"), (".", r"\&."), ("", r"\&"), ("a b", '"a b"'), ('"', r"\(dq"), ("N", "N")],
)
def test_an_argument_is_never_taken_for_a_macro(text: str, shown: str) -> None:
    assert argument(text) == shown
    assert macro("Ar", text) == f".Ar {shown}"


def test_blocks_become_paragraphs_lists_and_displays() -> None:
    assert paragraphs("One.\n\nterm\n  Its\n  meaning.\nother\n  More.\n\n\b\nas is\n\nEnd.") == [
        "One.",
        ".Bl -tag -width Ds",
        ".It term",
        "Its meaning.",
        ".It other",
        "More.",
        ".El",
        ".Bd -literal -offset indent",
        "as is",
        ".Ed",
        ".Pp",
        "End.",
    ]
