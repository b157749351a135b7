"""The frame of the command line: how it helps, and how a run ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import click
import pytest
from click.testing import CliRunner

from nsqtools.cli import COMMANDS, cli
from nsqtools.cli.docs import guide_summaries, guides
from nsqtools.cli.exits import Exit
from nsqtools.cli.exits import run as run_here
from nsqtools.cli.tree import walk
from nsqtools.errors import (
    ConfigError,
    ConnectionLostError,
    PublishError,
    ServerError,
    UnreachableError,
)
from nsqtools.names import Address
from tests.support.process import Cli

ROOT = Path(__file__).parents[2]
NSQTOOLS = [sys.executable, "-m", "nsqtools"]


def run(*command: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "NSQTOOLS_DEBUG": "", "PYTHONUNBUFFERED": ""},
        cwd=ROOT,
        text=True,
        check=False,
    )


def program(body: str) -> list[str]:
    """A command line that runs ``nsqtools go`` with this as the body of ``go``."""
    return [
        sys.executable,
        "-c",
        "import os, sys, click\n"
        "from nsqtools.cli.exits import run\n"
        "from nsqtools.errors import *\n"
        "@click.group(name='nsqtools')\n"
        "def cli(): pass\n"
        "@cli.command()\n"
        f"def go():\n{indent(body, ' ')}\n"
        "sys.exit(run(cli, ['go']))\n",
    ]


def test_help_lists_every_command_under_its_section_as_the_command_does_itself() -> None:
    done = CliRunner().invoke(cli, ["--help"])
    assert done.exit_code == 0
    for name, entry in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.get_short_help_str(limit=1000) == entry.help
        section = done.output.partition(f"\n{entry.section}:\n")[2].partition("\n\n")[0]
        assert f"  {name} " in section
        assert entry.help in section
    for name, about in guide_summaries().items():
        assert f"  {name} " in done.output
        assert about.split()[0] in done.output
    for other in (["help"], ["-help"], ["-v", "--help"]):
        assert CliRunner().invoke(cli, other).output == done.output
    of_tail = CliRunner().invoke(cli, ["tail", "--help"]).output
    for other in (["tail", "-help"], ["-v", "tail", "--help"]):
        assert CliRunner().invoke(cli, other).output == of_tail


def test_help_shows_the_page_of_a_command_of_a_guide_and_of_the_exit_codes() -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(cli, ["help", *words])
        assert done.exit_code == 0
        return done.output

    for name in guides():
        assert said(name).startswith("nsqtools")
    assert "[profile.NAME]" in said("toml")
    page = said("pipeline", "sql")
    for title in ("SYNOPSIS", "OPTIONS", "CONSOLE", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"):
        assert f"\n{title}\n" in page
    assert said("tail", "-h") == said("tail")
    assert "\nENVIRONMENT\n" in said("nsqtools")
    for code in Exit:
        assert f"\n{int(code)}\n  {code.meaning[:20]}" in said("exit-codes")


def test_descriptions_do_not_depend_on_docstrings_in_the_program() -> None:
    texts = "print(*[node.help for node in walk(cli)])"
    script = f"from nsqtools.cli import cli; from nsqtools.cli.tree import walk; {texts}"
    stripped = run(sys.executable, "-OO", "-c", script)
    assert stripped.stderr == ""
    assert stripped.stdout == " ".join(node.help for node in walk(cli)) + "\n"


def test_without_a_command_the_help_goes_to_stderr(nsqtools_cli: Cli) -> None:
    done = nsqtools_cli()
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr == nsqtools_cli("-h").stdout.decode()


def raised(error: BaseException) -> Callable[[], object]:
    def go() -> None:
        raise error

    return go


def group(body: Callable[[], object]) -> click.Group:
    """``nsqtools go`` does this."""
    made = click.Group("nsqtools")
    made.command("go")(body)
    return made


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        (lambda: None, 0, ""),
        (raised(click.exceptions.Exit(3)), 3, ""),
        (raised(KeyboardInterrupt()), 130, ""),
        (raised(ConfigError("--topic: name one")), 2, "--topic: name one"),
        (raised(UnreachableError("refused", Address("::1", 4150))), 3, "[::1]:4150: refused"),
        (raised(ConnectionLostError("gone")), 3, "gone"),
        (raised(PublishError("no", [0], permanent=True)), 1, "no"),
        (raised(ServerError("E_BAD \x1b[31m\nx")), 3, "E_BAD \\x1b[31m\\nx"),
        (lambda: Path("/no/such").read_text(), 1, "/no/such: No such file or directory"),
        (raised(click.ClickException("text")), 1, "text"),
        (raised(ExceptionGroup("", [ExceptionGroup("", [ConfigError("bad")])])), 2, "bad"),
    ],
)
def test_an_outcome_has_its_exit_code_and_one_line(
    body: Callable[[], object], code: int, stderr: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(group(body), ["go"]) == code
    assert capsys.readouterr() == ("", f"nsqtools: {stderr}\n" if stderr else "")


def test_a_usage_error_names_the_command_and_a_bug_its_type_or_with_debugging_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def misused() -> None:
        raise click.UsageError("no topic", click.get_current_context())

    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("the text is elsewhere")

    assert run_here(group(misused), ["go"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert (error, "nsqtools go -h" in hint) == ("nsqtools go: no topic", True)
    for bug, told in ((KeyError("x"), "KeyError: 'x', "), (WordlessError(), "WordlessError, ")):
        assert run_here(group(raised(bug)), ["go"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"internal error: {told}" in line
        assert "NSQTOOLS_DEBUG" in line
    monkeypatch.setenv("NSQTOOLS_DEBUG", "1")
    assert run_here(group(raised(ConfigError("refused"))), ["go"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("\nnsqtools: refused\n")


@pytest.mark.parametrize(
    "command",
    [
        [*NSQTOOLS, "--help"],
        program("print('x')"),
        program("raise OutputClosedError('closed')"),
    ],
)
def test_a_reader_that_went_away_means_death_by_sigpipe_without_a_word(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run(*command, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


LOGS = """\
import logging
from nsqtools.cli import logs
from nsqtools.config.program import LogOptions
sys.stderr.isatty()
logs.configure(LogOptions())
for _ in range(100): logging.getLogger("nsqtools.x").error("x" * 1000)
print("data")
"""
NO_OTHER = "import socket; s = socket.socket(); assert s.fileno() > 2; os.write(1, b'x')"


@pytest.mark.parametrize(
    ("redirection", "body", "code", "stdout", "stderr"),
    [
        (">/dev/full", "print('x')", 1, "", "No space left on device"),
        (">/dev/full", "os.write(1, b'x')", 1, "", "No space left on device"),
        (">&-", NO_OTHER, 1, "", "Bad file descriptor"),
        ("2>&-", f"{LOGS}return 0", 0, "data\n", ""),
        ("2>/dev/full", f"{LOGS}raise ConfigError('x')", 2, "data\n", ""),
    ],
)
def test_a_stdout_that_takes_nothing_is_a_failure_and_such_a_stderr_costs_only_the_lines(
    redirection: str, body: str, code: int, stdout: str, stderr: str
) -> None:
    done = run("sh", "-c", f'"$@" {redirection}', "sh", *program(body))
    assert (done.returncode, done.stdout) == (code, stdout)
    assert done.stderr.count("\n") == bool(stderr)
    assert stderr in done.stderr
