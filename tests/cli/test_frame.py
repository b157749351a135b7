"""The frame of the command line: what it loads, how it helps, and how a run ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import IO, TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from nsqtools import __version__
from nsqtools.cli import COMMANDS, cli
from nsqtools.cli.docs import guide, guide_summaries
from nsqtools.cli.exits import run as run_here
from nsqtools.errors import (
    ConfigError,
    ConnectionLostError,
    NSQError,
    PublishError,
    ServerError,
    UnreachableError,
)
from nsqtools.names import Address
from tests.support.loaded import loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.process import Cli

ROOT = Path(__file__).parents[2]
NSQTOOLS = [sys.executable, "-m", "nsqtools"]


def run(*command: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
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


def test_help_version_and_mistakes_load_no_command() -> None:
    heavy = {"asyncio", "httpx", "logging", "pyspark", "rich", "snappy", "ssl", "nsqtools.config"}
    heavy.add("nsqtools.cli.commands")
    completing = {
        "_NSQTOOLS_COMPLETE": "bash_complete",
        "COMP_WORDS": "nsqtools t",
        "COMP_CWORD": "1",
    }
    runs: list[tuple[list[str], dict[str, str]]] = [
        ([word] if word else [], {}) for word in ("--help", "--version", "", "tial")
    ]
    for modules in loaded([*runs, ([], completing)]):
        assert "nsqtools.cli" in modules
        assert not modules & heavy


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
        assert guide(name)
    for other in (["help"], ["-help"], ["-v", "--help"]):
        assert CliRunner().invoke(cli, other).output == done.output
    of_tail = CliRunner().invoke(cli, ["help", "tail"]).output
    for other in (["tail", "--help"], ["tail", "-help"], ["-v", "help", "tail"]):
        assert CliRunner().invoke(cli, other).output == of_tail


def test_help_prints_a_guide_also_where_a_command_has_its_name() -> None:
    done = CliRunner().invoke(cli, ["help", "toml"])
    assert (done.exit_code, done.output.partition("\n")[0]) == (0, "NAME")
    assert "[profile.NAME]" in done.output
    assert CliRunner().invoke(cli, ["help", "pipeline"]).output.startswith("NAME")
    assert CliRunner().invoke(cli, ["help", "pipeline", "sql"]).output.startswith("Usage:")
    assert CliRunner().invoke(cli, ["help", "nothing"]).exit_code == 2


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["taill"], "tail"),
        (["help", "taill"], "tail"),
        (["help", "taill", "--json"], "tail"),
        (["help", "delivry"], "delivery"),
        (["help", "lookup", "topcis"], "topics"),
        (["nsq_tail"], "tail"),
        (["nsq_to_file"], "to-file"),
        (["nsq_to_http"], "to-http"),
        (["nsq_to_nsq"], "relay"),
        (["to_nsq"], "pub"),
        (["nsq_stat"], "stats"),
        (["help", "to_nsq"], "pub"),
    ],
)
def test_a_misspelt_command_or_guide_and_a_tool_of_go_lead_to_the_command(
    args: list[str], meant: str
) -> None:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.stderr


@pytest.mark.parametrize(
    ("args", "changed"),
    [
        (["-vv", "config", "-v", "show"], {"verbose": 1}),
        (["-q", "config", "show", "-v"], {"quiet": True}),
        (["-log-format", "json", "config", "show"], {"log-format": "json"}),
        (["--log-format=json", "config", "--log-format", "text", "show"], {}),
        (["--profile=prod", "config", "show"], {"profile": "prod", "count": 3}),
        (["--profile", "prod", "config", "--profile", "none", "show"], {"profile": "none"}),
        (["--profile", "prod", "config", "show", "--profile", "none"], {"profile": "none"}),
    ],
)
def test_shared_options_stand_before_the_command_too_and_the_last_one_counts(
    args: list[str], changed: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[profile.prod.tail]\ncount = 3\n")
    line = ["-config", str(file), *args, "--changed", "--json", "tail"]
    done = CliRunner().invoke(cli, line)
    found = {row["option"]: row["value"] for row in json.loads(done.stdout)}
    assert found.pop("config") == str(file)
    assert found == changed


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["tail", "events"], "--topic events?"),
        (["tail", "a", "b"], "--topic a --topic b?"),
        (["stats", "a", "b"], "--topic a?"),
        (["tail", "--topic", "a", "b"], ": b"),
        (["tail", "a b"], ": a b"),
        (["lookup", "topics", "x"], ": x"),
    ],
)
def test_a_word_that_no_option_takes_is_perhaps_a_topic(args: list[str], hint: str) -> None:
    done = CliRunner().invoke(cli, args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "takes no arguments" in done.stderr
    assert hint in done.stderr.splitlines()[-1]


def test_an_unknown_variable_gets_one_warning_with_the_nearest_known_one(
    nsqtools_cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "empty"
    file.touch()
    wrong = {"NSQTOOLS_VERIFY_FROMAT": "raw", "NSQTOOLS_LOOKUPD_HTP_ADDRESS": "x"}
    right = {
        "NSQTOOLS_TO_FILE_GZIP": "1",
        "NSQTOOLS_TLS_V1": "1",
        "NSQTOOLS_VERIFY_FORMAT": "raw",
        "NSQTOOLS_VERIFY_PROFILE": "none",
        "NSQTOOLS_DEBUG": "0",
        "NSQTOOLS_EMPTY": "",
    }
    done = nsqtools_cli("verify", str(file), env={**wrong, **right})
    first, second = done.stderr.splitlines()
    assert ("_HTP_" in first, "NSQTOOLS_LOOKUPD_HTTP_ADDRESS" in first) == (True, True)
    assert ("_FROMAT" in second, "NSQTOOLS_VERIFY_FORMAT" in second) == (True, True)
    assert done.code == 0
    assert nsqtools_cli("verify", "-q", str(file), env=wrong).stderr == ""


def test_version_is_one_line_in_either_spelling(nsqtools_cli: Cli) -> None:
    for spelling in ("--version", "-version"):
        done = nsqtools_cli(spelling)
        assert (done.code, done.stdout.decode()) == (0, f"nsqtools {__version__}\n")


def test_without_a_command_the_help_goes_to_stderr(nsqtools_cli: Cli) -> None:
    done = nsqtools_cli()
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr == nsqtools_cli("-h").stdout.decode()


async def in_a_group() -> None:
    async def fail() -> None:
        raise ConfigError("bad")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


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
        (lambda: asyncio.run(in_a_group()), 2, "bad"),
    ],
)
def test_an_outcome_has_its_exit_code_and_one_line(
    body: Callable[[], object], code: int, stderr: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(group(body), ["go"]) == code
    assert capsys.readouterr() == ("", f"nsqtools: {stderr}\n" if stderr else "")


def test_a_usage_error_names_the_command_and_a_bug_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def misused() -> None:
        raise click.UsageError("no topic", click.get_current_context())

    assert run_here(group(misused), ["go"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert (error, "nsqtools go --help" in hint) == ("nsqtools go: no topic", True)
    assert run_here(group(raised(KeyError("x"))), ["go"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "internal error: KeyError: 'x'" in line
    assert "NSQTOOLS_DEBUG" in line


def test_a_bug_whose_text_cannot_be_had_is_named_by_its_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("the text is elsewhere")

    assert run_here(group(raised(WordlessError())), ["go"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "internal error: WordlessError, " in line


def test_a_traceback_is_shown_only_when_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = group(raised(NSQError("refused")))
    code = run_here(refused, ["go"])
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("NSQTOOLS_DEBUG", "1")
    assert run_here(refused, ["go"]) == code
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("\nnsqtools: refused\n")


@pytest.fixture
def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    "command",
    [
        [*NSQTOOLS, "--help"],
        program("print('x')"),
        program("raise OutputClosedError('closed')"),
    ],
)
def test_a_reader_that_went_away_means_death_by_sigpipe_without_a_word(
    command: list[str], closed_pipe: int
) -> None:
    done = run(*command, stdout=closed_pipe)
    os.close(closed_pipe)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize("body", ["print('x')", "os.write(1, b'x')"])
def test_a_full_disk_behind_stdout_is_one_line_and_a_failure(body: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*program(body), stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_with_stdout_closed_no_other_file_takes_its_place() -> None:
    body = "import socket; s = socket.socket(); assert s.fileno() > 2; os.write(1, b'x')"
    done = run("sh", "-c", '"$@" >&-', "sh", *program(body))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Bad file descriptor" in done.stderr


LOGS = """\
import logging
from nsqtools.cli import logs
from nsqtools.config import LogOptions
logs.configure(LogOptions())
for _ in range(100): logging.getLogger("nsqtools.x").error("x" * 1000)
print("data")
"""


@pytest.mark.parametrize(
    ("stderr", "end", "code"),
    [("2>&-", "return 0", 0), ("2>/dev/full", "raise ConfigError('x')", 2)],
)
def test_a_stderr_that_takes_nothing_costs_only_the_lines(stderr: str, end: str, code: int) -> None:
    body = f"sys.stderr.isatty()\n{LOGS}{end}"
    done = run("sh", "-c", f'"$@" {stderr}', "sh", *program(body))
    assert (done.returncode, done.stdout) == (code, "data\n")
