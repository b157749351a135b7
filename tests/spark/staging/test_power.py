"""A staging on a local disk when its process is killed, or the power fails, at any step."""

from __future__ import annotations

import contextlib
import random
import shutil
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.partitions import Sealed
from nsqtools.stores.mounted import LocalStore
from tests.support.disk import Disk
from tests.support.ledgers import (
    STREAM,
    Connection,
    Nsqd,
    claim_of,
    claimed,
    ids,
    planned,
    pull,
    segment,
)
from tests.support.ledgers import keys as keys_of
from tests.support.processes import Killed, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOST = "h"


class Worst(random.Random):
    """By whose choice nothing lasts that was not fsynced."""

    def choice(self, options: Any) -> Any:
        return options[0]


@contextlib.contextmanager
def disk_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "_use_fd_functions", False)  # they have no paths
        folder.mkdir()
        disk = Disk(folder, random.Random(0), lambda _: None)
        disk.make(HOST)
        disk.install(patch)
        try:
            yield disk
        finally:
            disk.release()
            shutil.rmtree(folder)


def store_on(disk: Disk, name: str = "staging") -> LocalStore:
    return LocalStore(f"{disk.root}/{HOST}/{name}")


def killed_at(disk: Disk, stop: int, work: Callable[[], object]) -> bool:
    """Whether a process was killed before it had done the work: at this change of the disk."""
    process, changes = Process("driver", HOST), count()
    process.on_end.append(lambda: disk.unlock_all(process))

    def on_call(process: Process, call: str, path: str) -> None:
        if next(changes) == stop:
            process.end()

    disk.on_call = [on_call]
    with contextlib.suppress(Killed):
        process.context.run(work)
    return not process.alive


class Query:
    """A query of batches of two partitions, its checkpoint and its sink, which last."""

    TOTAL = 8

    def __init__(self, disk: Disk) -> None:
        self.store = store_on(disk)
        self.nsqd = Nsqd(self.TOTAL)
        self.sink: dict[int, list[int]] = {}
        self.committed = 0

    def run(self) -> None:
        """One life of the process."""
        for number in list(self.nsqd.in_flight):
            self.nsqd.requeue(number)
        ledger = Ledger(self.store, STREAM)
        while True:
            batch = self.committed + 1
            ledger.clean(self.committed)
            plan = ledger.prepared(batch)
            if not (plan or self.nsqd.waiting):
                return
            plan = plan or planned(batch, partitions=2)
            ledger.prepare(plan)
            found = []
            for k in range(2):
                held = claim_of(ledger, plan, k)
                if not isinstance(held, Sealed):
                    held = pull(held, Connection(self.nsqd), 3)
                found += ids(held)
            assert self.sink.setdefault(batch, found) == found
            self.store.list("")  # at which it may be stopped before the commit
            self.committed = batch

    def check(self) -> None:
        assert sorted(self.nsqd.finished) == list(range(self.TOTAL))
        assert sorted(chain(*self.sink.values())) == list(range(self.TOTAL))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_stops_at_any_step_in_two_runs_lose_nothing_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None, full: bool
) -> None:
    """A process that is killed; with a seed, the power fails at the second stop, or at both."""
    stride = 61 if full else 211
    for first in count(seed or 0, 9 if full else 41):
        for second in count(first % stride, stride):
            with disk_at(tmp_path / "disk", monkeypatch) as disk:
                query = Query(disk)
                rng = random.Random(first + second) if seed else Worst()
                more = False
                for stop in (first, second):
                    more = killed_at(disk, stop, query.run)
                    if seed == 0 or (seed and stop == second):
                        disk.lose_power(HOST, rng)
                    if stop == first and not more:
                        assert first > 100
                        return
                query.run()
                query.check()
            if not more:
                break


def test_what_a_sibling_is_known_to_have_staged_is_there_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was stopped before it had synced that itself."""
    two = planned(partitions=2)
    for stop in count():
        with disk_at(tmp_path / "disk", monkeypatch) as disk:
            ledger = Ledger(store_on(disk), STREAM)
            process = Process("driver", HOST)
            process.context.run(ledger.prepare, two)
            claim, sibling = (process.context.run(claimed, ledger, two, k) for k in range(2))
            if not killed_at(disk, stop, lambda: sibling.add(segment(1))):  # noqa: B023
                assert stop > 3
                return
            disk.on_call.clear()
            finished = process.context.run(claim.staged, keys_of(1))
            disk.lose_power(HOST, Worst())
            assert claimed(ledger, two, 1).adopted().total() >= len(finished)


def test_a_file_in_a_new_directory_is_there_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"date=1/hour={hour}/file" for hour in (2, 3)]
    with disk_at(tmp_path / "disk", monkeypatch) as disk:
        store, process = store_on(disk, "lake"), Process("driver", HOST)
        process.context.run(store.put, names[0], b"one")
        process.context.run(store.put_if_absent, names[1], b"two")
        disk.lose_power(HOST, Worst())
        assert [store.get(name) for name in names] == [b"one", b"two"]
