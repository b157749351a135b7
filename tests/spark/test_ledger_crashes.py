"""The ledger when its process is killed, or the power fails, at any step."""

from __future__ import annotations

import contextlib
import random
from itertools import chain, count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.spark.ledger import Claim, Ledger, Sealed, StaleError
from nsqtools.spark.segments import Ending
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
    from collections.abc import Iterable


class Nsqd:
    """Hands out again whatever was not finished."""

    def __init__(self, total: int) -> None:
        self.waiting = list(range(total))
        self.finished: list[int] = []
        self.delivered: set[int] = set()

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Messages, and those of them that come again; they wait still, until ``finish``."""
        taken = self.waiting[:count]
        again = [each for each in taken if each in self.delivered]
        self.delivered.update(taken)
        return taken, again

    def finish(self, taken: list[int]) -> None:
        del self.waiting[: len(taken)]
        self.finished += taken


class Query:
    """A query of two batches of two partitions: its checkpoint, its sink, and what they must be.

    ``unsettled`` has partitions, numbered through all batches, whose last FINs nsqd does not see.
    """

    TOTAL = 6
    QUOTA = 2

    def __init__(self, unsettled: Iterable[int] = ()) -> None:
        self.unsettled = set(unsettled)
        self.store = Memory()
        self.ledger = Ledger(self.store, "/staging", STREAM)
        self.nsqd = Nsqd(self.TOTAL)
        self.sink: dict[int, list[int]] = {}
        self.committed = 0

    def run(self) -> None:
        """One life of the process, which may be stopped at any step of its store."""
        self.nsqd.waiting.sort(key=lambda each: each in self.nsqd.delivered)  # they come last
        while self.nsqd.waiting or self.ledger.staged(self.committed + 1):
            batch = self.committed + 1
            self.ledger.clean(self.committed)
            planned = self.ledger.staged(batch) or offset(batch, partitions=2)
            self.ledger.prepare(planned)
            self.ledger.expect(planned)
            found = []
            for k in range(2):
                held = self.ledger.claim(batch, k)
                sealed = self._fill(held, 2 * batch + k) if isinstance(held, Claim) else held
                found += ids(sealed)
            self.sink[batch] = found
            self.committed = batch
        self.ledger.clean(self.committed)

    def _fill(self, claim: Claim, number: int) -> Sealed:
        left = self.QUOTA - claim.rows
        while left > 0 and self.nsqd.waiting:
            taken, again = self.nsqd.take(1)
            staged = claim.staged({key(each) for each in again})
            fresh = [each for each in taken if key(each) not in staged]
            if fresh:
                claim.add(rows(fresh))
            left -= len(taken)
            if not left and number in self.unsettled:
                self.unsettled.remove(number)
                return claim.seal(Ending(settled=False))
            self.nsqd.finish(taken)
        return claim.seal(SETTLED)

    def check(self) -> None:
        """Nothing is missing, and nothing is there twice."""
        assert sorted(self.nsqd.finished) == list(range(self.TOTAL))
        assert sorted(chain(*self.sink.values())) == list(range(self.TOTAL))
        with pytest.raises(StaleError):
            self.ledger.prepare(offset(self.committed, partitions=2))


def stopped_at(stop: int, *, after: bool, query: Query) -> bool:
    query.store.stop_at, query.store.after = stop, after
    try:
        query.run()
    except Stop:
        return True
    finally:
        query.store.stop_at = -1
    return False


@pytest.mark.parametrize("power_fails", [False, True])
def test_a_crash_at_any_step_and_another_in_the_next_run_lose_nothing_and_double_nothing(
    power_fails: bool, full: bool
) -> None:
    stride = 23 if full else 61
    for first in count():
        for second in count(first % stride, stride):
            query = Query(unsettled={2})
            if not stopped_at(first, after=False, query=query):
                assert first > 60
                return
            if power_fails:
                query.store.fail(lambda _: 0)
            stopped = stopped_at(second, after=True, query=query)
            if power_fails:
                query.store.fail(lambda _: 0)
            query.run()
            query.check()
            if not stopped:
                break


@pytest.mark.parametrize("seed", range(4))
def test_what_a_power_failure_undoes_is_not_taken_for_what_came_after_it(seed: int) -> None:
    """Files of an attempt may be there still when the name that it gave the directory is not."""
    rng = random.Random(seed)
    for stop in count():
        store = Memory()
        store.keeps_all = True
        ledger = Ledger(store, "/staging", STREAM)
        ledger.prepare(offset())
        store.stop_at = stop
        stopped = True
        with contextlib.suppress(Stop):
            claimed(ledger).add(rows([1]))
            stopped = False
        store.stop_at = -1
        store.fail(rng.randrange)
        claimed(ledger).add(rows([2]))
        claim = claimed(ledger)
        assert ids(claim.seal(SETTLED))[-1] == 2
        if not stopped:
            assert claim.rows == 2
            return


@given(st.integers(0, 20), st.randoms(use_true_random=False))
def test_a_batch_that_is_being_cleaned_when_the_power_fails_is_all_there_or_gone(
    stop: int, rng: random.Random
) -> None:
    store = Memory()
    ledger = Ledger(store, "/staging", STREAM)
    for batch in (1, 2):
        ledger.prepare(offset(batch))
        filled(ledger, [batch], [10 + batch], batch=batch)
    store.stop_at = stop
    with contextlib.suppress(Stop):
        ledger.clean(2)
    store.stop_at = -1
    store.fail(rng.randrange)
    for batch in (1, 2):
        with contextlib.suppress(StaleError):
            ledger.prepare(offset(batch))
            held = ledger.claim(batch, 0)
            assert isinstance(held, Sealed)
            assert ids(held) == [batch, 10 + batch]


def test_without_a_crash_every_message_is_there_once() -> None:
    query = Query()
    query.run()
    query.check()
    assert query.sink == {1: [0, 1, 2, 3], 2: [4, 5]}


@pytest.mark.parametrize("unsettled", [[2], [3], [2, 3, 4]])
def test_what_nsqd_was_not_seen_to_finish_is_there_once(unsettled: list[int]) -> None:
    query = Query(unsettled)
    query.run()
    query.check()


@given(
    st.lists(st.tuples(st.integers(0, 220), st.booleans(), st.booleans()), max_size=5),
    st.booleans(),
    st.sets(st.integers(2, 9)),
    st.randoms(use_true_random=False),
)
def test_any_number_of_crashes_of_any_kind_loses_nothing_and_doubles_nothing(
    crashes: list[tuple[int, bool, bool]], keeps_all: bool, unsettled: set[int], rng: random.Random
) -> None:
    """Also where nothing that a dead attempt left can be removed."""
    query = Query(unsettled)
    query.store.keeps_all = keeps_all
    for stop, after, power_fails in crashes:
        stopped_at(stop, after=after, query=query)
        if power_fails:
            query.store.fail(rng.randrange)
    query.run()
    query.check()
