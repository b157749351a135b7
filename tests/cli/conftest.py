"""Fixtures for the tests of the command line."""

import os
from pathlib import Path

import pytest

from nsqtools.cli import cli
from nsqtools.cli.exits import run
from tests.support.process import Called, neutral


@pytest.fixture(autouse=True)
def _neutral(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables of whoever runs the tests."""
    for name in set(os.environ) - set(neutral()):
        monkeypatch.delenv(name)


@pytest.fixture
def nsqtools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Called:
    """Runs a command line in this process, in ``tmp_path``: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "xdg"))

    def call(*args: str) -> tuple[int, str, str]:
        code = run(cli, args)
        return code, *capsys.readouterr()

    return call
