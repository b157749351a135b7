"""A rate is kept exactly, in bursts of a tenth of a second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.policy.pace import Pace


def test_no_rate_is_no_delay_and_one_burst() -> None:
    pace = Pace(0)
    assert pace.burst(1000) == 1000
    assert pace.delay(1000, now=5.0) == 0


def test_a_burst_is_a_tenth_of_a_second_and_at_least_one_message() -> None:
    assert Pace(100).burst(1000) == 10
    assert Pace(100).burst(3) == 3
    assert Pace(0.5).burst(1000) == 1


def test_a_pause_is_not_made_up_for() -> None:
    pace = Pace(10)
    assert pace.delay(1, now=0.0) == 0
    assert pace.delay(1, now=100.0) == 0
    assert pace.delay(1, now=100.0) == pytest.approx(0.1)


@given(
    rate=st.floats(0.1, 1e6),
    counts=st.lists(st.integers(1, 1000), min_size=2, max_size=50),
)
def test_over_any_run_the_rate_is_not_exceeded(rate: float, counts: list[int]) -> None:
    pace, now = Pace(rate), 0.0
    for count in counts:
        now += pace.delay(count, now=now)
    assert sum(counts[:-1]) <= rate * now * (1 + 1e-9)
