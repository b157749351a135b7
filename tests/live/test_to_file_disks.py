"""``to-file`` on small disks that fill up and are freed, and on two file systems at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import archives
from tests.support.archives import Archiver
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


def test_to_fail_fast_on_a_full_disk_leaves_whole_files_and_the_next_run_goes_on(
    archiver: Archiver, log: Path, disk: Path
) -> None:
    how = ("--compress", "zstd", "--rotate-size", "100KB")
    ballast = fill(disk, leave=ROOM // 8)
    archiver.numbers(MESSAGES)
    running = archiver.start(*how, "--fail-fast", log=log)
    assert running.process.wait(100) == 1
    (line,) = running.said.splitlines()
    assert line.startswith(f"nsqtools: {disk}/")
    assert line.endswith(FULL)
    some = archiver.found
    assert len(some) == some.total() < MESSAGES
    ballast.unlink()
    ended = archiver.run(*how)
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    assert archiver.found == Counter(range(MESSAGES))
    assert archives.verified(archiver.cli, archiver.files) == MESSAGES
    assert {path.suffix for path in archives.leftovers(disk)} <= {".torn"}


def test_a_work_directory_on_another_file_system(archiver: Archiver, tmp_path: Path) -> None:
    work = tmp_path / "other"
    archiver.numbers(MESSAGES // 4)
    ended = archiver.run("--gzip", "--rotate-size", "20KB", "--work-dir", str(work))
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    assert len(archiver.files) > 5
    assert archiver.found == Counter(range(MESSAGES // 4))
    archiver.check(MESSAGES // 4)
    assert archives.leftovers(work) == archives.published(work) == []
