"""When a limited run ends."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.config.consuming import StopOptions
from nsqtools.policy.stopping import UNKNOWN_TIMEOUT, StopRule

START = 100.0
ALL = StopRule(max_duration=60.0, idle_timeout=5.0, until_empty=True)
EMPTY = StopRule(until_empty=True)


@pytest.mark.parametrize(
    ("rule", "facts", "reason"),
    [
        (ALL, {"empties": 2}, "empty"),
        (ALL, {"now": 104.9}, None),
        (ALL, {"now": 105.0}, "idle-timeout"),
        (ALL, {"now": 105.0, "last_message": 103.0}, None),
        (ALL, {"now": 105.0, "last_message": 0.0}, "idle-timeout"),
        (ALL, {"now": 159.9, "last_message": 159.0}, None),
        (ALL, {"now": 160.0, "last_message": 159.0}, "max-duration"),
        (ALL, {"now": 160.0, "empties": 2}, "empty"),
        # What stays unknown is not empty.
        (EMPTY, {"silent_since": 100.0, "now": 129.9}, None),
        (EMPTY, {"silent_since": 100.0, "now": 130.0}, "unknown"),
        (EMPTY, {"silent_since": 100.0, "now": 130.0, "last_message": 101.0}, None),
        (EMPTY, {"silent_since": 100.0, "now": 130.0, "empties": 2}, "empty"),
    ],
)
def test_the_first_limit_reached_is_the_reason(
    rule: StopRule, facts: dict[str, Any], reason: str | None
) -> None:
    usual = {"started": START, "last_message": START, "empties": 0, "now": START}
    assert rule.decide(**usual | facts) == reason


def test_the_help_and_the_guide_tell_the_time_that_a_server_may_be_silent() -> None:
    guide = Path(__file__).parents[2] / "nsqtools/cli/docs/guides/delivery.md"
    assert f"silent for {UNKNOWN_TIMEOUT:g} s" in guide.read_text()
    assert f"silent for {UNKNOWN_TIMEOUT:g}s" in StopOptions.declared()["until_empty"].help


limits = st.none() | st.floats(0, 1e6)
times = st.floats(0, 1e9)


@given(max_duration=limits, idle_timeout=limits, started=times, last_message=times)
def test_the_run_stops_at_the_time_of_the_next_check_and_not_before(
    max_duration: float | None, idle_timeout: float | None, started: float, last_message: float
) -> None:
    rule = StopRule(max_duration=max_duration, idle_timeout=idle_timeout)
    when = rule.next_check(started=started, last_message=last_message)
    facts: dict[str, Any] = {"started": started, "last_message": last_message, "empties": 99}
    if when is None:
        assert max_duration is idle_timeout is None
        assert rule.decide(**facts, now=1e18) is None
    else:
        assert rule.decide(**facts, now=when) is not None
        assert rule.decide(**facts, now=when - 0.001) is None
