"""The clock of a server, as one response tells it: never more than can be known."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.clock import ServerClock

SECOND = 10**9
YEAR = 366 * 86_400 * SECOND

uptimes = st.floats(0, 10**8)
moments = st.floats(0, 30)
epochs = st.integers(978_307_200 * SECOND, 4_102_444_800 * SECOND)  # 2001 to 2100
jumps = st.sampled_from([-YEAR, -2 * SECOND, 0, 2 * SECOND, YEAR])


@given(uptimes, moments, moments, moments, epochs, jumps)
def test_the_time_of_the_server_lies_between_its_earliest_and_its_latest(
    asked: float, way: float, back: float, later: float, theirs: int, jump: int
) -> None:
    """However slow the request was, however long ago, and whatever the wall clock here shows."""
    written = asked + way
    answered = written + back
    date = formatdate(theirs // SECOND, usegmt=True)
    clock = ServerClock.of(date, asked, answered)
    assert clock
    now = answered + later
    true = theirs + round((now - written) * SECOND)
    slack = 1000  # ns: of the seconds drawn
    assert clock.earliest(now) - slack <= true <= clock.latest(now) + slack
    width = clock.latest(now) - clock.earliest(now)
    assert abs(width - SECOND - (answered - asked) * SECOND) <= slack
    skew, lead = clock.skew(now, true + jump), -jump / SECOND
    assert abs(skew) <= abs(lead) + 1e-6
    assert skew * lead >= 0
    assert abs(lead - skew) <= (width + slack) / SECOND


@pytest.mark.parametrize(
    "date",
    [
        "",
        "yesterday",
        "Sat, 28 Nov 2026 14:44:20",
        "Sat, 28 Nov 2026 14:44:20 +0000",
        "Sat, 28 Nov 2026 14:44:20 -0000",
        "Sat, 28 Nov 2026 14:44:20 GMT, Sat, 28 Nov 2026 14:44:20 GMT",
        "Sat, 30 Feb 2026 14:44:20 GMT",
        "Sat, 28 Nov 0000 14:44:20 GMT",
        "Sat, 28 Nov 2026 14:44:60 GMT",
        "Sat, 28 Nov 2026 14:44:\u0662\u0660 GMT",
        "Saturday, 28-Nov-26 14:44:20 GMT",
        "1764341060",
    ],
)
def test_what_is_no_date_tells_nothing(date: str) -> None:
    assert ServerClock.of(date, 0.0, 0.0) is None
    assert ServerClock.of("Sat, 28 Nov 2026 14:44:20 GMT", 0.0, 0.0)
