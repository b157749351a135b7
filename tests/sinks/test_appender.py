"""Messages appended to a queue: nsqd finds none of them or all, and what was there before."""

import fcntl
import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nsqtools.errors import ConfigError, LockedError, OutputError, RecordError
from nsqtools.records.diskqueue.decoder import encode
from nsqtools.sinks.appender import QueueAppender
from tests.support.diskqueues import QueueFiles, messages, numbers, push
from tests.support.faults import misreported
from tests.support.neighbour import killed

RECORD = len(encode(messages([0])))
NEW = [b"%d " % number for number in range(100, 103)]


def _fresh(_: QueueFiles) -> None:
    """A channel that had no message on disk yet."""


def _waiting(files: QueueFiles) -> None:
    files.write(4, messages([0, 1]))
    files.write(5, messages([2, 3]))
    files.point(3, (4, RECORD), (5, 2 * RECORD))


def _drained(files: QueueFiles) -> None:
    files.write(5, messages([2, 3]))
    files.point(0, (5, 2 * RECORD), (5, 2 * RECORD))


def _new_file(files: QueueFiles) -> None:
    """nsqd stores that it will begin a file, and begins it with the next message."""
    files.write(4, messages([0, 1]))
    files.point(1, (4, RECORD), (5, 0))


def _unclean(files: QueueFiles) -> None:
    """nsqd was killed before it stored how far it had written."""
    files.write(5, messages([0, 1, 2]))
    files.point(1, (5, 0), (5, RECORD))


SITUATIONS = {_fresh: [], _waiting: [1, 2, 3], _drained: [], _new_file: [1], _unclean: [0, 1, 2]}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueFiles:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill loses nothing that was written
    files = QueueFiles(tmp_path)
    files.make_known()
    return files


def names(files: QueueFiles) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in files.folder.iterdir()}


@pytest.mark.parametrize("prepare", SITUATIONS)
def test_messages_come_after_those_of_the_queue_and_a_kill_at_any_change_leaves_none_or_all(
    files: QueueFiles, prepare: Callable[[QueueFiles], None]
) -> None:
    outcomes: list[list[int]] = []
    was_killed = True
    while was_killed:
        for each in files.folder.glob("t:c.*"):
            each.unlink()
        prepare(files)
        was_killed = killed(partial(push, files.folder, NEW), len(outcomes))
        found, bad = files.as_nsqd_reads()
        outcomes.append(numbers(found))
        assert not bad
        push(files.folder, NEW)
        found, bad = files.as_nsqd_reads()
        assert (numbers(found), bad) == ([*outcomes[-1], 100, 101, 102], [])
        assert len({each.id for each in found}) == len(found)
        assert {each.attempts for each in found[-3:]} == {0}
        assert {name.rpartition(".")[2] for name in names(files)} <= {"dat", "old"}
        assert files.path("meta").stat().st_mode & 0o777 == 0o600
    none, all_of_them = SITUATIONS[prepare], [*SITUATIONS[prepare], 100, 101, 102]
    changed = outcomes.index(all_of_them)
    assert len(outcomes) > 10
    assert outcomes == [none] * changed + [all_of_them] * (len(outcomes) - changed)


@pytest.mark.parametrize("prepare", SITUATIONS)
def test_an_error_says_whether_nsqd_will_find_the_messages(
    files: QueueFiles, prepare: Callable[[QueueFiles], None]
) -> None:
    """Also if the call was done, as after a lost response of a server."""
    kinds = set()
    for at in itertools.count():
        for each in files.folder.glob("t:c.*"):
            each.unlink()
        prepare(files)
        kind: type[Exception] | None = None
        with misreported(at) as told:
            try:
                push(files.folder, NEW)
            except (OSError, OutputError) as error:
                kind = type(error)
        found, bad = files.as_nsqd_reads()
        new = [] if kind is OSError else [100, 101, 102]
        assert (numbers(found), bad) == ([*SITUATIONS[prepare], *new], []), (at, told)
        kinds.add(kind)
        if not told:
            assert kinds == {OSError, OutputError, None}
            return


