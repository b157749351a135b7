"""Percentiles from buckets against those of all durations sorted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.latency import Latency

durations = st.lists(st.floats(1e-6, 1000.0), min_size=1, max_size=200)
percents = st.sampled_from([0, 1, 50, 75, 90, 99, 99.9, 100]) | st.floats(0, 100)


def counted(seconds: list[float], times: int = 1) -> Latency:
    latency = Latency()
    for each in seconds:
        latency.add(each, times)
    return latency


@given(seconds=durations, p=percents, times=st.integers(1, 5))
def test_a_percentile_is_at_most_1_percent_off(seconds: list[float], p: float, times: int) -> None:
    rank = max(1, math.ceil(times * len(seconds) * p / 100))
    latency = counted(seconds, times)
    assert latency.percentile(p) == pytest.approx(sorted(times * seconds)[rank - 1], rel=0.01)
    assert latency.longest == max(seconds) >= latency.percentile(p)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1.0, 1e-6), (0.0, 1e-6), (5e-7, 1e-6), (3600.0, 1000.0)]
)
def test_what_is_out_of_range_is_given_as_its_end(seconds: float, shown: float) -> None:
    assert Latency().percentile(50) == 0.0
    assert counted([seconds]).percentile(50) == shown
