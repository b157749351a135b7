"""What a check finds in rows and peers."""

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.checks import CheckResult, Limit, Limits, Peers, Status, age, judge, number
from nsqtools.policy.rates import Counters, Row

OK, WARNING, CRITICAL, UNKNOWN = Status
ONE = Peers({"n1:4151": None})
CHANNEL = Row("t", "c", Counters(depth=10, in_flight=3, clients=2), 1, 0, 5.0, 2.0, 0.5, 0.25, 1)
TOPIC = Row("t", "", Counters(depth=4), 1, 0, 5.0, 2.0, 0.0, 0.0, 1)
PAUSED = replace(TOPIC, totals=Counters(depth=999, paused=True))


def judged(
    *rows: Row, peers: Peers = ONE, topic: str = "", channel: str = "", **limits: Any
) -> CheckResult:
    return judge(Limits(**limits), rows, peers, topic=topic, channel=channel)


def found(verdict: CheckResult) -> list[tuple[Status, str, str]]:
    assert verdict.status is (verdict.troubles[0].status if verdict.troubles else OK)
    return [(each.status, each.topic, each.channel) for each in verdict.troubles]


def data(verdict: CheckResult) -> dict[str, float | None]:
    return {each.label: each.value for each in verdict.data}


@pytest.mark.parametrize(
    ("name", "limit", "status", "numbers"),
    [
        ("depth", Limit(9), WARNING, "10 is over 9"),
        ("depth", Limit(1, 9), CRITICAL, "10 is over 9"),
        ("depth", Limit(None, 0), CRITICAL, "10 is over 0"),
        ("depth", Limit(10, 10), OK, ""),
        ("requeue_rate", Limit(0.1), WARNING, "0.5 requeued"),
        ("requeue_rate", Limit(0.5), OK, ""),
        ("timeout_rate", Limit(0, 0.2), CRITICAL, "0.25 timed out"),
        ("timeout_rate", Limit(0.25), OK, ""),
        ("age", Limit(4.9), WARNING, "5 s, over 4.9 s"),
        ("age", Limit(5), OK, ""),
        ("clients_min", 3, CRITICAL, "2 clients"),
        ("clients_min", 2, OK, ""),
        ("nsqds_min", 1, OK, ""),
        ("paused", True, OK, ""),
    ],
)
def test_more_than_a_threshold_is_told_with_its_numbers(
    name: str, limit: Any, status: Status, numbers: str
) -> None:
    verdict = judged(CHANNEL, topic="t", **{name: limit})
    assert found(verdict) == ([(status, "t", "c")] if status else [])
    assert numbers in verdict.summary
    told = [each for each in verdict.data if limit in (each.limit, each.limit.crit)]
    assert [each.at_least for each in told] == [name.endswith("_min")] * (name != "paused")


def test_the_heaviest_finding_comes_first_and_decides() -> None:
    rows = [
        Row("a", "c", Counters(), 1, 0),
        Row("b", "c", Counters(depth=2), 1, 0, 1.0, 1.0, 0.0, 0.0, 1),
        Row("c", "c", Counters(depth=9), 1, 0, 1.0, 1.0, 0.0, 0.0, 1),
    ]
    verdict = judged(*rows, depth=Limit(1, 5), requeue_rate=Limit(1))
    assert found(verdict) == [(CRITICAL, "c", "c"), (WARNING, "b", "c"), (UNKNOWN, "a", "c")]
    assert verdict.summary.startswith("c/c: ")
    assert judged(*rows[1:], depth=Limit(9)).status is OK  # of each, not of all


@pytest.mark.parametrize(
    ("counters", "egress", "seconds"),
    [
        (Counters(), None, 0.0),
        (Counters(in_flight=5, deferred=5), 0.0, 0.0),
        (Counters(depth=10), 2.0, 5.0),
        (Counters(depth=10), 0.0, math.inf),
        (Counters(depth=10), None, None),
    ],
)
def test_the_age_is_what_waits_by_what_leaves_per_second(
    counters: Counters, egress: float | None, seconds: float | None
) -> None:
    assert age(Row("t", "c", counters, 1, 0, 1.0, egress, measured=1)) == seconds


