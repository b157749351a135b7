"""A rate is kept exactly, in bursts of a tenth of a second; a replay keeps distances in time."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.pace import Pace, Replay, parse_speed

SECOND = 1_000_000_000


def test_a_burst_is_a_tenth_of_a_second_and_at_least_one_message() -> None:
    assert [Pace(100).burst(1000), Pace(100).burst(3), Pace(0.5).burst(1000)] == [10, 3, 1]


def test_a_pause_is_not_made_up_for() -> None:
    pace = Pace(10)
    assert pace.delay(1, now=0.0) == 0
    assert pace.delay(1, now=100.0) == 0
    assert pace.delay(1, now=100.0) == pytest.approx(0.1)


@given(rate=st.floats(0.1, 1e6), counts=st.lists(st.integers(1, 1000), min_size=2, max_size=50))
def test_over_any_run_the_rate_is_not_exceeded(rate: float, counts: list[int]) -> None:
    pace, now = Pace(rate), 0.0
    for count in counts:
        now += pace.delay(count, now=now)
    assert sum(counts[:-1]) <= rate * now * (1 + 1e-9)


def replayed(replay: Replay, timestamps: Sequence[int]) -> list[float]:
    """When each message goes, if sending takes no time."""
    sent: list[float] = []
    now = 0.0
    while len(sent) < len(timestamps):
        start = len(sent)
        now += replay.delay(timestamps[start], now=now)
        sent += [now] * replay.burst(timestamps, start, now=now)
    return sent


@given(
    speed=st.floats(0.1, 1e4),
    timestamps=st.lists(st.integers(0, 100 * SECOND), min_size=1, max_size=50),
)
def test_none_goes_early_and_none_is_much_late(speed: float, timestamps: list[int]) -> None:
    """The distances of messages are kept, divided by the speed."""
    latest = 0.0
    for timestamp, sent in zip(timestamps, replayed(Replay(speed), timestamps), strict=True):
        due = (timestamp - timestamps[0]) / 1e9 / speed
        latest = max(latest, due)
        assert due - 1e-9 <= sent <= latest + 0.01 + 1e-9


def test_what_is_due_at_once_goes_at_once() -> None:
    timestamps = [5 * SECOND, 5 * SECOND, 4 * SECOND, 6 * SECOND, 6 * SECOND]
    assert replayed(Replay(2.0), timestamps) == [0, 0, 0, 0.5, 0.5]
    replay = Replay(2.0)
    assert replay.delay(timestamps[0], now=0.0) == 0
    assert [replay.burst(timestamps, 0, now=now) for now in (0.0, 0.5)] == [3, 5]


def test_a_speed_is_a_factor_or_max() -> None:
    texts = ["max", "1x", "10x", "0.5x"]
    assert [parse_speed(text) for text in texts] == [None, 1.0, 10.0, 0.5]
    for text in ("", "x", "1", "0.0x", "-1x", "1e3x", "1x ", "MAX"):
        with pytest.raises(ConfigError, match="--pace"):
            parse_speed(text)
