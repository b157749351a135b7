"""This host's wall clock, which everything in the package reads here.

Three clocks exist, and are never mixed: the event loop's and ``time.monotonic`` for timeouts and
intervals, this host's wall clock for names of files and what people read, and each server's for
what that server wrote, such as the timestamps of messages. Wall clocks jump at any time, either
way: neither order, age nor deletion may rest on them alone.
"""

# size: the one place that reads the wall clock

from __future__ import annotations

import time


def wall_ns() -> int:
    """Return the time of this host's wall clock, in nanoseconds since the epoch."""
    return time.time_ns()


def wall() -> float:
    """Return the time of this host's wall clock, in seconds since the epoch."""
    return wall_ns() / 1e9
