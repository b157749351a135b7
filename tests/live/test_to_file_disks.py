"""``to-file`` on small disks that fill up and are freed, and on two file systems at once."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import archives
from tests.support.disks import small_disk
from tests.support.eventually import eventually
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

DISK = 8 << 20
ROOM = 300_000  # what is left once the disk is filled, less than the archive of MESSAGES
MESSAGES = 20_000
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with small_disk(tmp_path / "disk", DISK) as folder:
        yield folder


def fill(disk: Path, *, leave: int) -> Path:
    """Take the room of a disk but for so many bytes; the file to delete for it."""
    free = os.statvfs(disk)
    ballast = disk / "ballast.torn"  # archives.published does not take it for one of ours
    ballast.write_bytes(b"\0" * max(0, free.f_bavail * free.f_bsize - leave))
    return ballast


def start(cli: Cli, told: Path, *command: str) -> subprocess.Popen[bytes]:
    with told.open("wb") as log:
        return cli.start(*command, stderr=log)


@pytest.mark.parametrize("method", ["none", "gzip", "zstd"])
def test_a_disk_that_fills_up_and_is_freed_loses_and_tears_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, disk: Path, method: str
) -> None:
    nsqd.create(topic, "c")
    told = tmp_path / "stderr"
    process = start(
        nsqtools_cli,
        told,
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(disk)),
        *("--compress", method, "--rotate-interval", "300ms", "--sync-interval", "50ms"),
        *("--filename-format", "<TOPIC><REV>.log", "--manifest", "manifest.json", *at(nsqd)),
        *("--consumer-opt", "max_backoff_duration,500ms"),
    )
    nsqd.publish(topic, archives.bodies(range(MESSAGES // 2)))
    eventually(lambda: written(disk))
    ballast = fill(disk, leave=ROOM if method == "none" else ROOM // 10)
    nsqd.publish(topic, archives.bodies(range(MESSAGES // 2, MESSAGES)))
    eventually(lambda: FULL in told.read_text())
    some = archives.numbers(written(disk))
    assert 0 < len(some) == some.total() < MESSAGES
    assert not drained(nsqd, topic, "c")
    assert process.poll() is None
    ballast.unlink()
    eventually(lambda: drained(nsqd, topic, "c"), timeout=60)
    process.terminate()
    assert process.wait(30) == 0, told.read_text()
    assert "written again" in told.read_text()
    assert "Traceback" not in told.read_text()
    files = written(disk)
    assert archives.numbers(files) == Counter(range(MESSAGES))
    assert archives.verified(nsqtools_cli, [*files, disk / "manifest.json"]) == 2 * MESSAGES
    archives.checked_by_programs(files)
    assert archives.leftovers(disk) == []


def written(folder: Path) -> list[Path]:
    return [path for path in archives.published(folder) if path.name != "manifest.json"]


@pytest.mark.parametrize("method", ["none", "zstd"])
def test_with_fail_fast_a_full_disk_is_status_1_and_the_next_run_goes_on(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, disk: Path, method: str
) -> None:
    nsqd.create(topic, "c")
    ballast = fill(disk, leave=ROOM if method == "none" else ROOM // 10)
    nsqd.publish(topic, archives.bodies(range(MESSAGES)))
    command = (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(disk)),
        *("--compress", method, "--filename-format", "<TOPIC><REV>.log", *empty(nsqd)),
    )
    failed = nsqtools_cli(*command, "--fail-fast")
    assert (failed.code, failed.stdout) == (1, b"")
    (line,) = failed.stderr.splitlines()
    assert line.startswith(f"nsqtools: {disk}/")
    assert line.endswith(FULL)
    ballast.unlink()
    ended = nsqtools_cli(*command)
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    assert archives.numbers(archives.published(disk)) == Counter(range(MESSAGES))
    archives.verified(nsqtools_cli, archives.published(disk))


@pytest.mark.parametrize("method", ["none", "zstd"])
def test_stopped_on_a_full_disk_it_publishes_what_is_whole_and_leaves_the_rest_to_nsqd(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, disk: Path, method: str
) -> None:
    nsqd.create(topic, "c")
    ballast = fill(disk, leave=ROOM if method == "none" else ROOM // 10)
    told = tmp_path / "stderr"
    command = (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(disk)),
        *("--compress", method, "--filename-format", "<TOPIC><REV>.log", "--rotate-size", "1MB"),
    )
    process = start(nsqtools_cli, told, *command, *at(nsqd))
    nsqd.publish(topic, archives.bodies(range(MESSAGES)))
    eventually(lambda: FULL in told.read_text())
    process.terminate()
    assert process.wait(30) in (0, 1)
    assert "Traceback" not in told.read_text()
    some = archives.numbers(archives.published(disk))
    assert 0 < len(some) == some.total() < MESSAGES
    assert archives.verified(nsqtools_cli, archives.published(disk)) == len(some)
    ballast.unlink()
    ended = nsqtools_cli(*command, *empty(nsqd))
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    assert archives.numbers(archives.published(disk)) == Counter(range(MESSAGES))
    assert archives.leftovers(disk) == []


@pytest.mark.parametrize("method", ["none", "gzip"])
def test_killed_on_a_full_disk_it_glues_nothing_to_what_was_torn(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, disk: Path, method: str
) -> None:
    nsqd = make_nsqd("-msg-timeout=2s")
    nsqd.create(topic, "c")
    ballast = fill(disk, leave=ROOM if method == "none" else ROOM // 10)
    told = tmp_path / "stderr"
    command = (
        *("to-file", "--topic", topic, "--channel", "c", "--output-dir", str(disk)),
        *("--compress", method, "--filename-format", "<TOPIC><REV>.log"),
    )
    process = start(nsqtools_cli, told, *command, *at(nsqd))
    nsqd.publish(topic, archives.bodies(range(MESSAGES)))
    eventually(lambda: FULL in told.read_text())
    process.kill()
    process.wait()
    ballast.unlink()
    ended = nsqtools_cli(*command, *empty(nsqd))
    assert (ended.code, ended.stdout) == (0, b""), ended.stderr
    found = archives.numbers(archives.published(disk))
    assert found.keys() == set(range(MESSAGES))
    assert found.total() - MESSAGES <= 2500
    assert archives.verified(nsqtools_cli, archives.published(disk)) == found.total()


@pytest.mark.parametrize("small", ["work", "output"])
def test_a_work_directory_on_another_file_system(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, disk: Path, small: str
) -> None:
    output, work = (
        (disk / "a", tmp_path / "w") if small == "output" else (tmp_path / "w", disk / "a")
    )
    nsqd.create(topic, "c")
    nsqd.publish(topic, archives.bodies(range(MESSAGES // 4)))
    ended = nsqtools_cli(
        *("to-file", "--topic", topic, "--channel", "c", "--gzip", "--rotate-size", "50KB"),
        *("--output-dir", str(output), "--work-dir", str(work), *empty(nsqd)),
    )
    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", "")
    files = archives.published(output)
    assert len(files) > 5
    assert archives.numbers(files) == Counter(range(MESSAGES // 4))
    archives.checked_by_programs(files)
    assert archives.leftovers(output, work) == []
    assert archives.published(work) == []


def test_a_full_output_directory_on_another_file_system_is_waited_for(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, disk: Path
) -> None:
    nsqd.create(topic, "c")
    output, work = disk / "output", tmp_path / "work"
    told = tmp_path / "stderr"
    ballast = fill(disk, leave=ROOM)
    process = start(
        nsqtools_cli,
        told,
        *("to-file", "--topic", topic, "--channel", "c", "--rotate-interval", "300ms"),
        *("--output-dir", str(output), "--work-dir", str(work), *at(nsqd)),
        *("--filename-format", "<TOPIC><REV>.log", "--sync-interval", "50ms"),
        *("--consumer-opt", "max_backoff_duration,500ms"),
    )
    nsqd.publish(topic, archives.bodies(range(MESSAGES)))
    eventually(lambda: FULL in told.read_text())
    some = archives.numbers(archives.published(output))
    assert some.total() < MESSAGES
    ballast.unlink()
    eventually(lambda: drained(nsqd, topic, "c"), timeout=60)
    process.terminate()
    assert process.wait(30) == 0, told.read_text()
    assert archives.numbers(archives.published(output)) == Counter(range(MESSAGES))
    assert archives.leftovers(output, work) == []
