"""When a file of an archive is closed."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import FileNames, NamePattern
from nsqtools.policy.rotation import OpenFile, Rotate, Rotation

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
BERLIN = ZoneInfo("Europe/Berlin")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
KATHMANDU = ZoneInfo("Asia/Kathmandu")
ZONES = [
    UTC,
    BERLIN,
    LORD_HOWE,
    KATHMANDU,
    ZoneInfo("America/Havana"),  # shows midnight twice
    timezone(timedelta(minutes=7, seconds=13)),
]


def ns(text: str) -> int:
    """Of an ISO time with its offset from UTC."""
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


NOON = ns("2026-11-20T12:00:00+00:00")


opened = partial(OpenFile, name="x", opened=100.0, opened_wall=NOON, size=10, records=1)


def decide(
    rotation: Rotation, file: OpenFile, *, after: float = 0.0, name: str = "x", set_by: int = 0
) -> Rotate | None:
    """``after`` seconds, in which the clock was also set by some ns."""
    wall = file.opened_wall + round(after * SECOND) + set_by
    return rotation.decide(file, name=name, now=file.opened + after, wall=wall)


def next_due(rotation: Rotation, file: OpenFile, *, after: float = 0.0) -> float | None:
    """Seconds since opening."""
    wall = file.opened_wall + round(after * SECOND)
    due = rotation.next_due(file, now=file.opened + after, wall=wall)
    return None if due is None else due - file.opened


def test_a_file_is_closed_once_it_is_over_its_size() -> None:
    rotation = Rotation(size=1000)
    assert decide(rotation, opened(size=1000)) is None
    assert decide(rotation, opened(size=1001)) == Rotate("size")
    assert next_due(rotation, opened(size=1000)) is None
    assert next_due(rotation, opened(size=1001), after=7.0) == 7.0


EMPTY = opened(size=0, records=0)


@pytest.mark.parametrize(
    ("file", "sync_interval", "due"),
    [(opened(), 0, 60), (EMPTY, 0, 60), (opened(), 90, 60), (EMPTY, 90, 90)],
)
def test_a_file_is_closed_when_it_was_open_for_longer_than_the_interval(
    file: OpenFile, sync_interval: int, due: int
) -> None:
    """An empty one lasts as long as records may wait for it."""
    rotation = Rotation(interval=60, sync_interval=sync_interval)
    assert decide(rotation, file, after=due) is None
    assert decide(rotation, file, after=due + 0.001) == Rotate("interval")
    assert next_due(rotation, file) == pytest.approx(due)
    assert next_due(rotation, file, after=due + 10) == due + 10


def test_an_empty_file_that_is_not_to_be_published_wakes_nobody() -> None:
    rotation = Rotation(interval=60, skip_empty=True)
    assert next_due(rotation, EMPTY) is None
    for file in (EMPTY, opened(size=0, records=1), opened(size=10, records=0)):
        assert decide(rotation, file, after=61.0) == Rotate("interval")
        assert decide(rotation, file, name="y") == Rotate("name")


def boundaries(every: float, zone: tzinfo, start: str, hours: float) -> list[str]:
    """Local times at which files are closed when there is a record each minute."""
    rotation, wall, found = Rotation(boundary=every, zone=zone), ns(start), []
    file = opened(opened_wall=wall)
    for minute in range(int(hours * 60)):
        at = wall + minute * 60 * SECOND
        if rotation.decide(file, name="x", now=0.0, wall=at):
            file = opened(opened_wall=at)
            found.append(datetime.fromtimestamp(at // SECOND, zone).strftime("%d %H:%M%z"))
    return found


AUTUMN, SPRING = "2026-10-25T01:30:00+02:00", "2026-03-29T01:30:00+01:00"


@pytest.mark.parametrize(
    ("every", "zone", "start", "hours", "expected"),
    [
        (900, UTC, "2026-11-20T12:07:00+00:00", 0.6, "20 12:15+0000, 20 12:30+0000"),
        (3600, KATHMANDU, "2026-11-20T12:05:00+05:45", 2, "20 13:00+0545, 20 14:00+0545"),
        (7 * 3600, UTC, "2026-11-20T15:05:00+00:00", 12, "20 21:00+0000, 21 00:00+0000"),
        # An hour shown twice is two pieces, and longer ones stay whole.
        (3600, BERLIN, AUTUMN, 3, "25 02:00+0200, 25 02:00+0100, 25 03:00+0100"),
        (4 * 3600, BERLIN, AUTUMN, 4, "25 04:00+0100"),
        # A boundary that the clock leaves out is at the change.
        (3600, BERLIN, SPRING, 2, "29 03:00+0200, 29 04:00+0200"),
        (2 * 3600, BERLIN, SPRING, 2, "29 03:00+0200, 29 04:00+0200"),
        (4 * 3600, BERLIN, SPRING, 2, "29 04:00+0200"),
        (3600, LORD_HOWE, "2026-04-05T01:10:00+11:00", 2, "05 02:00+1030"),
        (3600, LORD_HOWE, "2026-10-04T01:10:00+10:30", 2, "04 02:30+1100, 04 03:00+1100"),
    ],
)
def test_boundaries_are_counted_from_midnight_of_the_zone(
    every: float, zone: tzinfo, start: str, hours: float, expected: str
) -> None:
    assert boundaries(every, zone, start, hours) == expected.split(", ")


def test_a_clock_set_back_closes_the_file_of_the_later_piece() -> None:
    rotation = Rotation(boundary=3600, zone=UTC)
    file = opened(opened_wall=NOON + 60 * SECOND)
    assert decide(rotation, file, after=30.0, set_by=-30 * SECOND) is None
    assert decide(rotation, file, after=30.0, set_by=-HOUR) == Rotate("boundary")
    earlier = opened(opened_wall=file.opened_wall - HOUR)
    assert decide(rotation, earlier, after=600.0) is None
    assert next_due(rotation, earlier, after=600.0) == pytest.approx(3540.0, abs=1e-4)


@given(
    st.integers(0, 4_000_000_000),
    st.floats(0, 1e7),
    st.sampled_from([0, 0.25, 60, 3600]),
    st.sampled_from([0, 900, 86_400]),
    st.sampled_from(ZONES),
    st.booleans(),
)
def test_a_timer_that_sleeps_until_the_next_look_always_finds_a_reason(
    second: int, now: float, interval: float, boundary: int, zone: tzinfo, by_clock: bool
) -> None:
    rotation = Rotation(interval=interval, boundary=boundary, zone=zone)
    pattern = NamePattern(datetime_format="%Y-%m-%d_%H")
    names = FileNames(pattern, topic="t", hostname="h", pid=1, zone=zone)
    wall = second * SECOND
    file = OpenFile(name=names.at(wall), opened=now, opened_wall=wall, size=1)
    due = rotation.next_due(
        file, now=now, wall=wall, renamed=names.next_change(wall) if by_clock else None
    )
    if due is None:
        assert (interval, boundary, by_clock) == (0, 0, False)
        return
    assert due > now
    later = wall + int((due - now) * SECOND)
    name = names.at(later) if by_clock else file.name
    assert rotation.decide(file, name=name, now=due, wall=later) is not None


@pytest.mark.parametrize("boundary", [-1, 0.5, 86401])
def test_a_boundary_that_does_not_recur_every_day_is_refused(boundary: float) -> None:
    assert Rotation(boundary=86400, zone=UTC)
    with pytest.raises(ConfigError, match="rotation every"):
        Rotation(boundary=boundary, zone=UTC)
