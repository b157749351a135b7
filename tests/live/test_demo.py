"""``demo`` as a process: what it shows, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.demo import steps
from tests.support.eventually import eventually
from tests.support.process import COMMAND
from tests.support.spark import java_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.process import Cli

PIPE = subprocess.PIPE
TIMEOUT = 180.0
PUBLISHED = "nsqtools: info: 5000 messages published\n"
LINES = ["nsqtools sandbox --port 0", *(step.line for step in steps())]
NO_JAVA = {"JAVA_HOME": "/nonexistent"}
"""Without the step that takes longer than all others together."""
DRAIN = "nsqtools tail --topic events --channel archive --until-empty | wc -l"


class Demo:
    """A demo that was started, with a folder of its own for temporary files."""

    def __init__(
        self, cli: Cli, scratch: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        scratch.mkdir()
        self._scratch = scratch
        self.process = cli.start(
            "demo",
            env={"TMPDIR": str(scratch), **(env or {})},
            stdout=PIPE,
            stderr=PIPE,
            bufsize=0,  # or what was read ahead would be lost to communicate()
            **({"cwd": cwd} if cwd else {}),
        )

    def read_until(self, line: str) -> None:
        """Wait until the demo has announced a command line."""
        assert self.process.stdout
        for shown in self.process.stdout:
            if shown.decode() == f"$ {line}\n":
                return
        raise AssertionError(f"{line} was not shown")

    def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of stdout, and stderr; all that it made must be gone."""
        stdout, stderr = self.process.communicate(timeout=TIMEOUT)
        self.check_nothing_is_left()
        return self.process.returncode, stdout.decode(), stderr.decode()

    def check_nothing_is_left(self) -> None:
        assert list(self._scratch.iterdir()) == []
        eventually(lambda: not in_session(self.process.pid), timeout=5)


def in_session(session: int) -> list[str]:
    """Processes of a session that live: the demo leads one, and groups of its own stay in it."""
    return [stat for stat in process_stats() if is_of(stat, session)]


def process_stats() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text()


def is_of(stat: str, session: int) -> bool:
    state, _parent, _group, its = stat.rpartition(")")[2].split()[:4]
    return int(its) == session and state not in "ZX"


def test_every_command_line_is_shown_and_does_its_job(nsqtools_cli: Cli, tmp_path: Path) -> None:
    env = {"JDK_JAVA_OPTIONS": java_options()}
    code, stdout, stderr = Demo(nsqtools_cli, tmp_path / "scratch", env=env).end()
    assert (code, stderr) == (0, PUBLISHED)
    assert [line[2:] for line in stdout.splitlines() if line.startswith("$ ")] == LINES
    drained = stdout.partition(f"$ {DRAIN}\n")[2]
    assert drained.partition("\n")[0] == "4997"
    archived = stdout.partition("$ gunzip -c lake/*.gz | wc -l\n")[2].splitlines()
    assert archived[:2] == ["5000", "$ nsqtools verify lake/*.gz"]
    assert re.fullmatch(r"lake/events\.\S+\.log\.gz: ok, 5000 records, \d+ bytes", archived[2])
    assert r'"body":"{\"user\": 42}"' in stdout


def test_surroundings_do_not_matter_nor_others_at_the_same_time(
    nsqtools_cli: Cli, tmp_path: Path
) -> None:
    broken = tmp_path / "config" / "nsqtools" / "config.toml"
    broken.parent.mkdir(parents=True)
    broken.write_text("this is [no TOML")
    variables = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "NSQTOOLS_CONFIG": str(broken),
        "NSQTOOLS_PROFILE": "none such",
        "NSQTOOLS_SANDBOX_RATE": "fast",
        "NSQTOOLS_NSQD_TCP_ADDRESS": "192.0.2.1:4150",
        "NSQTOOLS_TAIL_CHANNEL": "other",
        "HTTP_PROXY": "http://192.0.2.1:3128",
        **NO_JAVA,
    }
    with contextlib.ExitStack() as stack:
        for port in (4150, 4151, 4160, 4161):
            with contextlib.suppress(OSError):  # somebody else has it: taken all the same
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        demos = {
            "variables and a broken configuration file": Demo(
                nsqtools_cli, tmp_path / "variables", env=variables
            ),
            "a folder where nothing can be written": Demo(
                nsqtools_cli, tmp_path / "folder", env=NO_JAVA, cwd=Path("/proc")
            ),
        }
        ended = {name: demo.end() for name, demo in demos.items()}
    for name, (code, _, stderr) in ended.items():
        assert (name, code, stderr) == (name, 0, PUBLISHED)


@pytest.mark.parametrize("line", [LINES[0], LINES[1], DRAIN])
@pytest.mark.parametrize(
    ("number", "times", "code", "words"),
    [
        (signal.SIGINT, 1, 130, ""),
        (signal.SIGINT, 2, 130, ""),
        (signal.SIGTERM, 1, 1, "nsqtools: stopped by SIGTERM before the end\n"),
    ],
)
def test_a_signal_ends_it_with_all_that_it_started(
    nsqtools_cli: Cli,
    tmp_path: Path,
    line: str,
    number: signal.Signals,
    times: int,
    code: int,
    words: str,
) -> None:
    demo = Demo(nsqtools_cli, tmp_path / "scratch")
    demo.read_until(line)
    for _ in range(times):
        demo.process.send_signal(number)
    ended, _, stderr = demo.end()
    assert (ended, stderr.removeprefix(PUBLISHED)) == (code, words)


def test_with_stdin_closed_and_signals_ignored_it_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", NO_JAVA["JAVA_HOME"])
    command = shlex.join([*COMMAND, "demo"])
    with subprocess.Popen(
        ["sh", "-c", f"trap '' INT HUP; exec {command} <&-"],
        stdout=PIPE,
        stderr=PIPE,
        bufsize=0,
        cwd=tmp_path,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        stdout, stderr = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, stderr.decode()) == (0, PUBLISHED)
    assert stdout.count(b"$ ") == 1 + len(steps())


def test_a_reader_that_takes_one_line_ends_it_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f'{shlex.join(COMMAND)} demo | head -n 1; echo "${{PIPESTATUS[@]}}"'],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"\n141 0\n", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_in_the_middle_ends_it_quietly(
    nsqtools_cli: Cli, tmp_path: Path
) -> None:
    demo = Demo(nsqtools_cli, tmp_path / "scratch")
    demo.read_until("nsqtools tail --topic events --channel archive -n 3")
    assert demo.process.stdout
    assert demo.process.stderr
    demo.process.stdout.close()
    assert demo.process.wait(TIMEOUT) == -signal.SIGPIPE
    assert demo.process.stderr.read().decode() == PUBLISHED
    demo.check_nothing_is_left()


@pytest.mark.parametrize(
    ("wc", "words"),
    [
        ("cat >/dev/null; echo 7", f"'{DRAIN}' printed '7', not 4997"),
        ("cat >/dev/null; exit 9", f"'{DRAIN}' ended with exit status 9"),
    ],
)
def test_a_command_that_does_not_do_its_job_is_named(
    nsqtools_cli: Cli, tmp_path: Path, wc: str, words: str
) -> None:
    program = tmp_path / "bin" / "wc"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{wc}\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    code, _, stderr = Demo(nsqtools_cli, tmp_path / "scratch", env={"PATH": path}).end()
    assert (code, stderr) == (1, f"{PUBLISHED}nsqtools: {words}\n")
