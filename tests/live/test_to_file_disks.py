"""``to-file`` on small disks that fill up and are freed, and on two file systems at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import archives
from tests.support.archives import Archiver
from tests.support.eventually import eventually
from tests.support.faults import fill, small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

ROOM = 150_000  # what is left once the disk is filled, less than the archive of MESSAGES
MESSAGES = 10_000
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4 << 20) as folder:
        yield folder


@pytest.fixture
def archiver(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, disk: Path) -> Archiver:
    """What writes to the small disk."""
    made = Archiver(nsqtools_cli, make_nsqd("-msg-timeout=1s"), topic, disk)
    made.make_known()
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What it says goes to another disk."""
    return tmp_path / "log"


def room(method: str) -> int:
    return ROOM if method == "none" else ROOM // 8


@pytest.mark.parametrize("method", ["none", "gzip", "zstd"])
def test_a_disk_that_fills_up_and_is_freed_loses_and_tears_nothing(
    archiver: Archiver, log: Path, disk: Path, method: str
) -> None:
    care = ("--manifest", str(disk / "manifest"), "--rotate-interval", "300ms")
    running = archiver.start("--compress", method, *care, log=log)
    archiver.numbers(MESSAGES // 2)
    eventually(lambda: archiver.files)
    ballast = fill(disk, leave=room(method) // 2)
    archiver.numbers(MESSAGES // 2, MESSAGES)
    running.says(FULL)
    some = archiver.found
    assert 0 < len(some) == some.total() < MESSAGES
    assert not archiver.is_drained
    assert running.process.poll() is None
    ballast.unlink()
    running.finish()
    assert "Traceback" not in running.said
    assert archiver.found == Counter(range(MESSAGES))
    archiver.check(MESSAGES, disk / "manifest")


@pytest.mark.parametrize("method", ["none", "zstd"])
@pytest.mark.parametrize("end", ["--fail-fast", "SIGTERM", "SIGKILL"])
def test_what_ends_on_a_full_disk_leaves_whole_files_and_the_next_run_goes_on(
    archiver: Archiver, log: Path, disk: Path, end: str, method: str
) -> None:
    how = ("--compress", method, "--rotate-size", "100KB")
    ballast = fill(disk, leave=room(method))
    archiver.numbers(MESSAGES)
    running = archiver.start(*how, *(("--fail-fast",) if end == "--fail-fast" else ()), log=log)
    running.says(FULL)
    if end == "SIGKILL":
        running.kill()
    elif end == "SIGTERM":
        code = running.end()
        assert code in (0, 1)  # as the last files could be published, or could not
    else:
        assert running.process.wait(100) == 1
        (line,) = running.said.splitlines()
        assert line.startswith(f"nsqtools: {disk}/")
        assert line.endswith(FULL)
    assert "Traceback" not in running.said
    some = archiver.found
    assert len(some) == some.total() < MESSAGES
    if end == "SIGTERM" and code == 0:
        held = archiver.nsqd.channel(archiver.topic, "c")
        left = sum(held[name] for name in ("depth", "in_flight_count", "deferred_count"))
        assert some.total() >= held["message_count"] - left
    ballast.unlink()
    ended = archiver.run(*how)
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    found = archiver.found
    assert found.keys() == set(range(MESSAGES))
    assert found.total() - MESSAGES <= (2500 if end == "SIGKILL" else 0)
    assert archives.verified(archiver.cli, archiver.files) == found.total()
    left = archives.leftovers(disk)
    assert {path.suffix for path in left} <= {".torn"}


@pytest.mark.parametrize("small", ["work", "output"])
def test_a_work_directory_on_another_file_system(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, disk: Path, small: str
) -> None:
    archiver = Archiver(nsqtools_cli, make_nsqd(), topic, disk if small == "output" else tmp_path)
    work = (tmp_path if small == "output" else disk) / "other"
    archiver.create()
    archiver.numbers(MESSAGES // 4)
    ended = archiver.run("--gzip", "--rotate-size", "20KB", "--work-dir", str(work))
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    assert len(archiver.files) > 5
    assert archiver.found == Counter(range(MESSAGES // 4))
    archiver.check(MESSAGES // 4)
    assert archives.leftovers(work) == archives.published(work) == []
