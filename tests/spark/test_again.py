"""Messages that come again: those that are staged are known, for as long as they may come."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from nsqtools.errors import OutputError
from nsqtools.spark import again
from nsqtools.spark.ledger import Ledger
from nsqtools.spark.naming import Again
from nsqtools.spark.segments import Ending
from nsqtools.spark.stores import ArrowStore, LocalStore
from tests.support.hdfs import HdfsLike
from tests.support.ledgers import (
    SETTLED,
    STREAM,
    Memory,
    Stop,
    claimed,
    filled,
    ids,
    key,
    offset,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from nsqtools.spark.again import MessageKey

UNSETTLED = Ending(settled=False)


def hdfs() -> ArrowStore:
    return ArrowStore(fs.PyFileSystem(HdfsLike()))


@pytest.fixture(params=[LocalStore, hdfs])
def ledger(tmp_path: Path, request: pytest.FixtureRequest) -> Ledger:
    made = Ledger(request.param(), str(tmp_path), STREAM)
    made.prepare(offset(partitions=3))
    return made


def keys(numbers: Iterable[int]) -> set[MessageKey]:
    return {key(each) for each in numbers}


def unsettled(ledger: Ledger, numbers: Sequence[int], batch: int = 1, k: int = 0) -> None:
    """A partition whose attempt completed it, and may not have finished all."""
    claim = claimed(ledger, batch, k)
    claim.add(rows(numbers))
    claim.seal(UNSETTLED)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / STREAM).iterdir() if "again" in path.name)


def test_what_a_dead_attempt_has_staged_is_known_before_anybody_adopts_it(ledger: Ledger) -> None:
    claimed(ledger, k=1).add(rows([1, 2]))
    other = claimed(ledger, k=2)
    assert other.staged(keys(range(5))) == keys([1, 2])


def test_what_is_staged_in_the_attempts_own_partition_is_known(ledger: Ledger) -> None:
    claim = claimed(ledger)
    claim.add(rows([1]))
    assert claim.staged(keys([1, 2])) == keys([1])
    claim.add(rows([2]))
    assert claim.staged(keys([1, 2])) == keys([1, 2])


def test_a_message_is_known_by_all_of_its_key(ledger: Ledger) -> None:
    claim = claimed(ledger)
    claim.add(rows([1]))
    topic, channel, nsqd, message_id, at = key(1)
    near = {
        ("other", channel, nsqd, message_id, at),
        (topic, "other", nsqd, message_id, at),
        (topic, channel, "b:4150", message_id, at),
        (topic, channel, nsqd, f"{2:016x}", at),
        (topic, channel, nsqd, message_id, at + 1),
    }
    assert claim.staged(near) == set()
    assert claim.staged(near | keys([1])) == keys([1])


def test_what_was_written_but_not_counted_is_not_known(tmp_path: Path, ledger: Ledger) -> None:
    claim = claimed(ledger, k=1)
    claim.add(rows([1]))
    (counted,) = tmp_path.rglob("a-0001-000001-*")
    later = claimed(ledger, k=1)
    later.add(rows([2]))
    (folder,) = tmp_path.rglob("a-0002-000002-*")
    folder.rename(folder.with_name(counted.name))
    assert claimed(ledger).staged(keys([1, 2])) == keys([1])


def test_the_last_rows_of_each_attempt_are_known_and_of_one_that_settled_all_none(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "_TAIL", 3)
    for first in (0, 10, 20):
        claim = claimed(ledger, k=1)
        for number in range(first, first + 10, 2):
            claim.add(rows([number, number + 1]))
    assert claimed(ledger).staged(keys(range(30))) == keys(
        [*range(6, 10), *range(16, 20), *range(26, 30)]
    )
    claim = claimed(ledger, k=1)
    claim.add(rows([30]))
    claim.seal(SETTLED)
    assert claimed(ledger).staged(keys(range(20, 31))) == keys(range(26, 30))


@pytest.mark.parametrize("batches_later", [1, 40])
def test_what_may_be_unfinished_outlives_its_batch(
    tmp_path: Path, ledger: Ledger, batches_later: int
) -> None:
    claimed(ledger).add(rows([1, 2]))
    filled(ledger, [3])
    unsettled(ledger, [4], k=1)
    filled(ledger, [5], k=2)
    for batch in range(2, 2 + batches_later):
        ledger.prepare(offset(batch))
        ledger.clean(batch - 1)
        later = claimed(ledger, batch)
        assert later.staged(keys(range(9))) == keys([1, 2, 4])
        later.seal(SETTLED)
    assert len(files(tmp_path)) == 1
    assert not list(tmp_path.rglob("seg-*"))


def test_of_a_batch_that_ended_well_nothing_is_kept(tmp_path: Path, ledger: Ledger) -> None:
    filled(ledger, [1], k=0)
    filled(ledger, k=1)
    claimed(ledger, k=2)
    filled(ledger, [2], k=2)
    ledger.clean(1)
    assert files(tmp_path) == []


@pytest.mark.parametrize("cleaned", [False, True])
def test_what_nobody_has_read_before_the_commit_is_staged_when_it_comes_again(
    ledger: Ledger, cleaned: bool
) -> None:
    """Spark committed the batch without a partition whose attempt died before its FINs."""
    claimed(ledger).add(rows([1]))
    unsettled(ledger, [2], k=1)
    if cleaned:
        ledger.clean(1)
    ledger.prepare(offset(2))
    assert claimed(ledger, 2).staged(keys([1, 2])) == keys([2])


def test_what_may_be_unfinished_is_kept_once_however_often_a_batch_is_cleaned(
    tmp_path: Path, ledger: Ledger
) -> None:
    class Stuck(LocalStore):
        def rename(self, source: str, target: str) -> None:
            if "/done-" in target:
                raise PermissionError(errno.EACCES, "permission denied", source)
            super().rename(source, target)

    unsettled(ledger, [1])
    for _ in range(3):
        Ledger(Stuck(), str(tmp_path), STREAM).clean(1)
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("upto", [1, 2])
def test_an_older_driver_that_cleans_meanwhile_does_not_take_what_is_kept(
    tmp_path: Path, ledger: Ledger, upto: int
) -> None:
    """Of a batch that it knows it takes the file, which is then written again."""

    class Overtaken(LocalStore):
        def rename(self, source: str, target: str) -> None:
            if "/new-again-" in source and meanwhile:
                meanwhile.pop().clean(upto)
            super().rename(source, target)

    meanwhile = [ledger]
    filled(ledger, [9])
    ledger.prepare(offset(2))
    unsettled(ledger, [1], batch=2)
    Ledger(Overtaken(), str(tmp_path), STREAM).clean(2)
    assert not meanwhile
    ledger.prepare(offset(3))
    assert claimed(ledger, 3).staged(keys([1])) == keys([1])
    assert not list((tmp_path / STREAM).glob("b*2"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_made_room_on_though_what_comes_again_cannot_be_kept(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    class Failing(LocalStore):
        def write(self, path: str, data: bytes | pa.Buffer) -> None:
            raise OSError(error, os.strerror(error), path)

    unsettled(ledger, [1])
    Ledger(Failing(), str(tmp_path), STREAM).clean(1)
    goes = error != errno.EIO
    assert ("may be staged twice" in caplog.text) == goes
    assert os.strerror(error) in caplog.text
    assert bool(list(tmp_path.rglob("seg-*"))) != goes


def test_what_is_kept_is_synced_before_its_batch_gets_another_name(
    tmp_path: Path, ledger: Ledger
) -> None:
    steps = []

    class Recording(LocalStore):
        def rename(self, source: str, target: str) -> None:
            steps.append(target.rpartition("/")[2].partition("-")[0])
            super().rename(source, target)

        def sync_dir(self, path: str) -> None:
            steps.append("synced")

    unsettled(ledger, [1])
    Ledger(Recording(), str(tmp_path), STREAM).clean(1)
    assert steps == ["again", "synced", "done", "synced"]


def test_the_newest_are_kept_up_to_a_number_of_keys_and_one_at_least(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "_MOST", 7)
    torn, other = (tmp_path / STREAM / f"new-again-{batch:08}-5-{0:032x}.arrow" for batch in (1, 7))
    torn.write_bytes(b"torn")
    other.write_bytes(b"of a newer driver")
    kept = {}
    for batch in range(2, 7):
        ledger.prepare(offset(batch))
        unsettled(ledger, range(10 * batch, 10 * batch + (12 if batch == 3 else 3)), batch=batch)
        ledger.clean(batch)
        kept[batch] = [each.batch for each in map(Again.parse, files(tmp_path)) if each]
    assert kept == {2: [2], 3: [3], 4: [4], 5: [4, 5], 6: [5, 6]}
    assert not torn.exists()
    assert other.exists()
    ledger.prepare(offset(7))
    assert claimed(ledger, 7).staged(keys([31, 41, 51, 61])) == keys([51, 61])


class Busy(LocalStore):
    """Where something else happens before the n-th reading of a file."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)

    def read(self, path: str) -> pa.Buffer:
        if self.steps:
            self.steps.pop(0)()
        return super().read(path)


