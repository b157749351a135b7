"""What a check says of rows and peers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.checks import Limit, Limits, Peers, Status, Verdict, age, judge, number
from nsqtools.policy.rates import Counters, Rates, Row, Sample

ONE = Peers({"n1:4151": None})
CHANNEL = Row("t", "c", Counters(depth=10, in_flight=3, clients=2), 1, 0, 5.0, 2.0, 0.5, 0.25, 1)
TOPIC = Row("t", "", Counters(depth=4), 1, 0, 5.0, 2.0, 0.0, 0.0, 1)


def judged(
    *rows: Row, peers: Peers = ONE, topic: str = "", channel: str = "", **limits: Any
) -> Verdict:
    return judge(Limits(**limits), rows, peers, topic=topic, channel=channel)


def told(verdict: Verdict) -> list[str]:
    return [f"{each.status.name} {each}" for each in verdict.findings]


def data(verdict: Verdict) -> dict[str, float | None]:
    return {each.label: each.value for each in verdict.data}


class TestThresholds:
    @pytest.mark.parametrize(
        ("limits", "text"),
        [
            ({"depth": Limit(9)}, "WARNING t/c: depth 10 is over 9"),
            ({"depth": Limit(1, 9)}, "CRITICAL t/c: depth 10 is over 9"),
            ({"depth": Limit(None, 9)}, "CRITICAL t/c: depth 10 is over 9"),
            ({"in_flight": Limit(0)}, "WARNING t/c: 3 in flight, over 0"),
            ({"requeue_rate": Limit(0.1)}, "WARNING t/c: 0.5 requeued per second, over 0.1"),
            ({"timeout_rate": Limit(0, 0.2)}, "CRITICAL t/c: 0.25 timed out per second, over 0.2"),
            ({"age": Limit(4.9)}, "WARNING t/c: messages wait about 5 s, over 4.9 s"),
            ({"clients_min": 3}, "CRITICAL t/c: 2 clients, fewer than 3"),
        ],
    )
    def test_more_than_a_threshold_is_told(self, limits: dict[str, Any], text: str) -> None:
        verdict = judged(CHANNEL, **limits)
        assert told(verdict) == [text]
        assert verdict.summary == text.partition(" ")[2]

    @pytest.mark.parametrize(
        "limits",
        [
            {"depth": Limit(10, 10)},
            {"in_flight": Limit(3)},
            {"requeue_rate": Limit(0.5)},
            {"timeout_rate": Limit(0.25)},
            {"age": Limit(5)},
            {"clients_min": 2, "nsqds_min": 1, "paused": True},
        ],
    )
    def test_the_threshold_itself_is_still_ok(self, limits: dict[str, Any]) -> None:
        assert judged(CHANNEL, **limits).status is Status.OK

    def test_a_topic_has_a_depth_and_an_age_of_its_own_but_no_clients(self) -> None:
        verdict = judged(TOPIC, depth=Limit(3), age=Limit(1), in_flight=Limit(-1), clients_min=1)
        assert told(verdict) == [
            "WARNING t: depth 4 is over 3",
            "WARNING t: messages wait about 2 s, over 1 s",
        ]

    def test_thresholds_are_for_each_channel_not_for_their_sum(self) -> None:
        rows = [Row("t", name, Counters(depth=10), 1, 0) for name in "abc"]
        assert judged(*rows, depth=Limit(10)).status is Status.OK

    def test_zero_is_a_threshold(self) -> None:
        assert judged(CHANNEL, depth=Limit(None, 0)).status is Status.CRITICAL

    @pytest.mark.parametrize(("asked", "status"), [(True, Status.CRITICAL), (False, Status.OK)])
    def test_a_pause_is_critical_where_that_is_asked_for(self, asked: bool, status: Status) -> None:
        rows = [
            Row("t", "", Counters(paused=True), 1, 0),
            Row("t", "c", Counters(paused=True), 1, 0),
        ]
        verdict = judged(*rows, paused=asked)
        assert verdict.status is status
        assert told(verdict) == (["CRITICAL t: paused", "CRITICAL t/c: paused"] if asked else [])

    @pytest.mark.parametrize("kind", ["requeue_rate", "timeout_rate", "age"])
    def test_a_rate_that_is_not_known_is_unknown_and_only_if_it_is_asked_for(
        self, kind: str
    ) -> None:
        row = Row("t", "c", Counters(depth=1), 1, 0)
        limit: Any = Limit(1)
        assert judged(row).status is Status.OK
        assert judged(row, **{kind: limit}).status is Status.UNKNOWN

    def test_the_heaviest_finding_comes_first_and_decides(self) -> None:
        rows = [
            Row("a", "c", Counters(), 1, 0),
            Row("b", "c", Counters(depth=2), 1, 0, 1.0, 1.0, 0.0, 0.0, 1),
            Row("c", "c", Counters(depth=9), 1, 0, 1.0, 1.0, 0.0, 0.0, 1),
        ]
        verdict = judged(*rows, depth=Limit(1, 5), requeue_rate=Limit(1))
        assert told(verdict)[0] == "CRITICAL c/c: depth 9 is over 5"
        assert [each.status.name for each in verdict.findings] == ["CRITICAL", "WARNING", "UNKNOWN"]
        assert verdict.summary == "c/c: depth 9 is over 5 (and 2 more)"
        assert verdict.status is Status.CRITICAL


class TestAge:
    @pytest.mark.parametrize(
        ("depth", "egress", "seconds"),
        [(0, None, 0.0), (0, 0.0, 0.0), (10, 2.0, 5.0), (10, 0.0, math.inf), (10, None, None)],
    )
    def test_it_is_what_waits_by_what_leaves_per_second(
        self, depth: int, egress: float | None, seconds: float | None
    ) -> None:
        assert age(Row("t", "c", Counters(depth=depth), 1, 0, 1.0, egress, measured=1)) == seconds

    def test_it_is_not_known_while_one_of_the_nsqds_that_have_it_has_no_rates(self) -> None:
        restarted = Row("t", "c", Counters(depth=100), 2, 0, 1.0, 1.0, 0.0, 0.0, measured=1)
        assert age(restarted) is None
        assert age(replace(restarted, measured=2)) == 100.0
        limit = Limit(None, 60)
        verdict = judged(restarted, topic="t", age=limit, requeue_rate=limit, timeout_rate=limit)
        assert [each.status for each in verdict.findings] == [Status.UNKNOWN] * 3
        found = data(verdict)
        assert {found[f"t/c:{name}"] for name in ("age", "requeue_rate", "timeout_rate")} == {None}

    def test_a_restart_during_the_check_is_no_age(self) -> None:
        rates = Rates()

        def counted(at: float, start: int, messages: int) -> Sample:
            return Sample(at, start, {("t", "c"): Counters(messages, depth=500)})

        rates.record({"a": counted(0.0, 1, 1000), "b": counted(0.0, 1, 1000)})
        rows = rates.record({"a": counted(1.0, 1, 1010), "b": counted(1.0, 2, 500)})
        verdict = judged(*rows, age=Limit(None, 60))
        assert verdict.status is Status.UNKNOWN
        rows = rates.record({"a": counted(2.0, 1, 1020), "b": counted(2.0, 2, 510)})
        assert told(judged(*rows, age=Limit(49))) == [
            "WARNING t/c: messages wait about 50 s, over 49 s"
        ]

    def test_in_flight_and_deferred_messages_do_not_wait_for_a_consumer(self) -> None:
        assert (
            age(Row("t", "c", Counters(in_flight=5, deferred=5), 1, 0, 0.0, 0.0, measured=1)) == 0.0
        )

    def test_that_nothing_is_taken_exceeds_every_threshold(self) -> None:
        stuck = Row("t", "c", Counters(depth=7), 1, 0, 0.0, 0.0, measured=1)
        verdict = judged(stuck, age=Limit(None, 1e9))
        assert told(verdict) == ["CRITICAL t/c: 7 messages wait and none is taken"]
        assert judged(stuck, age=Limit(1e9)).status is Status.WARNING


class TestPeers:
    def test_one_silent_nsqd_among_others_is_a_warning(self) -> None:
        peers = Peers({"a:1": None, "b:1": "b:1: connection refused"})
        verdict = judged(CHANNEL, peers=peers)
        assert told(verdict) == ["WARNING nsqd b:1: connection refused"]

    def test_a_silent_nsqlookupd_is_a_warning(self) -> None:
        peers = Peers({"a:1": None}, {"l:1": "l:1: no answer within 5s"})
        assert told(judged(peers=peers)) == ["WARNING nsqlookupd l:1: no answer within 5s"]

    def test_no_nsqd_among_those_that_are_listed_is_critical(self) -> None:
        peers = Peers({"a:1": "a:1: gone", "b:1": "b:1: gone"}, {"l:1": None})
        verdict = judged(peers=peers, topic="t")
        assert verdict.status is Status.CRITICAL
        assert verdict.summary == "none of 2 nsqds answers (and 2 more)"

    def test_an_nsqlookupd_that_knows_no_nsqd_is_critical(self) -> None:
        assert told(judged(peers=Peers({}, {"l:1": None}))) == ["CRITICAL nsqlookupd knows no nsqd"]

    @pytest.mark.parametrize("peers", [Peers({"a:1": "a:1: x"}), Peers({}, {"l:1": "l:1: x"})])
    def test_nobody_is_unknown(self, peers: Peers) -> None:
        verdict = judged(peers=peers, topic="t", depth=Limit(1))
        assert (verdict.status, verdict.findings) == (Status.UNKNOWN, ())
        assert verdict.summary.startswith("nobody answers: ")

    def test_fewer_nsqds_than_there_should_be_is_critical(self) -> None:
        assert judged(CHANNEL, nsqds_min=1).status is Status.OK
        assert told(judged(CHANNEL, nsqds_min=2)) == ["CRITICAL 1 nsqds answer, fewer than 2"]

    def test_an_nsqd_that_cannot_write_is_critical(self) -> None:
        peers = Peers({"a:1": None}, {}, {"a:1": "NOK - disk full"})
        assert told(judged(CHANNEL, peers=peers)) == [
            "CRITICAL nsqd a:1 is not well: NOK - disk full"
        ]


class TestNames:
    @pytest.mark.parametrize(
        ("topic", "channel", "text"),
        [
            ("t", "", ""),
            ("t", "c", ""),
            ("", "c", ""),
            ("u", "", "u: no nsqd has it"),
            ("t", "d", "t/d: no nsqd has it"),
            ("", "d", "no nsqd has a channel d"),
        ],
    )
    def test_what_was_named_and_is_nowhere_is_critical(
        self, topic: str, channel: str, text: str
    ) -> None:
        verdict = judged(TOPIC, CHANNEL, topic=topic, channel=channel)
        assert told(verdict) == ([f"CRITICAL {text}"] if text else [])

    def test_it_may_be_on_one_that_is_silent(self) -> None:
        peers = Peers({"a:1": None, "b:1": "b:1: x"})
        row = Row("t", "", Counters(), nodes=0, missing=1)
        assert told(judged(row, peers=peers, topic="t"))[0] == (
            "CRITICAL t: no nsqd that answers has it"
        )

    def test_of_a_named_channel_the_topic_itself_is_not_judged(self) -> None:
        paused = replace(TOPIC, totals=Counters(depth=999, paused=True))
        limits: dict[str, Any] = {"depth": Limit(100), "paused": True}
        assert judged(paused, CHANNEL, topic="t", **limits).status is Status.CRITICAL
        verdict = judged(paused, CHANNEL, topic="t", channel="c", **limits)
        assert verdict.status is Status.OK
        assert "t:depth" not in data(verdict)
        judged_by_channel = judged(paused, CHANNEL, channel="c", **limits)
        assert judged_by_channel.status is Status.OK


class TestData:
    def test_a_named_topic_has_all_numbers_of_all_its_rows(self) -> None:
        verdict = judged(TOPIC, CHANNEL, topic="t", depth=Limit(1, 2), requeue_rate=Limit(9))
        assert data(verdict) == {
            "nsqds": 1,
            "t:depth": 4,
            "t/c:depth": 10,
            "t/c:in_flight": 3,
            "t/c:deferred": 0,
            "t/c:clients": 2,
            "t/c:requeue_rate": 0.5,
        }
        limits = {each.label: each.limit for each in verdict.data}
        assert limits["t/c:depth"] == Limit(1, 2)

    def test_of_all_topics_there_are_sums_and_the_highest_of_what_has_a_threshold(self) -> None:
        rows = [
            TOPIC,
            CHANNEL,
            Row("u", "c", Counters(depth=90, clients=1), 1, 0, 0.0, 0.0, measured=1),
        ]
        verdict = judged(*rows, depth=Limit(1), age=Limit(1), requeue_rate=Limit(1))
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

    def test_labels_do_not_depend_on_what_is_found(self) -> None:
        limits: dict[str, Any] = {"depth": Limit(1), "age": Limit(1)}
        assert data(judged(**limits)).keys() == data(judged(TOPIC, CHANNEL, **limits)).keys()


@given(st.floats(0, 1e15))
def test_numbers_have_no_exponent_and_lose_less_than_a_thousandth(value: float) -> None:
    assert set(number(value)) <= set("0123456789.")
    assert abs(float(number(value)) - value) <= 0.000501


limits = st.builds(Limit, st.none() | st.integers(0, 20), st.none() | st.integers(0, 20))


@given(limits, st.lists(st.integers(0, 20), max_size=5), st.integers(0, 20))
def test_more_messages_never_make_it_better(limit: Limit, depths: list[int], more: int) -> None:
    def status(extra: int) -> Status:
        rows = [
            Row("t", str(n), Counters(depth=depth + extra), 1, 0) for n, depth in enumerate(depths)
        ]
        return judged(*rows, depth=limit).status

    assert status(0).weight <= status(more).weight
