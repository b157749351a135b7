"""The frame of the command line: what it loads, how it helps, and how a run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import IO

import click
import pytest
from click.testing import CliRunner

from nsqtools import __version__
from nsqtools.cli import COMMANDS, Entry, LazyGroup, cli
from nsqtools.cli.exits import Exit

ROOT = Path(__file__).parents[2]
NSQTOOLS = [sys.executable, "-m", "nsqtools"]
TRY = "Try 'nsqtools --help'.\n"


@click.command("sample", help="Print a sample.")
def sample() -> None:
    click.echo("a sample")


SAMPLES = LazyGroup(
    name="nsqtools",
    table={
        "sample": Entry(f"{__name__}:sample", "Print a sample.", "Consume"),
        "missing": Entry("no.such.module:x", "Never loaded.", "Look"),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(
    *command: str, env: dict[str, str] | None = None, stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "NSQTOOLS_DEBUG": "", "PYTHONUNBUFFERED": "", **(env or {})},
        cwd=ROOT,
        text=True,
        timeout=60,
        check=False,
    )


def program(body: str) -> list[str]:
    """A command line that runs ``nsqtools go`` with this as the body of ``go``."""
    return [
        sys.executable,
        "-c",
        "import asyncio, os, sys, click\n"
        "from nsqtools.cli.exits import Exit, run\n"
        "from nsqtools.errors import *\n"
        "from nsqtools.names import Address\n"
        "@click.group(name='nsqtools')\n"
        "def cli(): pass\n"
        "@cli.command()\n"
        f"def go():\n{indent(body, ' ')}\n"
        "sys.exit(run(cli, ['go']))\n",
    ]


def loaded(*args: str, env: dict[str, str] | None = None) -> set[str]:
    """Names of the modules that a run imports."""
    done = run(sys.executable, "-X", "importtime", "-m", "nsqtools", *args, env=env)
    assert done.returncode in (0, 2)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


HEAVY = {"asyncio", "httpx", "logging", "pyspark", "rich", "snappy", "ssl", "nsqtools.config"}
COMPLETING = {
    "_NSQTOOLS_COMPLETE": "bash_complete",
    "COMP_WORDS": "nsqtools t",
    "COMP_CWORD": "1",
}


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--help"], {}),
        (["--version"], {}),
        ([], {}),
        (["tial"], {}),
        ([], COMPLETING),
    ],
)
def test_help_version_and_completion_load_no_command(args: list[str], env: dict[str, str]) -> None:
    names = loaded(*args, env=env)
    assert "nsqtools.cli" in names
    assert not names & HEAVY
    assert not names & {entry.target.partition(":")[0] for entry in COMMANDS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=1000) == COMMANDS[name].help


def test_help_lists_every_command_under_its_section() -> None:
    done = CliRunner().invoke(cli, ["--help"])
    assert done.exit_code == 0
    for name, entry in COMMANDS.items():
        section = done.output.partition(f"\n{entry.section}:\n")[2].partition("\n\n")[0]
        assert f"  {name} " in section
        assert entry.help in section


@pytest.mark.parametrize("args", [["-h"], ["help"]])
def test_other_ways_to_ask_for_help(args: list[str]) -> None:
    assert CliRunner().invoke(cli, args).output == CliRunner().invoke(cli, ["--help"]).output


def test_help_before_a_command_is_help_after_it() -> None:
    wanted = CliRunner().invoke(SAMPLES, ["sample", "--help"])
    assert "Print a sample." in wanted.output
    assert CliRunner().invoke(SAMPLES, ["help", "sample"]).output == wanted.output
    assert CliRunner().invoke(SAMPLES, ["sample", "-h"]).output == wanted.output


def test_only_the_command_that_runs_is_loaded() -> None:
    done = CliRunner().invoke(SAMPLES, ["sample"])
    assert (done.exit_code, done.output) == (0, "a sample\n")
    assert "Never loaded." in CliRunner().invoke(SAMPLES, ["--help"]).output


def test_version_is_one_line() -> None:
    done = run(*NSQTOOLS, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nsqtools {__version__}\n", "")


def test_a_misspelt_command_gets_a_suggestion() -> None:
    done = run(*NSQTOOLS, "tial")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"nsqtools: No such command 'tial'. Did you mean 'tail'?\n{TRY}"


def test_without_a_command_the_help_goes_to_stderr() -> None:
    done = run(*NSQTOOLS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == run(*NSQTOOLS, "--help").stdout


def test_version_and_help_may_be_spelled_as_go_does() -> None:
    assert run(*NSQTOOLS, "-version").stdout == run(*NSQTOOLS, "--version").stdout
    assert run(*NSQTOOLS, "-help").stdout == run(*NSQTOOLS, "--help").stdout


def test_completion_lists_commands_with_their_help() -> None:
    words = {"COMP_WORDS": "nsqtools ta"}
    done = run(*NSQTOOLS, env={"_NSQTOOLS_COMPLETE": "zsh_complete", **words})
    assert done.returncode == 0
    assert done.stdout == f"plain\ttail\t{COMMANDS['tail'].help}\n"


def test_exit_codes_are_those_documented() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "DONE": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "PARTIAL": 4,
        "LOCKED": 75,
        "INTERRUPTED": 130,
        "PIPE_CLOSED": 141,
    }
    assert all(code.meaning.endswith((".", ").")) for code in Exit)


INTERNAL = ", please report; run with NSQTOOLS_DEBUG=1 for the traceback\n"


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("pass", 0, ""),
        ("return 4", 4, ""),
        ("raise click.exceptions.Exit(3)", 3, ""),
        ("raise KeyboardInterrupt", 130, ""),
        (
            "raise click.UsageError('no topic', click.get_current_context())",
            2,
            "nsqtools go: no topic\nTry 'nsqtools go --help'.\n",
        ),
        ("raise ConfigError('--topic: name one')", 2, "nsqtools: --topic: name one\n"),
        (
            "raise ConnectError('refused', Address('::1', 4150))",
            3,
            "nsqtools: [::1]:4150: refused\n",
        ),
        ("raise HTTPError('no answer')", 3, "nsqtools: no answer\n"),
        ("raise ConnectionLostError('gone')", 3, "nsqtools: gone\n"),
        ("raise PublishError('no', [0], permanent=True)", 1, "nsqtools: no\n"),
        (
            "raise ServerError('E_BAD \\x1b[31m\\nnsqtools: all is well')",
            3,
            "nsqtools: E_BAD \\x1b[31m\\nnsqtools: all is well\n",
        ),
        ("raise OutputError('x: full')", 1, "nsqtools: x: full\n"),
        ("open('/no/such')", 1, "nsqtools: /no/such: No such file or directory\n"),
        ("raise click.ClickException('text')", 1, "nsqtools: text\n"),
        (
            "{}['x']",
            1,
            "nsqtools: internal error: KeyError: 'x'" + INTERNAL,
        ),
        (
            "async def fail(): raise ConfigError('bad')\n"
            "async def main():\n"
            " async with asyncio.TaskGroup() as group: group.create_task(fail())\n"
            "asyncio.run(main())",
            2,
            "nsqtools: bad\n",
        ),
    ],
)
def test_an_outcome_has_its_exit_code_and_one_line(body: str, code: int, stderr: str) -> None:
    done = run(*program(body))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", stderr)


def test_a_traceback_is_shown_only_when_debugging() -> None:
    body = "raise AuthError('refused')"
    assert "Traceback" not in run(*program(body)).stderr
    done = run(*program(body), env={"NSQTOOLS_DEBUG": "1"})
    assert done.returncode == 3
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("\nnsqtools: refused\n")


def test_sigint_ends_a_command_silently_with_130() -> None:
    waiting = program("print('ready', flush=True); import signal; signal.pause()")
    with subprocess.Popen(
        waiting, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    "command",
    [
        [*NSQTOOLS, "--help"],
        [*NSQTOOLS, "--version"],
        program("os.write(1, b'x')"),
        program("print('x')"),
        program("raise OutputClosedError('closed')"),
        program("return Exit.PIPE_CLOSED"),
    ],
)
def test_a_reader_that_went_away_means_death_by_sigpipe_without_a_word(command: list[str]) -> None:
    pipe = closed_pipe()
    done = run(*command, stdout=pipe)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_shell_sees_141_when_the_reader_went_away() -> None:
    pipe = closed_pipe()
    done = run("sh", "-c", '"$@"; echo $? >&2', "sh", *NSQTOOLS, "--help", stdout=pipe)
    os.close(pipe)
    assert done.stderr == "141\n"


@pytest.mark.parametrize(
    "command", [[*NSQTOOLS, "--help"], program("print('x')"), program("os.write(1, b'x')")]
)
def test_a_full_disk_behind_stdout_is_one_line_and_a_failure(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*command, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "nsqtools: standard output: No space left on device\n"


def test_output_left_over_by_a_failed_command_does_not_hide_its_failure() -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*program("print('x')\nraise ConfigError('bad')"), stdout=full)
    assert (done.returncode, done.stderr) == (2, "nsqtools: bad\n")


def test_with_stdout_closed_no_other_file_takes_its_place() -> None:
    body = "import socket; s = socket.socket(); assert s.fileno() > 2; os.write(1, b'x')"
    done = run("sh", "-c", '"$@" >&-', "sh", *program(body))
    assert done.returncode == 1
    assert done.stderr == "nsqtools: standard output: Bad file descriptor\n"


@pytest.mark.parametrize(("body", "code"), [("return 4", 4), ("raise ConfigError('x')", 2)])
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_takes_nothing_does_not_change_the_exit_code(
    body: str, code: int, stderr: str
) -> None:
    done = run("sh", "-c", f'"$@" {stderr}', "sh", *program(f"sys.stderr.isatty()\n{body}"))
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("env", "colour"),
    [
        ({"NO_COLOR": "1"}, "False"),
        ({"TERM": "dumb"}, "False"),
        ({"NO_COLOR": "", "FORCE_COLOR": "1"}, "True"),
        ({}, "None"),
    ],
)
def test_colour_follows_the_environment(env: dict[str, str], colour: str) -> None:
    neutral = {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm"}
    done = run(*program("print(click.get_current_context().color)"), env={**neutral, **env})
    assert done.stdout == f"{colour}\n"
