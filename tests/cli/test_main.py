"""The program before its command is loaded."""

import runpy
import signal
import sys

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
