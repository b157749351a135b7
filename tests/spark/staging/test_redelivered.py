"""Messages that come again: those that are staged are known, for as long as they may come."""

from __future__ import annotations

import errno
import os
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import OutputError
from nsqtools.spark.source.plans import BatchPlan, Quota
from nsqtools.spark.staging import redelivered
from nsqtools.spark.staging.ledger import Ledger
from tests.support.ledgers import (
    NSQD,
    SETTLED,
    STREAM,
    UNSETTLED,
    Actor,
    Memory,
    claimed,
    filled,
    keys,
    planned,
    segment,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.spark.staging.partitions import Claim
    from nsqtools.spark.staging.redelivered import MessageKey
    from nsqtools.stores.interface import Data

FIRST = planned(partitions=3)


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def ledger(store: Memory) -> Ledger:
    made = Ledger(store, STREAM)
    made.prepare(FIRST)
    return made


def kept(store: Memory) -> list[str]:
    return sorted(path for path in store.content if "/again-" in path)


def test_a_message_is_known_by_topic_nsqd_id_and_time(ledger: Ledger) -> None:
    quotas = [("t", NSQD), ("other", NSQD), ("t", "b:4150"), ("t", NSQD)]
    mixed = BatchPlan(STREAM, 2, tuple((Quota(*pair, 3),) for pair in quotas))
    later = BatchPlan(STREAM, 3, mixed.tasks)
    for batch in (mixed, later):
        ledger.prepare(batch)
    filled(ledger, [1], of=mixed, ending=UNSETTLED)
    (number,) = keys(1)
    topic, nsqd, name, at = number
    near = {(topic, nsqd, name, at + 1), (topic, nsqd, f"{2:016x}", at)}
    assert claimed(ledger, mixed, 3).staged(near | {number}) == {number}
    for k in (1, 2):
        assert claimed(ledger, later, k).staged({(*quotas[k], name, at)}) == set()
    assert claimed(ledger, later, 3).staged(near | {number}) == {number}
    ledger.clean(2)
    for k in (1, 2):
        assert claimed(ledger, later, k).staged({(*quotas[k], name, at)}) == set()
    assert claimed(ledger, later, 3).staged(near | {number}) == {number}


def test_the_last_rows_of_each_attempt_count_and_none_of_one_that_settled_all(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivered, "_TAIL", 3)
    for first in (0, 10, 20):
        claim = claimed(ledger, FIRST, 1)
        for number in range(first, first + 10, 2):
            claim.add(segment(number, number + 1))
        known = keys(*range(first + 6, first + 10))
        assert claim.staged(keys(*range(first, 30))) == known
    tails = {*range(6, 10), *range(16, 20), *range(26, 30)}
    assert claimed(ledger, FIRST).staged(keys(*range(30))) == keys(*tails)
    filled(ledger, [30], of=FIRST, k=1)
    later = planned(2)
    ledger.prepare(later)
    assert claimed(ledger, later).staged(keys(*range(20, 31))) == keys(*range(26, 30))


@pytest.mark.parametrize("removes", [True, False])
def test_what_was_read_and_may_be_unfinished_outlives_its_batch(
    ledger: Ledger, store: Memory, removes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the batch was removed or cannot be."""

    def delete(path: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    if not removes:
        monkeypatch.setattr(store, "delete", delete)
    claimed(ledger, FIRST).add(segment(1, 2))
    filled(ledger, [3], of=FIRST)
    filled(ledger, [4], of=FIRST, k=1, ending=UNSETTLED)
    claimed(ledger, FIRST, 2).add(segment(5))
    for batch in (2, 3):
        ledger.prepare(planned(batch))
        assert claimed(ledger, planned(batch)).staged(keys(*range(9))) == keys(1, 2, 4)
        ledger.clean(batch - 1)
        assert claimed(ledger, planned(batch)).staged(keys(*range(9))) == keys(1, 2, 4)
        filled(ledger, of=planned(batch))
    assert len(kept(store)) == 1


def test_the_newest_are_kept_up_to_a_number_of_keys_and_one_at_least(
    ledger: Ledger, store: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivered, "_MOST", 7)
    seen = {}
    for batch in range(2, 7):
        ledger.prepare(planned(batch))
        rows = range(20 * batch, 20 * batch + (12 if batch == 3 else 3))
        filled(ledger, rows, of=planned(batch), ending=UNSETTLED)
        ledger.clean(batch)
        seen[batch] = [int(path.split("-")[1]) for path in kept(store)]
    assert seen == {2: [2], 3: [3], 4: [4], 5: [4, 5], 6: [5, 6]}
    ledger.prepare(planned(7))
    assert claimed(ledger, planned(7)).staged(keys(61, 81, 101, 121)) == keys(101, 121)


def test_to_find_nothing_costs_a_listing_and_a_look_at_each_sibling(
    ledger: Ledger, store: Memory
) -> None:
    """However much is staged: a drain of requeued messages asks for each segment."""
    filled(ledger, [7], of=FIRST, ending=UNSETTLED)
    ledger.clean(1)
    for siblings in (0, 2):
        batch = planned(2 + siblings, 1 + siblings)
        ledger.prepare(batch)
        claim = claimed(ledger, batch)
        claim.staged(keys(99))
        for number in range(5):
            claim.add(segment(number))
            store.calls.clear()
            assert claim.staged(keys(99)) == set()
            assert store.calls == {"list": 1} | ({"get": siblings} if siblings else {})
        claim.seal(SETTLED)
        ledger.clean(batch.batch)


def test_a_batch_that_is_removed_while_it_is_looked_at_is_known_by_its_file(
    ledger: Ledger, store: Memory
) -> None:
    filled(ledger, [1], of=FIRST, ending=UNSETTLED)
    ledger.prepare(planned(2))
    found: list[set[MessageKey]] = []

    def look(client: Memory, claim: Claim, stall: Callable[[], None]) -> None:
        client.stall = stall
        found.append(claim.staged(keys(1)))

    for stop in count():
        copy = Memory()
        copy.content.update(store.content)
        client = Memory(copy)
        looking = Actor(partial(look, client, claimed(Ledger(client, STREAM), planned(2))))
        looking.step(stop)
        Ledger(copy, STREAM).clean(1)
        stopped = looking.alive
        looking.step()
        assert found.pop() == keys(1)
        if not stopped:
            assert stop > 10
            return


def test_a_damaged_batch_can_be_removed_and_a_damaged_file_of_it_is_named(
    ledger: Ledger, store: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in (1, 2):
        ledger.prepare(planned(batch, partitions=3))
        filled(ledger, [batch], of=planned(batch, partitions=3), ending=UNSETTLED)
    (path, *_) = (path for path, data in store.content.items() if b'"segment"' in data[:40])
    store.content[path] = store.content[path][:600]
    ledger.clean(1)
    assert "may be staged twice" in caplog.text
    assert path not in store.content
    ledger.clean(2)
    (path,) = kept(store)
    store.content[path] = b"what"
    ledger.prepare(planned(3))
    with pytest.raises(OutputError, match=path):
        claimed(ledger, planned(3)).staged(keys(1))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_made_room_on_though_what_comes_again_cannot_be_kept(
    ledger: Ledger, store: Memory, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    class Failing(Memory):
        def put_if_absent(self, path: str, data: Data) -> bool:
            if "/again-" in path:
                raise OSError(code, os.strerror(code), path)
            return super().put_if_absent(path, data)

    filled(ledger, [1], of=FIRST, ending=UNSETTLED)
    Ledger(Failing(store), STREAM).clean(1)
    goes = code != errno.EIO
    assert ("may be staged twice" in caplog.text) == goes
    assert os.strerror(code) in caplog.text
    assert any("/b0" in path for path in store.content) != goes
