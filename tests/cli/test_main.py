"""The program before its command is loaded."""

import runpy
import signal
import subprocess
import sys
from functools import partial
from resource import RLIMIT_NOFILE, setrlimit

import pytest


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (["to-file", "--topic", "t"], True),
        (["-q", "--config", "x", "to-file"], True),
        (["--config", "to-file", "tail"], False),
        (["tail", "--topic", "to-file"], False),
        ([], False),
    ],
)
def test_a_hangup_while_the_program_loads_is_ignored_for_to_file_alone(
    words: list[str], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    monkeypatch.setattr(sys, "argv", ["nsqtools", *words])
    try:
        runpy.run_module("nsqtools.__main__", run_name="loaded")
        assert (signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL) is waits
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(("limits", "code"), [((8, 8), 1), ((8, 64), 3)])
def test_too_few_open_files_are_an_error_of_one_line_unless_the_limit_may_be_raised(
    limits: tuple[int, int], code: int
) -> None:
    command = [sys.executable, "-m", "nsqtools", "stats", "--once", "--nsqd-http-address"]
    ended = subprocess.run(
        [*command, "127.0.0.1:1"],
        preexec_fn=partial(setrlimit, RLIMIT_NOFILE, limits),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert len(ended.stderr.splitlines()) == 1
    assert ("ulimit -n" in ended.stderr) is (code == 1)
