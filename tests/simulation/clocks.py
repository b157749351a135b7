"""The wall clock and the uptime of each host of the simulation, which the seed sets.

The clocks show any time from 2001 to 2100, often one that is near the end of a year or of February
or a change of summer time, and agree, or do not, by seconds, hours, 40 days or any time. Faults let
them jump. Those of servers stamp messages and the Date headers of responses, those of hosts the
times of files.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    import pytest

    from tests.simulation.plans import Fault

DAY = 86_400.0
FIRST, LAST = (datetime(year, 1, 2, tzinfo=UTC).timestamp() for year in (2001, 2101))
_ZONES = (
    *("UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0", "<+0545>-5:45"),
    "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",  # summer in January, by half an hour
)
_NEAR = 90.0
"""Maximum seconds from the beginning to the moment near which a clock begins."""


class WallClocks:
    """What the wall clocks show. ``random`` is the world's, ``now`` its time."""

    def __init__(
        self, random: Callable[[str], Random], now: Callable[[], float], ahead: float | None
    ) -> None:
        """Draw the times; with ``ahead``, hosts of commands are so many days ahead of servers."""
        self._random, self._now = random, now
        rng = random("clocks")
        self._zone = rng.choice(_ZONES)
        self._start = _moment(rng)
        self._ahead = ahead
        self._offsets: dict[str, float] = {}
        self._booted: dict[str, tuple[float, int]] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Set the time zone of all hosts. Call ``time.tzset`` when the patch is undone."""
        patch.setenv("TZ", self._zone)
        time.tzset()

    def ns(self, host: str) -> int:
        """The wall clock of a host, in ns since the epoch."""
        return int((self._start + self._offset(host) + self._now()) * 1e9)

    def uptime_ns(self, host: str) -> int:
        """The time since the host's boot, which no jump of its wall clock changes."""
        booted, _ = self._booted.setdefault(host, (-1000.0, 0))
        return int((self._now() - booted) * 1e9)

    def boot(self, host: str) -> str:
        """The identity of the host's boot."""
        return f"{host} {self._booted.setdefault(host, (-1000.0, 0))[1]}"

    def reboot(self, host: str) -> None:
        """Begin its uptime anew."""
        _, count = self._booted.get(host, (0.0, 0))
        self._booted[host] = self._now(), count + 1

    def jump(self, host: str, fault: Fault, *, ahead: bool = False) -> float:
        """Let a clock jump either way, or ahead, by seconds, hours or a year; returns seconds."""
        size = (10.0, 10 * 3600.0, 366 * DAY)[fault.which % 3]
        seconds = (fault.how * 2 - 1) * size
        if ahead:
            seconds = abs(seconds)
        elif not FIRST < self.ns(host) / 1e9 + seconds < LAST:
            seconds = -seconds
        self._offsets[host] += seconds
        return seconds

    def text(self, host: str) -> str:
        """What it shows, for people."""
        return f"{datetime.fromtimestamp(self.ns(host) / 1e9, UTC):%Y-%m-%d %H:%M:%S}"

    def _offset(self, host: str) -> float:
        if host not in self._offsets:
            if self._ahead is None:
                self._offsets[host] = _apart(self._random(f"clock of {host}"), self._start)
            else:
                self._offsets[host] = self._ahead * DAY * host.startswith("host")
        return self._offsets[host]


def _apart(rng: Random, start: float) -> float:
    """How many seconds a clock is ahead of the first."""
    spread = rng.choice((0.0, 0.0, 2.0, 3600.0, 40 * DAY, None))
    if spread is None:
        return _moment(rng) - start
    return spread * (rng.random() * 2 - 1)


def _moment(rng: Random) -> float:
    """A time, in seconds since the epoch, a moment before something if possible."""
    year = rng.randint(2001, 2100)
    before = rng.random() * _NEAR
    match rng.choice(("any", "year", "February", "summer", "winter")):
        case "any":
            return FIRST + rng.random() * (LAST - FIRST)
        case "year":
            edge = datetime(year + 1, 1, 1, tzinfo=UTC)
        case "February":
            edge = datetime(rng.choice((year, max(2004, year // 4 * 4))), 3, 1, tzinfo=UTC)
            edge -= timedelta(days=rng.choice((0, 1)))
        case "summer":
            edge = _last_sunday(year, 3)
        case _:
            edge = _last_sunday(year, 10)
    return edge.timestamp() - before


def _last_sunday(year: int, month: int) -> datetime:
    """When clocks change in Europe."""
    last = datetime(year, month, 31, 1, tzinfo=UTC)
    return last - timedelta(days=(last.weekday() + 1) % 7)
