"""Attempts and drivers that overtake each other, and wake up when all is done."""

from __future__ import annotations

import shutil
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from nsqtools.spark.ledger import Claim, Ledger, StaleError
from nsqtools.spark.stores import ArrowStore, Store
from tests.support.hdfs import HdfsLike
from tests.support.ledgers import SETTLED, STREAM, Actor, Late, ids, offset, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeStore = Callable[[Callable[[], None]], Store]


def hdfs(stall: Callable[[], None]) -> Store:
    return ArrowStore(fs.PyFileSystem(HdfsLike(stall)))


both_stores = pytest.mark.parametrize("make", [Late, hdfs])


class Race:
    """Attempts on one partition that overtake each other at any point."""

    QUOTA = 2

    def __init__(self, folder: Path, make: MakeStore = Late) -> None:
        self.folder = str(folder)
        self._make = make
        self.acknowledged: list[int] = []
        self.read: list[list[int]] = []
        self._ids = count()
        self.ledger(lambda: None).prepare(offset())

    def ledger(self, stall: Callable[[], None]) -> Ledger:
        return Ledger(self._make(stall), self.folder, STREAM)

    def attempt(self) -> Actor:
        return Actor(self.work)

    def work(self, stall: Callable[[], None]) -> None:
        """As a task does: claim, add what was received, finish it, seal, read."""
        held = self.ledger(stall).claim(1, 0)
        if isinstance(held, Claim):
            while held.rows < self.QUOTA:
                received = next(self._ids)
                held.add(rows([received]))
                self.acknowledged.append(received)
            held = held.seal(SETTLED)
        self.read.append(ids(held))

    def check(self) -> None:
        """All who read saw the same: what was acknowledged, each row once, and nothing else."""
        self.attempt().step()
        assert sorted(self.read[0]) == sorted(self.acknowledged)
        assert len(self.acknowledged) == self.QUOTA
        assert all(each == self.read[0] for each in self.read)


@both_stores
def test_an_attempt_that_wakes_up_at_any_point_does_no_harm(
    tmp_path: Path, make: MakeStore
) -> None:
    """It is stopped at each point; another comes and is done with it all, or is stopped too."""
    for stop in count():
        for then in (None, 7, 11, 19):
            race = Race(tmp_path / f"{stop}-{then}", make)
            one, two = race.attempt(), race.attempt()
            one.step(stop)
            done = not one.alive
            two.step(then)
            one.step()
            two.step()
            race.check()
        if done:
            assert stop > 20
            return


def test_an_attempt_may_be_stopped_anywhere_and_its_successor_anywhere(
    tmp_path: Path, full: bool
) -> None:
    stride = 1 if full else 7
    for first in count():
        for second in count(first % stride, stride):
            race = Race(tmp_path / "race")
            one, two = race.attempt(), race.attempt()
            one.step(first)
            first_done = not one.alive
            two.step(second)
            second_done = not two.alive
            one.step()
            two.step()
            race.check()
            shutil.rmtree(race.folder)
            if second_done:
                break
        if first_done:
            assert first > 20
            return


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), max_size=40))
@settings(max_examples=50)
@both_stores
def test_any_interleaving_of_four_attempts_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, make: MakeStore, turns: list[tuple[int, int]]
) -> None:
    race = Race(tmp_path_factory.mktemp("race"), make)
    actors = [race.attempt() for _ in range(4)]
    for actor, steps in turns:
        actors[actor].step(steps)
    for each in actors:
        each.step()
    race.check()
    shutil.rmtree(race.folder)


@both_stores
def test_a_driver_that_wakes_up_after_a_commit_does_not_fill_the_batch_again(
    tmp_path: Path, make: MakeStore
) -> None:
    """It is stopped at each point of prepare; another driver finishes the batch meanwhile."""
    for stop in count():
        race = Race(tmp_path / str(stop), make)

        def driver(stall: Callable[[], None], race: Race = race) -> None:
            race.ledger(stall).prepare(offset())
            race.work(stall)

        late = Actor(driver)
        late.step(stop)
        if not late.alive:
            assert stop > 10
            return
        race.attempt().step()
        race.ledger(lambda: None).clean(1)
        late.step()
        assert set(race.acknowledged) <= set(race.read[0])
        assert len(race.read[0]) == race.QUOTA


@both_stores
@pytest.mark.parametrize("cleaner_first", [False, True])
def test_two_drivers_prepare_and_clean_at_once(
    tmp_path: Path, make: MakeStore, cleaner_first: bool
) -> None:
    """A batch that was committed is not to be had once both are through, at any interleaving."""
    for stop in count():
        race = Race(tmp_path / str(stop), make)

        def prepare(stall: Callable[[], None], race: Race = race) -> None:
            race.ledger(stall).prepare(offset())

        def clean(stall: Callable[[], None], race: Race = race) -> None:
            race.ledger(stall).clean(1)

        one, two = Actor(prepare), Actor(clean)
        if cleaner_first:
            one, two = two, one
        one.step(stop)
        done = not one.alive
        two.step()
        one.step()
        with pytest.raises(StaleError):
            race.ledger(lambda: None).claim(1, 0)
        if done:
            return
