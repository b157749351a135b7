"""This host's wall clock and uptime, which everything in the package reads here, and the clocks of
servers.

Three clocks exist, and are never mixed: the event loop's and ``time.monotonic`` for timeouts and
intervals, this host's wall clock for names of files and what people read, and each server's for
what that server wrote, such as the timestamps of messages. Wall clocks jump at any time, either
way: neither order, age nor deletion may rest on them alone. The uptime is a monotonic clock that
processes of one host share.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple, Self
from uuid import uuid4

_SECOND = 10**9
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(
    rf"[A-Z][a-z][a-z], (\d\d) ({'|'.join(_MONTHS)}) (\d{{4}}) (\d\d):(\d\d):(\d\d) GMT", re.ASCII
)
"""The only form in which a server may send a date (RFC 9110, 5.6.7)."""


def wall_ns() -> int:
    """Return the time of this host's wall clock, in nanoseconds since the epoch."""
    return time.time_ns()


def wall() -> float:
    """Return the time of this host's wall clock, in seconds since the epoch."""
    return wall_ns() / 1e9


def uptime_ns() -> int:
    """Return the time since the host's boot in nanoseconds, including that asleep if possible."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@cache
def boot() -> str:
    """Return the identity of the host's boot, where uptimes begin.

    Where the system does not tell, it is one of this process.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).decode().strip()
    except (OSError, ValueError):
        return uuid4().hex


class ServerClock(NamedTuple):
    """What one response tells about the clock of a server.

    Its lead over ``time.monotonic``, in ns, is at least ``least`` and at most ``most``. So this
    host's wall clock may jump, and does not matter.
    """

    least: int
    most: int

    @property
    def uncertainty(self) -> float:
        """The difference of ``most`` and ``least`` in seconds."""
        return (self.most - self.least) / _SECOND

    @classmethod
    def of(cls, date: str, asked: float, answered: float) -> Self | None:
        """Return what a Date header tells; None if it is missing or is no date.

        The request was made and the response was complete at these monotonic seconds. The server
        wrote the header in between, and left out the fraction of its second.
        """
        if not (found := _DATE.fullmatch(date)):
            return None
        month = _MONTHS.index(found[2]) + 1
        day, year, hour, minute, second = map(int, found.group(1, 3, 4, 5, 6))
        try:
            day_and_time = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:  # such as 30 February
            return None
        written = round(day_and_time.timestamp()) * _SECOND
        return cls(written - _ns(answered), written + _SECOND - _ns(asked))

    def earliest(self, now: float) -> int:
        """Return the earliest possible time of the server, in ns since the epoch, at ``now``."""
        return self.least + _ns(now)

    def latest(self, now: float) -> int:
        """Return the latest possible time of the server, in ns since the epoch, at ``now``."""
        return self.most + _ns(now)

    def span(self, now: float) -> tuple[float, float]:
        """Return the earliest and the latest possible time at ``now``, in seconds."""
        return self.earliest(now) / _SECOND, self.latest(now) / _SECOND

    def skew(self, now: float, wall: int) -> float:
        """Return the least possible lead over another clock, in seconds; negative if behind.

        The other clock shows ``wall`` at ``now``. 0 is returned if both may be equal.
        """
        return (max(0, self.earliest(now) - wall) + min(0, self.latest(now) - wall)) / _SECOND


def _ns(seconds: float) -> int:
    return round(seconds * _SECOND)
