"""The ledger: what was acknowledged is there, once, or the error says which file is not."""

from __future__ import annotations

import errno
import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import OutputError
from nsqtools.spark.rows import ROW_SCHEMA
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.log import FencedError, StaleError
from nsqtools.stores.interface import UNNAMED
from nsqtools.stores.mounted import LocalStore
from tests.support.faults import broken, file_limit
from tests.support.ledgers import (
    SETTLED,
    STREAM,
    Memory,
    claim_of,
    claimed,
    filled,
    ids,
    planned,
    sealed,
    segment,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from nsqtools.spark.source.plans import BatchPlan


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(LocalStore(str(tmp_path)), STREAM)
    made.prepare(planned())
    return made


def names(folder: Path) -> set[str]:
    """In the folder of the stream."""
    return {path.name for path in (folder / STREAM).iterdir()}


def check_stale(ledger: Ledger, batch: BatchPlan) -> None:
    """The batch cannot be had any more, nor be made again."""
    for use in (
        lambda: claim_of(ledger, batch, len(batch.tasks) - 1),
        lambda: ledger.prepare(batch),
        lambda: ledger.expect(batch.offset),
    ):
        with pytest.raises(StaleError):
            use()


def test_a_sealed_partition_gives_its_rows_in_the_order_they_were_added(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Its own: neither those of the other partition nor of another stream in the place."""
    two, foreign = planned(2, partitions=2), planned(stream="f" * 32)
    other = Ledger(LocalStore(str(tmp_path)), foreign.stream)
    ledger.prepare(two)
    other.prepare(foreign)
    assert ids(filled(other, [9], of=foreign)) == [9]
    assert ids(filled(ledger, of=two, k=1)) == []
    assert [each.rows if each else None for each in ledger.complete(two)] == [None, 0]
    assert ids(filled(ledger, [3, 1], [2], of=two)) == [3, 1, 2]
    found = sealed(ledger, two)
    assert found.rows == ledger.rows() == 3
    batches = list(found.batches("c"))
    assert all(batch.schema.equals(ROW_SCHEMA) for batch in batches)
    assert batches[0].to_pylist()[0] == {
        "topic": "t",
        "channel": "c",
        "nsqd": "a:4150",
        "message_id": f"{3:016x}",
        "timestamp": datetime.fromtimestamp(0.003, UTC),
        "timestamp_ns": 3_000_000,
        "attempts": 1,
        "body": b"body 3",
    }
    ledger.clean(2)
    assert ids(sealed(other, foreign)) == [9]


def test_an_attempt_that_was_overtaken_or_has_failed_adds_and_seals_nothing_more() -> None:
    """What it had put without a response is there for the next one."""
    store = Memory()
    ledger = Ledger(store, STREAM)
    ledger.prepare(planned())
    first = claimed(ledger)
    store.fate = "lost"
    for _ in range(2):
        with pytest.raises(OutputError):
            first.add(segment(1))
    second = claimed(ledger)
    assert second.adopted().total() == 1
    third = claimed(ledger)
    for use in (lambda: second.add(segment(2)), lambda: first.seal(SETTLED)):
        with pytest.raises(OutputError):
            use()
    assert ids(third.seal(SETTLED)) == [1]
    with pytest.raises(OutputError, match="sealed"):
        third.add(segment(3))


def test_prepare_leaves_what_is_there(ledger: Ledger) -> None:
    filled(ledger, [1])
    ledger.prepare(planned())
    with pytest.raises(OutputError, match="another offset"):
        ledger.prepare(planned(partitions=2))
    assert ids(sealed(ledger)) == [1]
    assert ledger.prepared(1) == planned()
    assert ledger.prepared(2) is None


def test_clean_removes_batches_and_keeps_the_newest_marks(tmp_path: Path, ledger: Ledger) -> None:
    filled(ledger, [1])
    for batch in range(2, 21):
        ledger.prepare(planned(batch))
    ledger.clean(1)
    (tmp_path / STREAM / f"{UNNAMED}left").touch()  # by a process that was killed
    ledger.clean(19)
    ledger.clean(18)
    marks = {f"done-{batch:010d}" for batch in range(4, 20)}
    assert names(tmp_path) == marks | {f"b{20:010d}"}
    for batch in (1, 3, 4, 19):
        check_stale(ledger, planned(batch))
    assert names(tmp_path) == marks | {f"b{20:010d}"}
    assert ids(filled(ledger, [2], of=planned(20))) == [2]


def test_batches_that_are_mapped_outlive_the_cleaning(ledger: Ledger) -> None:
    found = filled(ledger, [1, 2], [3])
    reading = found.batches("c")
    first = next(reading)
    ledger.clean(1)
    assert first["body"].to_pylist() == [b"body 1", b"body 2"]
    with pytest.raises(StaleError):
        next(reading)


def test_what_was_committed_without_all_of_its_rows_stays_and_is_told(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    two = planned(2, partitions=3)
    ledger.prepare(two)
    filled(ledger, [1], of=two)
    late = claimed(ledger, two, 1)
    late.add(segment(2))
    claimed(ledger, two, 2)
    with caplog.at_level(logging.WARNING):
        ledger.clean(2)
        with pytest.raises(StaleError):
            late.add(segment(3))
        check_stale(ledger, two)
        ledger.prepare(planned(3))
        ledger.clean(3)
    (record,) = caplog.records
    assert f"{tmp_path}/{STREAM}/b{2:010d}" in record.getMessage()
    assert {f"b{2:010d}", f"unread-{2:010d}"} <= names(tmp_path)
    assert ledger.rows() == 2


def test_nobody_claims_a_partition_that_the_driver_has_ended_but_not_yet_marked() -> None:
    """An attempt that starts so late would finish messages, and their entries be removed."""
    store = Memory()
    ledger = Ledger(store, STREAM)
    ledger.prepare(planned())

    def start_late() -> None:
        ended = [path for path, data in store.content.items() if b'"end"' in data]
        if ended and not refused:
            with pytest.raises(StaleError) as error:
                claim_of(Ledger(Memory(store), STREAM), planned(), 0)
            refused.append(error.value)

    refused: list[StaleError] = []
    Ledger(Memory(store, start_late), STREAM).clean(1)
    assert refused


def test_a_staging_where_the_batch_is_not_prepared_is_not_taken_for_a_commit(
    tmp_path: Path,
) -> None:
    """Rows in a directory that executors do not share are lost to the others."""
    elsewhere = Ledger(LocalStore(str(tmp_path / "elsewhere")), STREAM)
    for use in (
        lambda: claim_of(elsewhere, planned(), 0),
        lambda: elsewhere.expect(planned().offset),
    ):
        with pytest.raises(OutputError, match="elsewhere") as refused:
            use()
        assert not isinstance(refused.value, StaleError)
    elsewhere.clean(3)
    assert not (tmp_path / "elsewhere").exists()


def test_what_cannot_be_removed_is_logged_and_removed_the_next_time(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    filled(ledger, [1])

    class Stuck(LocalStore):
        def delete(self, path: str) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    Ledger(Stuck(str(tmp_path)), STREAM).clean(1)
    assert os.strerror(errno.EBUSY) in caplog.text
    ledger.clean(1)
    assert names(tmp_path) == {f"done-{1:010d}"}


def flipped(data: bytes) -> bytes:
    """With a bit of the last part that counts changed."""
    place = data.rindex(b"}") - 1 if data[-1:] == b"}" else len(data) - 70
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda data: data[: len(data) // 2], lambda _: b""])
@pytest.mark.parametrize("file", ["p00000/00000002", "p00000/00000003", "offset"])
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, ledger: Ledger, damage: Callable[[bytes], bytes], file: str
) -> None:
    filled(ledger, [1], [2])
    path = tmp_path / STREAM / f"b{1:010d}" / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(OutputError, match=str(path)):
        list(sealed(ledger).batches("c"))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("seals", [False, True])
def test_an_entry_that_is_lost_is_missed_though_an_attempt_takes_its_name(
    tmp_path: Path, ledger: Ledger, seals: bool, number: int
) -> None:
    claimed(ledger).add(segment(1))
    claim = claimed(ledger)
    claim.add(segment(2))
    if seals:
        claim.seal(SETTLED)
    else:
        claimed(ledger)
    file = tmp_path / STREAM / f"b{1:010d}/p00000/{number:08d}"
    file.unlink()
    with pytest.raises(FencedError):
        claimed(ledger).add(segment(3))
    for _ in range(2):
        with pytest.raises(OutputError, match=str(file)):
            claimed(ledger)


@pytest.mark.parametrize(
    "no_space", [lambda: file_limit(1000), lambda: broken("fsync", errno.ENOSPC)]
)
def test_a_segment_that_does_not_fit_is_not_acknowledged_and_leaves_nothing(
    tmp_path: Path, ledger: Ledger, no_space: Callable[[], AbstractContextManager[None]]
) -> None:
    claim = claimed(ledger)
    claim.add(segment(1))
    before = sorted(tmp_path.rglob("*"))
    with no_space(), pytest.raises(OutputError, match=f"{tmp_path}.*00000002: "):
        claim.add(segment(*range(100)))
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(OutputError):
        claim.add(segment(2))
    assert ids(filled(ledger, [3])) == [1, 3]
