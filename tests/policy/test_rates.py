"""Rates are what changed on nsqds that were there before, per second that really passed."""

from collections.abc import Mapping

import pytest

from nsqtools.policy.rates import Counters, CounterSample, Rates, Row

KEY = ("t", "c")
BEFORE = Counters(100, 5, 5)


def last(*rounds: Mapping[str, tuple[int, Counters] | None]) -> Row:
    """What is known of the channel after rounds of a second, of nsqds' starts and counters."""
    rates = Rates()
    for now, said in enumerate(rounds):
        (row,) = rates.record(
            {
                name: CounterSample(now, each[0], {KEY: each[1]}) if each else None
                for name, each in said.items()
            }
        )
    return row


def test_rates_are_per_second_of_the_time_between_the_answers_of_each_nsqd() -> None:
    rates = Rates()

    def counted(at: float, messages: int, requeues: int = 0, timeouts: int = 0) -> CounterSample:
        return CounterSample(at, 1, {KEY: Counters(messages, requeues, timeouts)})

    idle = counted(9.0, 5, 1, 1)
    rates.record({"a": counted(10.0, 100, 10, 20), "b": counted(10.5, 0), "c": idle})
    told = {"a": counted(12.0, 300, 14, 28), "b": counted(14.5, 400), "c": idle._replace(at=11.0)}
    (row,) = rates.record(told)
    assert (row.ingress, row.egress, row.requeue_rate, row.timeout_rate) == (200.0, 200.0, 2.0, 4.0)
    assert row.measured == 3


def test_the_first_sample_has_sums_and_no_rates() -> None:
    one, ten = Counters(1, 2, 3, 4, 5, 6, 7, 8), Counters(10, 20, 30, 40, 50, 60, 70, 80, True)
    totals = Counters(11, 22, 33, 44, 55, 66, 77, 88, paused=True)
    assert last({"a": (1, one), "b": (1, ten)}) == Row(*KEY, totals, 2, 0)


@pytest.mark.parametrize(
    "held",
    [
        Counters(200, depth=40, backend_depth=30),  # the disk is part of the depth
        Counters(200, in_flight=40),
        Counters(200, deferred=40),
    ],
)
def test_what_is_still_held_has_not_left(held: Counters) -> None:
    begun = (1, Counters(100))
    row = last({"a": begun, "b": begun}, {"a": (1, held), "b": (1, Counters(200))})
    assert (row.ingress, row.egress) == (200.0, 160.0)


@pytest.mark.parametrize(
    "again",
    [
        (2, Counters(200, 5, 5)),
        (1, Counters(99, 5, 5)),
        (1, Counters(200, 4, 5)),
        (1, Counters(200, 5, 4)),
        None,
    ],
    ids=["another start", "messages fell", "requeues fell", "timeouts fell", "silence"],
)
def test_an_nsqd_that_restarts_or_is_silent_begins_anew(again: tuple[int, Counters] | None) -> None:
    begun = again or (1, Counters(500))
    grown = begun[0], begun[1]._replace(messages=begun[1].messages + 4)
    rounds = [
        {"a": said, "b": (1, Counters(messages))}
        for said, messages in (((1, BEFORE), 100), (again, 110), (begun, 117), (grown, 120))
    ]
    row = last(*rounds[:2])
    assert (row.ingress, row.measured) == (10.0, 1)
    assert (row.nodes, row.missing) == ((2, 0) if again else (1, 1))
    assert last(*rounds[:3]).ingress == 7.0
    row = last(*rounds)
    assert (row.ingress, row.whole) == (7.0, True)


def test_who_is_silent_is_missing_from_what_it_had_and_from_what_is_listed_for_it() -> None:
    both = {"a": (1, BEFORE), "b": (1, BEFORE)}
    row = last(both, {"a": None, "b": None})
    assert (row.totals, row.nodes, row.missing, row.ingress) == (Counters(), 0, 2, None)
    answer = CounterSample(0.0, 1, {KEY: BEFORE, ("other", "c"): Counters(1)})
    first, second = Rates().record({"a": answer, "b": None}, {"b": ("t", "gone")})
    assert (first.topic, first.nodes, first.missing) == ("other", 1, 0)
    assert (second.topic, second.nodes, second.missing) == ("t", 1, 1)
