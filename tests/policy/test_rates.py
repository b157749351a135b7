"""Rates are what changed on nsqds that were there before, per second that really passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsqtools.policy.rates import Counters, CounterSample, Row
from nsqtools.policy.rates import Rates as RatesOfSamples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.policy.rates import ChannelKey

KEY = ("t", "c")
Said = tuple[int, dict[tuple[str, str], Counters]]


def sample(counters: Counters, *, start: int = 1) -> Said:
    return start, {KEY: counters}


class Rates:
    """Of nsqds that all answer at the same moments."""

    def __init__(self) -> None:
        self.rates = RatesOfSamples()

    def record(
        self, said: Mapping[str, tuple[int, Mapping[ChannelKey, Counters]] | None], *, now: float
    ) -> list[Row]:
        return self.rates.record(
            {name: CounterSample(now, *each) if each else None for name, each in said.items()}
        )


def only(rows: list[Row]) -> Row:
    (row,) = rows
    return row


def test_rates_are_per_second_of_the_time_between_the_answers_of_each_nsqd() -> None:
    rates = RatesOfSamples()

    def counted(at: float, messages: int, requeues: int = 0, timeouts: int = 0) -> CounterSample:
        return CounterSample(at, 1, {KEY: Counters(messages, requeues, timeouts)})

    rates.record({"a": counted(10.0, 100, 10, 20), "b": counted(10.5, 0)})
    row = only(rates.record({"a": counted(12.0, 300, 14, 28), "b": counted(14.5, 400)}))
    assert (row.ingress, row.egress, row.requeue_rate, row.timeout_rate) == (200.0, 200.0, 2.0, 4.0)
    assert row.measured == 2


def test_the_first_sample_has_sums_and_no_rates() -> None:
    samples = {
        "a": sample(Counters(1, 2, 3, 4, 5, 6, 7, 8)),
        "b": sample(Counters(10, 20, 30, 40, 50, 60, 70, 80, paused=True)),
    }
    row = only(Rates().record(samples, now=100.0))
    assert row == Row(*KEY, Counters(11, 22, 33, 44, 55, 66, 77, 88, paused=True), 2, 0)


@pytest.mark.parametrize(
    "held",
    [
        Counters(200, depth=40, backend_depth=30),  # the disk is part of the depth
        Counters(200, in_flight=40),
        Counters(200, deferred=40),
    ],
)
def test_what_is_still_held_has_not_left(held: Counters) -> None:
    rates = Rates()
    rates.record({"a": sample(Counters(100)), "b": sample(Counters(100))}, now=0.0)
    row = only(rates.record({"a": sample(held), "b": sample(Counters(200))}, now=10.0))
    assert (row.ingress, row.egress) == (20.0, 16.0)


@pytest.mark.parametrize(
    "again",
    [
        sample(Counters(200, 5, 5), start=2),
        sample(Counters(99, 5, 5)),
        sample(Counters(200, 4, 5)),
        sample(Counters(200, 5, 4)),
    ],
    ids=["another start", "messages fell", "requeues fell", "timeouts fell"],
)
def test_a_restarted_nsqd_begins_anew(again: tuple[int, dict[tuple[str, str], Counters]]) -> None:
    rates = Rates()
    rates.record({"a": sample(Counters(100, 5, 5)), "b": sample(Counters(100))}, now=0.0)
    row = only(rates.record({"a": again, "b": sample(Counters(110))}, now=1.0))
    assert (row.ingress, row.nodes) == (10.0, 2)
    begun = again[1][KEY]
    grown = Counters(begun.messages + 7, begun.requeues, begun.timeouts)
    rows = rates.record({"a": sample(grown, start=again[0]), "b": sample(Counters(110))}, now=2.0)
    assert only(rows).ingress == 7.0
    assert (row.measured, row.whole, only(rows).measured, only(rows).whole) == (1, False, 2, True)


def test_a_silent_nsqd_is_missing_from_what_it_had_and_begins_anew() -> None:
    rates = Rates()
    both = {"a": sample(Counters(100)), "b": sample(Counters(10))}
    rates.record(both, now=0.0)
    row = only(rates.record({"a": sample(Counters(101)), "b": None}, now=1.0))
    assert (row.totals.messages, row.nodes, row.missing, row.ingress) == (101, 1, 1, 1.0)
    row = only(rates.record({"a": None, "b": None}, now=2.0))
    assert (row.totals, row.nodes, row.missing, row.ingress) == (Counters(), 0, 2, None)
    row = only(rates.record({"a": None, "b": sample(Counters(500))}, now=3.0))
    assert (row.totals.messages, row.nodes, row.missing, row.ingress) == (500, 1, 1, None)


def test_an_nsqd_that_never_answered_is_missing_from_what_nsqlookupd_lists_for_it() -> None:
    rates, key = RatesOfSamples(), ("other", "c")
    answer = CounterSample(0.0, 1, {KEY: Counters(100), key: Counters(1)})
    first, second = rates.record({"a": answer, "b": None}, {"b": ("t", "gone")})
    assert (first.topic, first.nodes, first.missing) == ("other", 1, 0)
    assert (second.topic, second.nodes, second.missing) == ("t", 1, 1)
