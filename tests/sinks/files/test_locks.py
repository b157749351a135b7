import fcntl
import os
from pathlib import Path

import pytest

from nsqtools.errors import LockedError
from nsqtools.sinks.files.locks import Lock
from tests.support.neighbour import holding


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "archive.lock")


def test_a_lock_is_taken_once_names_its_process_and_is_gone_when_it_is_released(path: str) -> None:
    first, second = Lock(path), Lock(path)
    assert first.acquire()
    assert first.acquire()
    before = len(os.listdir("/dev/fd"))
    assert not second.acquire()
    assert (first.held, second.held) == (True, False)
    assert len(os.listdir("/dev/fd")) == before
    assert Path(path).read_text() == f"{os.getpid()}\n"
    assert second.holder() == str(os.getpid())
    first.release()
    first.release()
    assert not first.held
    assert not os.path.exists(path)
    assert second.holder() == ""
    assert second.acquire()


def test_a_named_lock_file_keeps_other_text_and_its_directory_is_not_made(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        Lock(path, keep=True).acquire()
    Path(path).parent.mkdir()
    Path(path).write_text("records\n")
    with Lock(path, keep=True) as lock:
        assert lock.holder() == ""
    assert Path(path).read_text() == "records\n"
    assert Lock(path, keep=True).acquire()


def test_the_error_names_the_file_and_the_process_until_that_is_killed(path: str) -> None:
    with holding(path) as process:
        with pytest.raises(LockedError, match=f"{path} .* process {process.pid}"), Lock(path):
            pass
        assert not Lock(path).acquire()
        process.kill()
        process.join()
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


def test_a_held_lock_whose_file_was_removed_is_taken_again_if_nobody_else_has(path: str) -> None:
    lock, other = Lock(path), Lock(path)
    assert lock.acquire()
    os.unlink(path)
    assert lock.acquire()
    assert not other.acquire()
    os.unlink(path)
    assert other.acquire()
    assert not lock.acquire()
    assert not lock.held
    assert os.path.exists(path)
