"""Percentiles from buckets against those of all durations sorted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.latency import Latency

durations = st.lists(st.floats(1e-6, 1000.0), min_size=1, max_size=200)
percents = st.sampled_from([0, 1, 50, 75, 90, 99, 99.9, 100]) | st.floats(0, 100)


def counted(seconds: list[float]) -> Latency:
    latency = Latency()
    for each in seconds:
        latency.add(each)
    return latency


@given(seconds=durations, p=percents)
def test_a_percentile_is_at_most_1_percent_off(seconds: list[float], p: float) -> None:
    rank = max(1, math.ceil(len(seconds) * p / 100))
    assert counted(seconds).percentile(p) == pytest.approx(sorted(seconds)[rank - 1], rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1.0, 1e-6), (0.0, 1e-6), (5e-7, 1e-6), (3600.0, 1000.0)]
)
def test_what_is_out_of_range_is_given_as_its_end(seconds: float, shown: float) -> None:
    assert Latency().percentile(50) == 0.0
    assert counted([seconds]).percentile(50) == shown


@given(seconds=durations, times=st.integers(1, 5))
def test_a_duration_may_be_counted_several_times_at_once(seconds: list[float], times: int) -> None:
    at_once = Latency()
    for each in seconds:
        at_once.add(each, times)
    one_by_one = counted(seconds * times)
    assert [at_once.percentile(p) for p in (0, 50, 100)] == [
        one_by_one.percentile(p) for p in (0, 50, 100)
    ]
    assert max(seconds) == at_once.longest >= at_once.percentile(100)