def test_a_partition_that_is_being_filled_can_be_looked_at(tmp_path: Path, ledger: Ledger) -> None:
    other = claimed(ledger, k=1)
    for number in range(4):
        other.add(rows([number]))
    moves = [lambda each=each: other.add(rows([each])) for each in range(4, 7)]
    store = Busy(*moves, lambda: other.seal(UNSETTLED))
    claim = claimed(Ledger(store, str(tmp_path), STREAM))
    assert claim.staged(keys(range(7))) == keys(range(7))
    assert not store.steps


def test_a_batch_that_is_removed_while_it_is_looked_at_is_known_by_its_file(
    tmp_path: Path, ledger: Ledger
) -> None:
    unsettled(ledger, [1])
    ledger.prepare(offset(2))
    store = Busy(lambda: None, lambda: ledger.clean(1))
    claim = claimed(Ledger(store, str(tmp_path), STREAM), 2)
    assert claim.staged(keys([1])) == keys([1])


def test_what_is_known_as_staged_is_there_after_a_power_failure() -> None:
    """Who counted it may be just about to sync that."""
    for stop in range(100):
        store = Memory()
        ledger = Ledger(store, "/staging", STREAM)
        ledger.prepare(offset(partitions=2))
        other, claim = claimed(ledger, k=1), claimed(ledger)
        store.stop_at, store.after = stop, True
        try:
            other.add(rows([1]))
        except Stop:
            pass
        else:
            assert stop > 3
            return
        store.stop_at = -1
        finished = claim.staged(keys([1]))
        store.fail(lambda _: 0)
        assert len(ids(filled(ledger, k=1))) >= len(finished)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, ledger: Ledger) -> None:
    unsettled(ledger, [1])
    ledger.clean(1)
    (name,) = files(tmp_path)
    (tmp_path / STREAM / name).write_bytes(b"what")
    ledger.prepare(offset(2))
    with pytest.raises(OutputError, match=name):
        claimed(ledger, 2).staged(keys([1]))


def test_a_damaged_batch_can_be_removed_all_the_same(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    unsettled(ledger, [1])
    (segment,) = tmp_path.rglob("seg-*")
    segment.write_bytes(b"what")
    ledger.clean(1)
    assert "may be staged twice" in caplog.text
    assert not list(tmp_path.rglob("seg-*"))
