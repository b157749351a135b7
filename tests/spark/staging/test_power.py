"""A staging on a local disk when its process is killed, or the power fails, at any step."""

from __future__ import annotations

import random
from itertools import chain, count
from typing import TYPE_CHECKING

import pytest

from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.partitions import Sealed
from nsqtools.stores.mounted import LocalStore
from tests.support.ledgers import (
    STREAM,
    Connection,
    Nsqd,
    Stop,
    claim_of,
    claimed,
    ids,
    offset,
    pull,
    segment,
)
from tests.support.ledgers import keys as keys_of
from tests.support.power import Disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Query:
    """A query of batches of two partitions, its checkpoint and its sink, which last."""

    TOTAL = 8

    def __init__(self, place: Path) -> None:
        self.place = str(place)
        self.nsqd = Nsqd(self.TOTAL)
        self.sink: dict[int, list[int]] = {}
        self.committed = 0

    def run(self) -> None:
        """One life of the process."""
        for number in list(self.nsqd.in_flight):
            self.nsqd.requeue(number)
        ledger = Ledger(LocalStore(self.place), STREAM)
        while True:
            batch = self.committed + 1
            ledger.clean(self.committed)
            planned = ledger.prepared(batch)
            if not (planned or self.nsqd.waiting):
                return
            planned = planned or offset(batch, partitions=2)
            ledger.prepare(planned)
            found = []
            for k in range(2):
                held = claim_of(ledger, planned, k)
                if not isinstance(held, Sealed):
                    held = pull(held, Connection(self.nsqd), 3)
                found += ids(held)
            assert self.sink.setdefault(batch, found) == found
            self.committed = batch

    def stopped_at(self, disk: Disk, stop: int) -> bool:
        disk.stop_at = stop
        try:
            self.run()
        except Stop:
            return True
        finally:
            disk.stop_at = -1
        return False

    def check(self) -> None:
        assert sorted(self.nsqd.finished) == list(range(self.TOTAL))
        assert sorted(chain(*self.sink.values())) == list(range(self.TOTAL))


def choices(seed: int) -> Callable[[], bool]:
    """Nothing lasts that was not fsynced, or some of it."""
    rng = random.Random(seed)
    return (lambda: False) if not seed else lambda: rng.random() < 0.5


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_stops_at_any_step_in_two_runs_lose_nothing_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None, full: bool
) -> None:
    """A process that is killed, or with a seed, a power failure."""
    stride = 61 if full else 149
    for first in count(0 if seed is None else seed, 9 if full else 29):
        for second in count(first % stride, stride):
            disk = Disk(tmp_path / f"{first}-{second}", monkeypatch)
            query = Query(disk.folder / "staging")
            more = False
            for stop in (first, second):
                more = query.stopped_at(disk, stop)
                if seed is not None:
                    disk.fail(choices(seed and seed + first + second))
                if stop == first and not more:
                    assert first > 100
                    return
            query.run()
            query.check()
            disk.close()
            if not more:
                break


def test_what_a_sibling_is_known_to_have_staged_is_there_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was stopped before it had synced that itself."""
    two = offset(partitions=2)
    for stop in count():
        disk = Disk(tmp_path / str(stop), monkeypatch)
        ledger = Ledger(LocalStore(str(disk.folder / "staging")), STREAM)
        ledger.prepare(two)
        claim, sibling = claimed(ledger, two), claimed(ledger, two, 1)
        disk.stop_at = stop
        try:
            sibling.add(segment(1))
        except Stop:
            disk.stop_at = -1
        else:
            assert stop > 3
            return
        finished = claim.staged(keys_of(1))
        disk.fail(lambda: False)
        assert claimed(ledger, two, 1).rows >= len(finished)
        disk.close()


def test_a_file_in_a_new_directory_is_there_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "disk", monkeypatch)
    store = LocalStore(str(disk.folder / "lake"))
    store.put("date=1/hour=2/file", b"one")
    assert store.put_if_absent("date=1/hour=3/file", b"two")
    disk.fail(lambda: False)
    assert sorted(file.path for file in store.files()) == [
        "date=1/hour=2/file",
        "date=1/hour=3/file",
    ]
    disk.close()
