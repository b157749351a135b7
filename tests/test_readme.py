"""README.md is true: what it says is parsed or looked up, as are all command lines elsewhere."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from nsqtools.cli import COMMANDS, cli
from nsqtools.cli.docs import guide_summaries, guides, sections
from nsqtools.cli.options import DeclaredFlag
from nsqtools.cli.resolver import Resolver, variables
from nsqtools.cli.tree import groups_of, walk
from tests.support.examples import LINES, Stage, shown
from tests.support.process import Cli
from tests.support.servers import MakeNsqd
from tests.support.webserver import WebServer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROSE = FENCE.sub("", README)
CODE = re.findall(r"`` (.+?) ``|`([^`\n]+)`", PROSE)
INLINE = [double or single for double, single in CODE]

OPTION = re.compile(r"--?[a-z][\w-]*")


def blocks(*languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(README) if language in languages]


def commands(line: str) -> list[list[str]]:
    """Arguments of every nsqtools in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts = groupby(lexer, lambda token: not set(token) <= set("();<>|&"))
    simple = [list(tokens) for is_command, tokens in parts if is_command]
    return [words[1:] for words in simple if words[0].rpartition("/")[2] == "nsqtools"]


def parse(args: list[str]) -> None:
    """Read a command line as nsqtools does, and run nothing; raises UsageError or ConfigError."""
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    command: click.Command = cli
    context: click.Context | None = None
    name = "nsqtools"
    while isinstance(command, click.Group) and args and not args[0].startswith("-"):
        context = click.Context(command, context, info_name=name)
        name, *args = args
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no command {name}")
        command = found
    with (
        suppress(click.exceptions.Exit),  # of --help and --version
        command.make_context(name, args, parent=context) as made,
    ):
        Resolver(made, groups_of(command)).instances()


def command_lines(text: str) -> Iterator[str]:
    """Lines of shell that run nsqtools, without comments and the times of cron."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = re.sub(r"(^|\s)#\s.*", "", line)
        bare = re.sub(r"^(\$ |[A-Z_]+=\S+ |[\d*/]+( [\d*/]+){4} )", "", bare)
        if re.search(r"(^[\w./]*|[|;&(] ?)nsqtools [a-z]", bare):
            yield bare


def documents() -> Iterator[str]:
    """Shell in the README, the guides, the help and the picture."""
    yield from blocks("sh", "bash", "console", "crontab")
    for name in guides():
        for text in sections(name, "guides").values():
            yield from shown(text)
    yield from LINES
    picture = ElementTree.parse(ROOT / ".github" / "demo.svg")
    yield "\n".join(each.text or "" for each in picture.iter() if each.get("class") == "c")


VARYING = (
    (re.compile(r"in \d\S*s$", re.MULTILINE), "in TIME"),
    (re.compile(r"\bevents\.[\w.-]+\.log\.gz"), "FILE"),
    (re.compile(r"\d[\d,]* bytes$", re.MULTILINE), "SIZE"),
    (re.compile(r"^nsqtools: --until-empty: waiting for .*\n", re.MULTILINE), ""),
)


def varied(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return text


def test_every_command_shows_what_stands_below_it(
    stage: Stage, make_nsqd: MakeNsqd, endpoint: WebServer
) -> None:
    """In the order of the page, on a terminal."""
    real = {
        "127.0.0.1:4150": str(stage.nsqd.tcp),
        "10.0.1.1:4150": str(make_nsqd().tcp),
        "https://example.com": endpoint.url("").rstrip("/"),
    }
    for block in blocks("console"):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, expected = step.partition("\n")
            for written, address in real.items():
                line, expected = line.replace(written, address), expected.replace(written, address)
            assert varied(stage.terminal(line)) == varied(expected), line


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("NSQTOOLS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("NSQTOOLS_CONFIG", "none")


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    "line", dict.fromkeys(line for text in documents() for line in command_lines(text))
)
def test_every_command_line_is_one_that_nsqtools_takes(line: str) -> None:
    assert commands(line)
    for args in commands(line):
        parse(args)


def test_every_command_named_in_prose_exists() -> None:
    pages = {node.command_path: node.command for node in walk(cli)}
    named = [code.split() for code in INLINE if code.startswith("nsqtools ")]
    assert named
    for words in named:
        command = " ".join(words[:2])
        if words[1] == "help":
            assert words[2] in {*guide_summaries(), "NAME", "COMMAND"}
            continue
        if words[1] == "COMMAND":
            continue
        assert command in pages
        if isinstance(pages[command], click.Group) and len(words) > 2:
            assert " ".join(words[:3]) in pages


def test_every_command_is_in_the_tables_of_commands_and_of_guarantees() -> None:
    delivery = sections("delivery", "guides")["The guarantee"]
    for name, command in COMMANDS.items():
        if command.section != "Set up":
            assert re.search(rf"(?m)^\| .*`nsqtools {name}`", README), name
        if command.section == "Consume":
            assert f"\n| `{name}` |" in README, name
            assert re.search(rf"(?m)^- {name}[:,]", delivery), name


def test_every_option_named_in_prose_exists() -> None:
    options = [option for node in walk(cli) for option in node.options]
    known = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    for own in ("bench/__main__.py", "conftest.py"):
        known |= {*re.findall(r'"(--?[\w-]+)"', (ROOT / "tests" / own).read_text("utf-8"))}
    lines = [code.split() for code in INLINE if "python" not in code.split()[0]]
    named = [found[0] for words in lines for word in words if (found := OPTION.match(word))]
    assert named
    assert [option for option in named if not {option, f"-{option}"} & known] == []


def test_every_variable_named_exists() -> None:
    known = {
        variable
        for node in walk(cli)
        for option in node.options
        if isinstance(option, DeclaredFlag)
        for variable in variables(node.ctx, option.name, shared=option.command_option.shared)
    }
    literal = {
        name
        for folder in ("nsqtools", "tests/support", "tests/bench")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"NSQTOOLS_\w+", path.read_text(encoding="utf-8"))
    }
    known |= {"NSQTOOLS_AUTH_SECRET"} | literal
    assert set(re.findall(r"NSQTOOLS_[A-Z_]+[A-Z]", README)) <= known


def test_every_module_named_exists() -> None:
    modules = re.findall(r"python -m ([\w.]+)", README)
    assert [module for module in modules if module != "venv"]
    assert [module for module in modules if not find_spec(module)] == []


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_every_link_leads_somewhere() -> None:
    anchors = {f"#{slug(heading)}" for heading in re.findall(r"^#+ (.*)$", PROSE, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", README):
        link = "".join(target)
        if link.startswith("#"):
            assert link in anchors
        elif not link.startswith("https://"):
            assert (ROOT / link.partition("#")[0]).exists(), link


def test_configuration_files_here_and_in_the_guide_pass_their_check(
    nsqtools_cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "file.toml"
    guide = "\n\n".join(shown(sections("toml", "guides")["Examples"]))
    for text in (guide, *blocks("toml")):
        file.write_text(text)
        checked = nsqtools_cli("config", "check", str(file))
        assert (checked.code, checked.stderr, "[" in text) == (0, "", True)