def test_messages_are_synced_before_the_queue_has_them(
    files: QueueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqd gives a whole file up at the first record that is torn."""
    steps: list[tuple[str, int]] = []
    rename = os.rename

    def renamed(source: str, target: str) -> None:
        steps.append(("rename", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda fd: steps.append(("sync", os.fstat(fd).st_ino)))
    monkeypatch.setattr(os, "rename", renamed)
    push(files.folder, NEW)
    written = max(files.folder.glob("t:c.*.dat"), key=lambda path: path.stat().st_size)
    inode = written.stat().st_ino
    assert steps.index(("sync", inode)) < steps.index(("rename", inode))


def test_the_meta_file_that_was_replaced_is_kept_and_a_file_that_nsqd_has_read_is_not(
    files: QueueFiles,
) -> None:
    _drained(files)
    before = files.path("meta").read_bytes()
    push(files.folder, NEW)
    assert (files.folder / f"{files.path('meta').name}.old").read_bytes() == before
    assert not files.path(5).exists()


def test_the_depth_of_a_channel_without_a_queue_becomes_that_of_its_messages(
    files: QueueFiles,
) -> None:
    before = os.listdir("/proc/self/fd")
    push(files.folder, NEW)
    assert files.path("meta").read_bytes().startswith(b"%d\n" % len(NEW))
    push(files.folder, NEW)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_nothing_changes_without_messages_or_commit_or_in_a_dry_run(files: QueueFiles) -> None:
    _waiting(files)
    before = names(files)
    folder = str(files.folder)
    push(files.folder, [])
    with QueueAppender(folder, "t", "c") as queue:
        queue.add(NEW, [1, 2, 3])
    with QueueAppender(folder, "t", "c", dry_run=True) as queue:
        queue.add(NEW, [1, 2, 3])
        queue.commit()
        assert (queue.messages, queue.bytes) == (3, 3 * 34)
    assert names(files) == before


def test_nsqds_lock_is_respected_and_held(files: QueueFiles) -> None:
    lock = os.open(files.folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(LockedError):
        push(files.folder, NEW)
    fcntl.flock(lock, fcntl.LOCK_UN)
    with QueueAppender(str(files.folder), "t", "c"), pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


@pytest.mark.parametrize("name", ["t:other", "other:c", "t:c#ephemeral", "t#ephemeral:c", "a b:c"])
def test_only_channels_that_nsqd_knows_are_written_to(files: QueueFiles, name: str) -> None:
    before = names(files)
    with pytest.raises(ConfigError):
        push(files.folder, NEW, name)
    assert names(files) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"topics": [{}]}', '{"topics": null}', None])
def test_a_data_path_without_a_list_of_topics_is_left_alone(
    files: QueueFiles, text: str | None
) -> None:
    known = files.folder / "nsqd.dat"
    known.write_text(text or "")
    if text is None:
        known.unlink()
    with pytest.raises(ConfigError if text is None else RecordError):
        push(files.folder, NEW)


def _unknown_file(files: QueueFiles) -> None:
    """nsqd was killed after it had begun a file that meta does not know: it would overwrite it."""
    _waiting(files)
    files.write(6, messages([4]))


def _too_short(files: QueueFiles) -> None:
    _waiting(files)
    files.write(5, b"")


def _no_meta(files: QueueFiles) -> None:
    files.write(0, messages([0]))


def _reversed(files: QueueFiles) -> None:
    _waiting(files)
    files.point(0, (6, 0), (5, 0))


def _bad_meta(files: QueueFiles) -> None:
    files.write("meta", b"rubbish")


@pytest.mark.parametrize("prepare", [_unknown_file, _too_short, _no_meta, _reversed, _bad_meta])
def test_files_that_do_not_fit_together_are_left_alone(
    files: QueueFiles, prepare: Callable[[QueueFiles], None]
) -> None:
    prepare(files)
    before = names(files)
    with pytest.raises(RecordError):
        push(files.folder, NEW)
    assert names(files) == before


def test_links_are_neither_followed_nor_replaced(files: QueueFiles, tmp_path: Path) -> None:
    _waiting(files)
    target = tmp_path / "elsewhere"
    files.path(6).symlink_to(target)
    work = tmp_path / f"{files.path('meta').name}.push"
    work.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        push(files.folder, NEW)
    files.path(6).unlink()
    push(files.folder, NEW)
    assert not target.exists()
