"""``demo`` as a process: nothing around it matters, and it leaves nothing behind, however it ends.

What it shows is compared with the picture in README.md by tests/test_readme.py.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.commands.demo import steps
from tests.support.eventually import eventually
from tests.support.process import COMMAND

if TYPE_CHECKING:
    from tests.support.process import Cli

TIMEOUT = 180.0
PUBLISHED = "nsqtools: info: 5,000 messages published\n"
SANDBOX = "nsqtools sandbox --port 0"
PUBLISH, TAKE, DRAIN = (step.line for step in steps()[:3])


class Demo:
    """A demo that was started, with a folder of its own for temporary files."""

    def __init__(self, cli: Cli, folder: Path, *, stdout: int | None = None, **env: str) -> None:
        self._scratch, self.out, self._err = (folder / name for name in ("scratch", "out", "err"))
        self._scratch.mkdir()
        with self.out.open("wb") as out, self._err.open("wb") as err:
            self.process = cli.start(
                "demo", env={"TMPDIR": str(self._scratch), **env}, stdout=stdout or out, stderr=err
            )

    def read_until(self, line: str) -> None:
        """Wait until the demo has announced a command line."""
        eventually(lambda: f"$ {line}\n" in self.out.read_text(), TIMEOUT)

    def end(self) -> tuple[int, str]:
        """Exit code and errors; all that it made must be gone."""
        code = self.process.wait(TIMEOUT)
        assert list(self._scratch.iterdir()) == []
        eventually(lambda: not in_session(self.process.pid))
        return code, self._err.read_text().removeprefix(PUBLISHED)


def in_session(session: int) -> list[str]:
    """Processes of a session that live: the demo leads one, and groups of its own stay in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, its = path.read_text().rpartition(")")[2].split()[:4]
            if int(its) == session and state not in "ZX":
                found.append(path.parent.name)
    return found


def test_its_surroundings_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stdin, signals that are ignored, a folder for no files, and a wrong configuration."""
    broken = tmp_path / "config" / "nsqtools" / "config.toml"
    broken.parent.mkdir(parents=True)
    broken.write_text("this is [no TOML")
    for name, value in {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "NSQTOOLS_CONFIG": str(broken),
        "NSQTOOLS_PROFILE": "none such",
        "NSQTOOLS_SANDBOX_RATE": "fast",
        "NSQTOOLS_NSQD_TCP_ADDRESS": "192.0.2.1:4150",
        "NSQTOOLS_TAIL_CHANNEL": "other",
        "HTTP_PROXY": "http://192.0.2.1:3128",
        "JAVA_HOME": "/nonexistent",  # Spark takes longer than all else together
    }.items():
        monkeypatch.setenv(name, value)
    script = f"trap '' INT HUP; exec {shlex.join([*COMMAND, 'demo'])} <&-"
    with subprocess.Popen(
        ["sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/proc",
        bufsize=0,  # or what was read ahead would be lost to communicate()
    ) as process:
        assert process.stdout
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        shown, stderr = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, first, stderr.decode()) == (0, b"\n", PUBLISHED)
    lines = [line[2:] for line in shown.decode().splitlines() if line.startswith("$ ")]
    assert lines == [SANDBOX, *(step.line for step in steps())]


@pytest.mark.parametrize(
    ("line", "signals", "code"),
    [
        (SANDBOX, [signal.SIGINT] * 2, 130),
        (PUBLISH, [signal.SIGTERM], 1),
    ],
)
def test_a_signal_ends_it_with_all_that_it_started(
    nsqtools_cli: Cli, tmp_path: Path, line: str, signals: list[signal.Signals], code: int
) -> None:
    demo = Demo(nsqtools_cli, tmp_path)
    demo.read_until(line)
    for number in signals:
        demo.process.send_signal(number)
    ended, stderr = demo.end()
    assert ended == code
    assert ("stopped" in stderr) == bool(stderr) == (code == 1)


def test_a_reader_that_leaves_ends_it_quietly(nsqtools_cli: Cli, tmp_path: Path) -> None:
    demo = Demo(nsqtools_cli, tmp_path, stdout=subprocess.PIPE)
    assert demo.process.stdout
    assert any(line.decode() == f"$ {TAKE}\n" for line in demo.process.stdout)
    demo.process.stdout.close()
    assert demo.end() == (-signal.SIGPIPE, "")


@pytest.mark.parametrize(("does", "named"), [("echo 7", "'7', not 4997"), ("exit 9", "status 9")])
def test_a_command_that_does_not_do_its_job_is_named(
    nsqtools_cli: Cli, tmp_path: Path, does: str, named: str
) -> None:
    program = tmp_path / "bin" / "wc"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat >/dev/null; {does}\n")
    program.chmod(0o755)
    demo = Demo(nsqtools_cli, tmp_path, PATH=f"{program.parent}:{os.environ['PATH']}")
    code, stderr = demo.end()
    assert code == 1
    assert DRAIN in stderr
    assert named in stderr
