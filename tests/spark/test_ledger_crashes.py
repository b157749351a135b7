"""The ledger when its process is killed, or the power fails, at any step."""

from __future__ import annotations

import contextlib
import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.spark.ledger import Claim, Ledger, Sealed, StaleError
from nsqtools.spark.naming import Holder
from tests.spark.ledgers import STREAM, Memory, Stop, claimed, filled, ids, offset, rows


class Nsqd:
    """Hands out again whatever was not finished, and knows what may come twice."""

    def __init__(self, total: int) -> None:
        self.waiting = list(range(total))
        self.finished: list[int] = []
        self.in_doubt: set[int] = set()


class Query:
    """A query of one batch: its checkpoint, its sink, and what both must be in the end."""

    QUOTA = 4

    def __init__(self) -> None:
        self.store = Memory()
        self.ledger = Ledger(self.store, "/staging", STREAM)
        self.nsqd = Nsqd(self.QUOTA)
        self.sink: list[int] = []
        self.committed = False

    def run(self) -> None:
        """One life of the process, which may be stopped at any step of its store."""
        if not self.committed:
            self.ledger.prepare(self.ledger.staged(1) or offset())
            held = self.ledger.claim(1, 0)
            sealed = self._fill(held) if isinstance(held, Claim) else held
            self.sink = ids(sealed)
            self.committed = True
        self.ledger.clean(1)

    def _fill(self, claim: Claim) -> Sealed:
        nsqd = self.nsqd
        while claim.rows < self.QUOTA and nsqd.waiting:
            segment = nsqd.waiting[: min(2, self.QUOTA - claim.rows)]
            before = self._counted()
            try:
                claim.add(rows(segment))
            except Stop:
                if self._counted() > before:
                    nsqd.in_doubt.update(segment)
                raise
            del nsqd.waiting[: len(segment)]
            nsqd.finished += segment
        return claim.seal()

    def _counted(self) -> int:
        holder = Holder.latest(self.store.peek(f"/staging/{STREAM}/b00000001/p0000"))
        assert holder
        return holder.segments

    def check(self) -> None:
        """Nothing finished is missing, and nothing is there twice that need not be."""
        assert self.committed
        assert set(self.nsqd.finished) <= set(self.sink)
        twice = [each for each in set(self.sink) if self.sink.count(each) > 1]
        assert set(twice) <= self.nsqd.in_doubt
        assert len(self.sink) == self.QUOTA
        with pytest.raises(StaleError):
            self.ledger.prepare(offset())


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
def test_a_crash_at_any_step_and_another_at_any_step_of_the_next_run_lose_nothing(
    power_fails: bool,
) -> None:
    for first in count():
        for second in count():
            query = Query()
            if not stopped_at(first, after=False, query=query):
                assert first > 30
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


@pytest.mark.parametrize("seed", range(8))
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
        assert ids(claim.seal())[-1] == 2
        if not stopped:
            assert claim.rows == 2
            return


@given(st.integers(0, 20), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
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
    assert query.sink == query.nsqd.finished == list(range(Query.QUOTA))


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=5),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_any_number_of_crashes_of_any_kind_loses_nothing(
    crashes: list[tuple[int, bool, bool]], keeps_all: bool, rng: random.Random
) -> None:
    """Also where nothing that a dead attempt left can be removed."""
    query = Query()
    query.store.keeps_all = keeps_all
    for stop, after, power_fails in crashes:
        stopped_at(stop, after=after, query=query)
        if power_fails:
            query.store.fail(rng.randrange)
    query.run()
    query.check()
