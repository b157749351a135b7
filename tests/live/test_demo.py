"""``demo`` as a process: nothing around it matters, and it leaves nothing behind, however it ends.

What it shows is compared with the picture in README.md by tests/test_readme.py.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from nsqtools.cli.commands.demo import steps
from tests.support.eventually import eventually
from tests.support.process import COMMAND, Cli

TIMEOUT = 180.0
PUBLISHED = re.compile(r"nsqtools: info: 5,000 messages published, [\d,]+ bytes, in \S+\n")
SANDBOX = "nsqtools sandbox --port 0"
PUBLISH, TAKE, DRAIN = (step.line for step in steps()[:3])


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
    assert (process.returncode, first) == (0, b"\n")
    assert PUBLISHED.fullmatch(stderr.decode())
    lines = [line[2:] for line in shown.decode().splitlines() if line.startswith("$ ")]
    assert lines == [SANDBOX, *(step.line for step in steps())]


@pytest.mark.parametrize(
    ("line", "signals", "wc", "code", "said"),
    [
        (SANDBOX, [signal.SIGINT] * 2, "", 130, ()),
        (PUBLISH, [signal.SIGTERM], "", 1, ("stopped",)),
        (TAKE, [], "", -signal.SIGPIPE, ()),  # the reader leaves
        ("", [], "echo 7", 1, (DRAIN, "'7', not 4997")),
        ("", [], "exit 9", 1, (DRAIN, "status 9")),
    ],
    ids=["SIGINT", "SIGTERM", "SIGPIPE", "other output", "failure"],
)
def test_however_it_ends_before_its_end_it_leaves_nothing_behind(
    nsqtools_cli: Cli,
    tmp_path: Path,
    line: str,
    signals: list[signal.Signals],
    wc: str,
    code: int,
    said: tuple[str, ...],
) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (program := tmp_path / "wc").write_text(f"#!/bin/sh\ncat >/dev/null; {wc}\n")
    program.chmod(0o755 if wc else 0o600)
    with (tmp_path / "err").open("wb") as stderr:
        demo = nsqtools_cli.start(
            "demo",
            env={"TMPDIR": str(scratch), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert demo.stdout
    assert not line or any(each.decode() == f"$ {line}\n" for each in demo.stdout)
    for number in signals:
        demo.send_signal(number)
    if code < 0:
        demo.stdout.close()
    else:
        demo.stdout.read()
    assert demo.wait(TIMEOUT) == code
    assert list(scratch.iterdir()) == []
    eventually(lambda: not in_session(demo.pid))
    told = PUBLISHED.sub("", (tmp_path / "err").read_text())
    assert bool(told) == bool(said)
    assert all(each in told for each in said)
