"""Lookup rounds and reconnection delays."""

from random import Random

import pytest

from nsqtools.names import Address
from nsqtools.policy.discovery import LookupSchedule, ReconnectDelays

NSQD = Address("nsqd", 4150)


def rounds(
    schedule: LookupSchedule, count: int, now: float = 0.0, *, urgent: bool = False
) -> list[float]:
    """Distances of the next rounds when each is made on time."""
    distances = []
    for _ in range(count):
        when = schedule.next(now, urgent=urgent, rng=Random(1))
        distances.append(when - now)
        now = when
    return distances


def test_without_a_connection_rounds_come_soon_and_then_less_and_less() -> None:
    assert rounds(LookupSchedule(60.0, 0.0), 3) == [60, 60, 60]
    distances = rounds(LookupSchedule(60.0, 0.0), 9, urgent=True)
    assert distances == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert rounds(LookupSchedule(0.5, 0.0), 2, urgent=True) == [0.5, 0.5]


def test_losses_bring_the_next_rounds_forward_together_but_for_one_that_worked() -> None:
    schedule = LookupSchedule(60.0, 0.0)
    schedule.next(0.0, urgent=False, rng=Random(1))
    times = {schedule.next(20.0 + n / 100, urgent=True, rng=Random(1)) for n in range(20)}
    assert times == {21.0}
    assert rounds(schedule, 7, 21.0) == [2, 4, 8, 16, 32, 60, 60]
    assert rounds(schedule, 6, 203.0, urgent=True) == [1, 2, 4, 8, 16, 32]
    assert schedule.next(240.0, urgent=True, rng=Random(1)) == 266
    assert schedule.next(240.0, urgent=True, restart=True, rng=Random(1)) == 241
    assert rounds(schedule, 3, 241.0) == [2, 4, 8]


def test_jitter_spreads_consumers_that_started_together() -> None:
    for urgent, least, most in ((False, 60, 78), (True, 1, 1.3)):
        times = [
            LookupSchedule(60.0, 0.3).next(0.0, urgent=urgent, rng=Random(n)) for n in range(50)
        ]
        assert len(set(times)) == 50
        assert least <= min(times) <= max(times) <= most
        assert max(times) - min(times) > 0.2 * least


@pytest.mark.parametrize(
    ("first", "maximum", "delays"),
    [
        (8.0, 120.0, [8, 16, 32, 64, 120, 120]),
        (0.0, 3.0, [0, 1, 2, 3, 3]),
        (0.1, 0.3, [0.1, 0.2, 0.3]),
        (0.0, 0.0, [0, 0, 0]),
    ],
)
def test_redialling_is_delayed_longer_each_time(
    first: float, maximum: float, delays: list[float]
) -> None:
    exact, spread, rng = *(ReconnectDelays(first, maximum) for _ in range(2)), Random(7)
    for delay in delays:
        assert exact.failed(NSQD, 100.0) == pytest.approx(100.0 + delay)
        found = spread.failed(NSQD, 0.0, rng)
        assert delay / 2 <= found <= delay
        assert found not in (delay / 2, delay) or not delay


def test_only_a_connection_that_was_not_short_resets_the_delay() -> None:
    reconnect = ReconnectDelays(1.0, 120.0)
    assert [reconnect.failed(NSQD, 0.0) for _ in range(3)] == [1, 2, 4]
    reconnect.ended(NSQD, 1.0)
    assert reconnect.failed(NSQD, 0.0) == 8
    reconnect.ended(NSQD, 1.1)
    assert reconnect.failed(NSQD, 0.0) == 1
