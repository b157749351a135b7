"""The ledger: what was acknowledged is there, once, or the error says which file is not.

Crashes and races have files of their own.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import fs

from nsqtools.errors import OutputError
from nsqtools.spark.ledger import ROW_SCHEMA, FencedError, Ledger, Sealed, StaleError
from nsqtools.spark.stores import ArrowStore, LocalStore
from tests.support.hdfs import HdfsLike
from tests.support.ledgers import SETTLED, STREAM, claimed, counts, filled, ids, offset, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(LocalStore(), str(tmp_path), STREAM)
    made.prepare(offset())
    return made


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.rglob(pattern)
    return found


def sealed(ledger: Ledger) -> Sealed:
    found = ledger.claim(1, 0)
    assert isinstance(found, Sealed)
    return found


def is_stale(ledger: Ledger, batch: int = 1) -> bool:
    """Whether the batch cannot be had any more, nor be made again."""
    for use in (
        lambda: ledger.claim(batch, 0),
        lambda: ledger.prepare(offset(batch)),
        lambda: ledger.expect(offset(batch)),
    ):
        with pytest.raises(StaleError):
            use()
    return True


def test_a_sealed_partition_gives_the_rows_in_the_order_they_were_added(ledger: Ledger) -> None:
    claim = claimed(ledger)
    claim.add(rows([3, 1]))
    claim.add(rows([2]))
    assert claim.rows == 3
    assert ids(claim.seal(SETTLED)) == [3, 1, 2]
    assert sealed(ledger).rows == 3
    batches = list(sealed(ledger).batches())
    assert all(batch.schema.equals(ROW_SCHEMA) for batch in batches)
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([rows([3, 1]), rows([2])]))


def test_a_partition_of_no_rows_can_be_sealed(ledger: Ledger) -> None:
    assert ids(filled(ledger)) == ids(sealed(ledger)) == []


def test_a_claim_goes_on_where_the_attempt_before_was(tmp_path: Path, ledger: Ledger) -> None:
    """What that did not complete is removed."""
    claimed(ledger).add(rows([1, 2]))
    torn = only(tmp_path, "a-*") / "seg-000001-0001-5-deadbeef.arrow"
    torn.write_bytes(b"half")
    claim = claimed(ledger)
    assert claim.rows == 2
    claim.add(rows([3]))
    claim = claimed(ledger)
    assert claim.rows == 3
    assert ids(claim.seal(SETTLED)) == [1, 2, 3]
    assert len(list(tmp_path.rglob("*.arrow"))) == 2


def test_partitions_are_separate(ledger: Ledger) -> None:
    ledger.prepare(offset(2, partitions=2))
    assert ids(filled(ledger, [1], batch=2, k=1)) == [1]
    assert counts(ledger, 2, 2) == [0, 1]
    assert ids(filled(ledger, [2], [3], batch=2)) == [2, 3]
    assert counts(ledger, 2, 2) == [2, 1]


def test_an_overtaken_attempt_is_told_before_it_may_finish_anything(ledger: Ledger) -> None:
    first, second = claimed(ledger), claimed(ledger)
    with pytest.raises(FencedError):
        first.add(rows([1]))
    second.add(rows([1]))
    with pytest.raises(OutputError):
        first.seal(SETTLED)
    assert ids(second.seal(SETTLED)) == [1]


def test_an_overtaken_attempt_cannot_seal(ledger: Ledger) -> None:
    first = claimed(ledger)
    first.add(rows([1]))
    second = claimed(ledger)
    with pytest.raises(FencedError):
        first.seal(SETTLED)
    second.add(rows([2]))
    assert ids(second.seal(SETTLED)) == [1, 2]


def test_nothing_is_added_to_a_sealed_partition(ledger: Ledger) -> None:
    claim = claimed(ledger)
    claim.seal(SETTLED)
    with pytest.raises(OutputError, match="sealed"):
        claim.add(rows([1]))
    with pytest.raises(OutputError, match="sealed"):
        claim.seal(SETTLED)


def test_rows_of_another_schema_are_refused(ledger: Ledger) -> None:
    with pytest.raises(pa.ArrowInvalid):
        claimed(ledger).add(rows([1]).select(["topic"]))
    assert claimed(ledger).rows == 0


def test_prepare_leaves_what_is_there(ledger: Ledger) -> None:
    claim = claimed(ledger)
    claim.add(rows([1]))
    ledger.prepare(offset())
    claim.add(rows([2]))
    claim.seal(SETTLED)
    ledger.prepare(offset())
    with pytest.raises(OutputError, match="b00000001"):
        ledger.prepare(offset(partitions=2))
    assert ids(sealed(ledger)) == [1, 2]


def test_the_offset_of_a_batch_can_be_had_from_the_staging(ledger: Ledger) -> None:
    assert ledger.staged(1) == offset()
    assert ledger.staged(2) is None
    ledger.clean(1)
    assert ledger.staged(1) is None


def test_clean_removes_all_batches_up_to_one_and_keeps_one_name(
    tmp_path: Path, ledger: Ledger
) -> None:
    filled(ledger, [1])
    for batch in range(2, 6):
        ledger.prepare(offset(batch))
    for upto in (1, 4, 4):
        ledger.clean(upto)
    names = sorted(path.name for path in (tmp_path / STREAM).iterdir())
    assert [name[: len("done-00000004")] for name in names] == ["b00000005", "done-00000004"]
    assert not list((tmp_path / STREAM / names[1]).iterdir())
    assert not list(tmp_path.rglob("*.arrow"))
    assert all(is_stale(ledger, batch) for batch in (1, 3, 4))
    assert ids(filled(ledger, [2], batch=5)) == [2]


def test_to_clean_what_was_never_there_is_nothing(tmp_path: Path) -> None:
    Ledger(LocalStore(), str(tmp_path / "none"), STREAM).clean(3)
    assert not (tmp_path / "none").exists()


def test_batches_that_are_mapped_outlive_the_cleaning(ledger: Ledger) -> None:
    found = filled(ledger, [1, 2], [3])
    reading = found.batches()
    first = next(reading)
    ledger.clean(1)
    assert first.equals(rows([1, 2]))
    for gone in (reading, found.batches()):
        with pytest.raises(StaleError):
            next(gone)


def test_what_was_committed_without_all_of_its_rows_stays_and_is_told(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.prepare(offset(2, partitions=3))
    filled(ledger, [1], batch=2)
    claimed(ledger, 2, 1).add(rows([2]))
    claimed(ledger, 2, 2)
    with caplog.at_level(logging.WARNING):
        ledger.clean(2)
        ledger.prepare(offset(3))
        ledger.clean(3)
    (record,) = caplog.records
    kept = only(tmp_path, "unread-*")
    assert str(kept) in record.getMessage()
    assert "p0001" in record.getMessage()
    assert len(list(kept.rglob("seg-*"))) == 2
    assert all(is_stale(ledger, batch) for batch in (2, 3))


def test_a_driver_that_wakes_up_does_not_make_a_batch_anew_that_was_left_unread(
    tmp_path: Path, ledger: Ledger
) -> None:
    claimed(ledger).add(rows([1]))
    ledger.clean(1)
    assert is_stale(ledger)
    assert len(list(tmp_path.rglob("seg-*"))) == 1


def test_a_batch_that_spark_has_logged_is_here_or_was_staged_elsewhere(
    tmp_path: Path, ledger: Ledger
) -> None:
    ledger.expect(offset())
    other = Ledger(LocalStore(), str(tmp_path / "other"), STREAM)
    for prepared in (None, offset(2)):
        if prepared:
            other.prepare(prepared)
        with pytest.raises(OutputError, match="--staging"):
            other.expect(offset())
    with pytest.raises(OutputError, match="another offset"):
        ledger.expect(offset(partitions=2))


def test_a_batch_that_vanishes_does_not_keep_others_from_being_cleaned(tmp_path: Path) -> None:
    class Racing(LocalStore):
        def list(self, path: str) -> list[str]:
            if "/b0" in path:
                shutil.rmtree(tmp_path / STREAM / "b00000002", ignore_errors=True)
            return super().list(path)

    ledger = Ledger(Racing(), str(tmp_path), STREAM)
    for batch in (1, 2, 3):
        ledger.prepare(offset(batch))
    ledger.clean(3)
    assert not list((tmp_path / STREAM).glob("b*"))


def test_files_that_a_killed_driver_had_under_way_to_hdfs_are_removed(tmp_path: Path) -> None:
    ledger = Ledger(ArrowStore(fs.PyFileSystem(HdfsLike())), str(tmp_path), STREAM)
    ledger.prepare(offset())
    tag = f"{0:032x}-{1:032x}"
    ours = [tmp_path / f"tmp-{STREAM}-{0:032x}", tmp_path / STREAM / f"tmp-new-00000001-{tag}"]
    others = [tmp_path / f"tmp-{'f' * 32}-{0:032x}", tmp_path / STREAM / f"tmp-new-00000002-{tag}"]
    for path in ours + others:
        path.write_bytes(b"half")
    ledger.clean(1)
    assert [path.exists() for path in ours + others] == [False, False, True, True]


def test_what_cannot_be_removed_is_logged_and_removed_the_next_time(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    filled(ledger, [1])

    class Stuck(LocalStore):
        def remove(self, path: str) -> None:
            raise OSError(errno.EBUSY, "Device or resource busy", path)

    Ledger(Stuck(), str(tmp_path), STREAM).clean(1)
    assert "Device or resource busy" in caplog.text
    assert is_stale(ledger)
    ledger.clean(1)
    assert not list(tmp_path.rglob("*.arrow"))


def test_two_streams_share_a_staging_directory(tmp_path: Path, ledger: Ledger) -> None:
    other = Ledger(LocalStore(), str(tmp_path), "f" * 32)
    other.prepare(offset(stream="f" * 32))
    filled(ledger, [1])
    filled(other, [2])
    ledger.clean(1)
    assert ids(sealed(other)) == [2]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, empty, flip, remove])
def test_a_damaged_segment_is_an_error_that_names_it(
    tmp_path: Path, ledger: Ledger, damage: Callable[[Path], None]
) -> None:
    filled(ledger, [1], [2])
    file = only(tmp_path, "seg-000001-*")
    damage(file)
    reading = sealed(ledger).batches()
    assert next(reading).equals(rows([1]))
    with pytest.raises(OutputError, match=str(file)):
        next(reading)


@pytest.mark.parametrize("damage", [truncate, empty, remove])
@pytest.mark.parametrize("name", ["segments-*.json", "offset.json"])
def test_a_damaged_list_is_an_error_that_names_it(
    tmp_path: Path, ledger: Ledger, damage: Callable[[Path], None], name: str
) -> None:
    filled(ledger, [1])
    file = only(tmp_path, name)
    damage(file)
    with pytest.raises(OutputError, match=str(file.parent)):  # noqa: PT012 - either finds it
        ledger.prepare(offset())
        ledger.claim(1, 0)


def test_a_segment_that_is_missing_cannot_be_overlooked_by_who_adopts(
    tmp_path: Path, ledger: Ledger
) -> None:
    claim = claimed(ledger)
    for each in range(3):
        claim.add(rows([each]))
    only(tmp_path, "seg-000001-*").unlink()
    with pytest.raises(OutputError, match="segment 1 of 3"):
        ledger.claim(1, 0)


@pytest.mark.parametrize("name", ["p0000", "a-*"])
def test_a_partition_or_attempt_that_is_missing_is_not_taken_for_a_commit(
    tmp_path: Path, ledger: Ledger, name: str
) -> None:
    shutil.rmtree(only(tmp_path, name))
    with pytest.raises(OutputError, match="p0000") as refused:
        ledger.claim(1, 0)
    assert not isinstance(refused.value, StaleError)


def test_a_staging_directory_that_is_not_shared_is_not_taken_for_a_commit(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="elsewhere") as refused:
        Ledger(LocalStore(), str(tmp_path / "elsewhere"), STREAM).claim(1, 0)
    assert not isinstance(refused.value, StaleError)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel lets no file grow beyond it: EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_segment_that_does_not_fit_is_not_acknowledged_and_leaves_nothing(
    tmp_path: Path, ledger: Ledger
) -> None:
    claim = claimed(ledger)
    claim.add(rows([1]))
    with file_size_limit(1000), pytest.raises(OutputError, match=r"seg-000001-.*File too large"):
        claim.add(rows(range(100)))
    assert len(list(tmp_path.rglob("*.arrow"))) == 1
    with pytest.raises(OutputError):
        claim.add(rows([2]))
    assert ids(filled(ledger, [3])) == [1, 3]


def test_a_full_disk_found_by_fsync_alone_is_an_error_too(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(ledger)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match=r"seg-000000-.*No space left"):
            claim.add(rows([1]))
    assert not list(tmp_path.rglob("*.arrow"))
    assert ids(filled(ledger, [2])) == [2]
