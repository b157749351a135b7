"""When a limited run ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.config import StopOptions
from nsqtools.policy.stopping import UNKNOWN_TIMEOUT, StopRule

START = 100.0
EVERYTHING = StopRule(max_duration=60.0, idle_timeout=5.0, until_empty=True)


def decide(
    rule: StopRule,
    *,
    last_message: float = START,
    empties: int = 0,
    now: float = START,
    silent_since: float | None = None,
) -> str | None:
    return rule.decide(
        started=START,
        last_message=last_message,
        empties=empties,
        now=now,
        silent_since=silent_since,
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"empties": 2}, "empty"),
        ({"now": 104.9}, None),
        ({"now": 105.0}, "idle-timeout"),
        ({"now": 105.0, "last_message": 103.0}, None),
        ({"now": 105.0, "last_message": 0.0}, "idle-timeout"),
        ({"now": 159.9, "last_message": 159.0}, None),
        ({"now": 160.0, "last_message": 159.0}, "max-duration"),
        ({"now": 160.0, "empties": 2}, "empty"),
    ],
)
def test_the_first_limit_reached_is_the_reason(facts: dict[str, float], reason: str | None) -> None:
    assert decide(EVERYTHING, **facts) == reason  # type: ignore[arg-type]


def test_the_help_and_the_guide_tell_the_time_that_a_server_may_be_silent() -> None:
    guide = Path(__file__).parents[2] / "nsqtools/cli/docs/guides/nsqtools-delivery.7.txt"
    assert f"silent for {UNKNOWN_TIMEOUT:g} s" in guide.read_text()
    assert f"silent for {UNKNOWN_TIMEOUT:g}s" in StopOptions.declared()["until_empty"].help


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"silent_since": 100.0, "now": 129.9}, None),
        ({"silent_since": 100.0, "now": 130.0}, "unknown"),
        ({"silent_since": 100.0, "now": 130.0, "last_message": 101.0}, None),
        ({"silent_since": 100.0, "now": 130.0, "empties": 2}, "empty"),
    ],
)
def test_what_stays_unknown_is_not_empty(facts: dict[str, float], reason: str | None) -> None:
    rule = StopRule(until_empty=True)
    assert decide(rule, **facts) == reason  # type: ignore[arg-type]


limits = st.none() | st.floats(0, 1e6)
times = st.floats(0, 1e9)


@given(max_duration=limits, idle_timeout=limits, started=times, last_message=times)
def test_the_run_stops_at_the_time_of_the_next_check_and_not_before(
    max_duration: float | None, idle_timeout: float | None, started: float, last_message: float
) -> None:
    rule = StopRule(max_duration=max_duration, idle_timeout=idle_timeout)
    when = rule.next_check(started=started, last_message=last_message)
    facts = {"started": started, "last_message": last_message, "empties": 0}
    if when is None:
        assert max_duration is idle_timeout is None
        facts["empties"] = 99  # which count only where that is asked for
        assert rule.decide(**facts, now=1e18) is None  # type: ignore[arg-type]
    else:
        assert rule.decide(**facts, now=when) is not None  # type: ignore[arg-type]
        assert rule.decide(**facts, now=when - 0.001) is None  # type: ignore[arg-type]
