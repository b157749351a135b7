"""A rate is kept exactly, in bursts of a tenth of a second; a replay keeps distances in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.pace import Pace, Replay, parse_speed

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def replayed(replay: Replay, timestamps: Sequence[int], now: float = 0.0) -> list[float]:
    """When each message goes, if sending takes no time."""
    sent: list[float] = []
    while len(sent) < len(timestamps):
        start = len(sent)
        now += replay.delay(timestamps[start], now=now)
        sent += [now] * replay.burst(timestamps, start, now=now)
    return sent


@pytest.mark.parametrize(
    ("speed", "sent"), [(1.0, [5, 6, 9]), (2.0, [5, 5.5, 7]), (0.5, [5, 7, 13])]
)
def test_a_replay_keeps_the_distances_divided_by_its_speed(speed: float, sent: list[float]) -> None:
    timestamps = [7 * SECOND, 8 * SECOND, 11 * SECOND]
    assert replayed(Replay(speed), timestamps, 5.0) == pytest.approx(sent)


@given(
    speed=st.floats(0.1, 1e4),
    timestamps=st.lists(st.integers(0, 100 * SECOND), min_size=1, max_size=50),
)
def test_none_goes_early_and_none_is_much_late(speed: float, timestamps: list[int]) -> None:
    latest = 0.0
    for timestamp, sent in zip(timestamps, replayed(Replay(speed), timestamps), strict=True):
        due = (timestamp - timestamps[0]) / 1e9 / speed
        latest = max(latest, due)
        assert due - 1e-9 <= sent <= latest + 0.01 + 1e-9


@pytest.mark.parametrize(
    ("text", "speed"), [("max", None), ("1x", 1.0), ("10x", 10.0), ("0.5x", 0.5)]
)
def test_a_speed_is_a_factor_or_max(text: str, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["", "x", "1", "0.0x", "-1x", "1e3x", "1x ", "MAX"])
def test_another_speed_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="--pace"):
        parse_speed(text)
