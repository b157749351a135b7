from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import LockedError
from nsqtools.sinks.files.locks import Lock, obtain, open_locked
from tests.support.clock import elapse, virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD = """
import sys
from nsqtools.sinks.files.locks import Lock
print(Lock(sys.argv[1]).acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "archive.lock")


@contextmanager
def another_process(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_lock_is_taken_once_and_directories_are_made(path: str) -> None:
    first, second = Lock(path), Lock(path)
    assert first.acquire()
    assert first.held
    assert not second.acquire()
    assert not second.held


def test_taking_a_lock_again_that_is_held_changes_nothing(path: str) -> None:
    lock = Lock(path)
    assert lock.acquire()
    assert lock.acquire()
    lock.release()
    assert Lock(path).acquire()


def test_a_held_lock_names_its_process_and_a_released_one_is_gone(path: str) -> None:
    with Lock(path) as lock:
        assert Path(path).read_text() == f"{os.getpid()}\n"
        assert Lock(path).holder() == str(os.getpid())
    assert not lock.held
    assert not os.path.exists(path)
    lock.release()
    assert lock.holder() == ""


def test_a_named_lock_file_stays_and_its_directory_is_not_made(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        Lock(path, keep=True).acquire()
    Path(path).parent.mkdir()
    with Lock(path, keep=True):
        pass
    assert os.path.exists(path)
    assert Lock(path, keep=True).acquire()


def test_a_shorter_process_id_replaces_a_longer_one(path: str) -> None:
    Path(path).parent.mkdir()
    Path(path).write_text("1234567890123\n")
    lock = Lock(path)
    assert lock.acquire()
    assert lock.holder() == str(os.getpid())


def test_a_file_that_is_no_lock_file_keeps_its_text(path: str) -> None:
    Path(path).parent.mkdir()
    Path(path).write_text("records\n")
    with Lock(path, keep=True) as lock:
        assert lock.holder() == ""
    assert Path(path).read_text() == "records\n"


def test_the_error_names_the_file_the_process_and_the_way_out(path: str) -> None:
    with another_process(path) as process, pytest.raises(LockedError) as caught, Lock(path):
        pass
    locked = f"{path} is locked by process {process.pid}: try again when that has ended"
    assert str(caught.value) == locked
    assert str(Lock(path).refusal("go away")).endswith("try again when that has ended, or go away")


def test_without_a_process_id_the_error_says_another_process(path: str) -> None:
    held = open_locked(path, wait=False)
    assert held is not None
    with pytest.raises(LockedError, match="is locked by another process: "), Lock(path):
        pass
    os.close(held)


def test_the_lock_of_a_killed_process_is_free(path: str) -> None:
    with another_process(path) as process:
        assert not Lock(path).acquire()
        process.kill()
        process.wait()
        assert os.path.exists(path)
        assert Lock(path).acquire()


def test_a_lock_on_a_file_that_lost_its_name_meanwhile_does_not_count(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened by the second just before the first removes it."""
    first, second, third = Lock(path), Lock(path), Lock(path)
    assert first.acquire()
    flock = fcntl.flock

    def released_meanwhile(fd: int, how: int) -> None:
        first.release()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", released_meanwhile)
    assert second.acquire()
    assert not third.acquire()


def test_release_leaves_a_file_that_took_the_name(path: str) -> None:
    lock = Lock(path)
    assert lock.acquire()
    os.unlink(path)
    other = Lock(path)
    assert other.acquire()
    lock.release()
    assert os.path.exists(path)
    assert not Lock(path).acquire()


def test_a_full_disk_does_not_keep_the_lock_away(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert Lock(path).acquire()
    assert not Lock(path).acquire()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(
    path: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        Lock(path).acquire()
    assert (caught.value.errno, caught.value.filename) == (code, path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        Lock(str(tmp_path / "file" / "lock")).acquire()
    assert str(tmp_path / "file") in str(caught.value.filename)


def test_a_failed_attempt_leaves_no_descriptor_open(path: str) -> None:
    lock = Lock(path)
    assert lock.acquire()
    before = len(os.listdir("/dev/fd"))
    assert not Lock(path).acquire()
    assert len(os.listdir("/dev/fd")) == before


@virtual
async def test_obtain_without_waiting_raises(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = Lock(path)
    await obtain(lock, wait=False)
    with pytest.raises(LockedError, match=r", or wait for it with --wait-lock$"):
        await obtain(Lock(path), wait=False)


@virtual
async def test_obtain_waits_until_the_lock_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = Lock(path), Lock(path)
    await obtain(first, wait=True)
    waiting = asyncio.create_task(obtain(second, wait=True))
    await elapse(3600)
    assert not waiting.done()
    first.release()
    await elapse(0.5)
    assert waiting.done()
    assert second.held


@virtual
async def test_obtain_cancelled_holds_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = Lock(path), Lock(path)
    await obtain(first, wait=True)
    waiting = asyncio.create_task(obtain(second, wait=True))
    await elapse(1)
    waiting.cancel()
    first.release()
    await elapse(1)
    assert waiting.cancelled()
    assert not second.held
    assert Lock(path).acquire()