def test_rates_are_not_known_while_one_of_the_nsqds_has_none() -> None:
    restarted = Row("t", "c", Counters(depth=100), 2, 0, 1.0, 1.0, 0.0, 0.0, measured=1)
    assert age(replace(restarted, measured=2)) == 100.0
    assert judged(restarted).status is OK
    limit = Limit(None, 60)
    verdict = judged(restarted, topic="t", age=limit, requeue_rate=limit, timeout_rate=limit)
    assert found(verdict) == [(UNKNOWN, "t", "c")] * 3
    numbers = data(verdict)
    assert {numbers[f"t/c:{name}"] for name in ("age", "requeue_rate", "timeout_rate")} == {None}


@pytest.mark.parametrize(
    ("peers", "status", "culprit"),
    [
        (Peers({"a:1": None, "b:1": "b:1: gone"}), WARNING, "nsqd b:1: gone"),
        (Peers({"a:1": None}, {"l:1": "l:1: silent"}), WARNING, "nsqlookupd l:1: silent"),
        (Peers({"a:1": "a:1: x", "b:1": "b:1: x"}, {"l:1": None}), CRITICAL, "none of 2 nsqds"),
        (Peers({}, {"l:1": None}), CRITICAL, "nsqlookupd"),
        (Peers({"a:1": None}, {}, {"a:1": "NOK - x"}), CRITICAL, "nsqd a:1 is unhealthy: NOK"),
        (Peers({"a:1": "a:1: x"}), UNKNOWN, "a:1: x"),
        (Peers({}, {"l:1": "l:1: x"}), UNKNOWN, "l:1: x"),
    ],
)
def test_who_is_silent_or_unwell_is_named(peers: Peers, status: Status, culprit: str) -> None:
    verdict = judged(peers=peers)
    assert verdict.status is status
    assert culprit in verdict.summary


@pytest.mark.parametrize(
    ("topic", "channel", "missing"),
    [
        *(("t", "", False), ("t", "c", False), ("", "c", False)),
        *(("u", "", True), ("t", "d", True), ("", "d", True)),
    ],
)
def test_what_was_named_and_is_nowhere_is_critical(topic: str, channel: str, missing: bool) -> None:
    verdict = judged(TOPIC, CHANNEL, topic=topic, channel=channel)
    assert found(verdict) == [(CRITICAL, topic, channel)] * missing
    silent = replace(TOPIC, nodes=0, missing=1)
    peers = Peers({"a:1": None, "b:1": "b:1: x"})
    verdict = judged(silent, peers=peers, topic="t", nsqds_min=2)
    assert found(verdict)[:2] == [(CRITICAL, "", ""), (CRITICAL, "t", "")]
    assert verdict.summary.endswith("(and 2 more)")


def test_of_a_named_channel_the_topic_itself_is_not_judged() -> None:
    limits: dict[str, Any] = {"depth": Limit(100), "paused": True}
    assert judged(PAUSED, CHANNEL, topic="t", **limits).status is CRITICAL
    verdict = judged(PAUSED, CHANNEL, topic="t", channel="c", **limits)
    assert verdict.status is OK
    assert "t:depth" not in data(verdict)
    assert judged(PAUSED, CHANNEL, channel="c", **limits).status is OK


def test_of_all_topics_there_are_sums_and_the_highest_of_what_has_a_threshold() -> None:
    other = Row("u", "c", Counters(depth=90, clients=1), 1, 0, 0.0, 0.0, measured=1)
    limits: dict[str, Any] = {"depth": Limit(1), "age": Limit(1), "requeue_rate": Limit(1)}
    verdict = judged(TOPIC, CHANNEL, other, **limits)
    assert data(verdict) == {
        "nsqds": 1,
        "depth": 104,
        "in_flight": 3,
        "deferred": 0,
        "clients": 3,
        "highest_depth": 90,
        "highest_requeue_rate": None,  # one of them is not known
        "highest_age": math.inf,
    }
    assert data(judged(**limits)).keys() == data(verdict).keys()


@given(st.floats(0, 1e15))
def test_numbers_have_no_exponent_and_lose_less_than_a_thousandth(value: float) -> None:
    assert set(number(value)) <= set("0123456789.")
    assert abs(Decimal(number(value)) - Decimal(value)) <= Decimal("0.0005")
