import os

import pytest

from tests.support.archiving import Clocks


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths, at that time, of what is synced."""
    paths: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return paths


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """The clocks by which files get old."""
    clocks = Clocks()
    monkeypatch.setattr("nsqtools.sinks.files.ages.uptime_ns", lambda: clocks.uptime)
    monkeypatch.setattr("nsqtools.sinks.files.ages.boot", lambda: clocks.boot)
    return clocks
