"""Paces messages by a rate, or by the timestamps of a recording."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)x")

# Minimum pause: messages closer together are sent together.
_TICK = 0.01


class Pace:
    """At most ``rate`` messages per second, 0 for no limit; lost time is not made up."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    def burst(self, count: int) -> int:
        """Return how many of ``count`` messages to send at once: those of 0.1 s, at least 1."""
        return min(count, max(1, int(self._rate / 10))) if self._rate else count

    def delay(self, count: int, *, now: float) -> float:
        """Return the seconds to wait before sending ``count`` messages, and count them as sent."""
        if not self._rate:
            return 0.0
        start = max(self._free, now)
        self._free = start + count / self._rate
        return start - now


class Replay:
    """Replays messages at the intervals of their timestamps, divided by ``speed`` (over 0).

    The first message is sent at once, the others relative to it. A late message is sent at once,
    and so is a message with a timestamp before its predecessor's. No message is early, and the
    minimum pause delays none by more than 10 ms.
    """

    def __init__(self, speed: float) -> None:
        self._ns_per_second = speed * 1e9
        self._origin: tuple[int, float] | None = None  # timestamp and time of the first message

    def delay(self, timestamp: int, *, now: float) -> float:
        """Return the seconds to wait before sending a message with this timestamp, in ns."""
        early = self._due(timestamp, now) - now
        return max(early, _TICK) if early > 0 else 0.0

    def burst(self, timestamps: Sequence[int], start: int, *, now: float) -> int:
        """Return how many to send at once, from ``start``: the first, and any due by ``now``."""
        for index in range(start + 1, len(timestamps)):
            if self._due(timestamps[index], now) > now:
                return index - start
        return len(timestamps) - start

    def _due(self, timestamp: int, now: float) -> float:
        if self._origin is None:
            self._origin = timestamp, now
        first, began = self._origin
        return began + (timestamp - first) / self._ns_per_second


def parse_speed(text: str) -> float | None:
    """Parse a factor such as ``10x``; None for ``max``. Raises ConfigError naming ``--pace``."""
    if text == "max":
        return None
    match = _SPEED.fullmatch(text)
    speed = float(match[1]) if match else 0.0
    if not speed:
        raise ConfigError(f"--pace {text!r}: expected max, or a factor such as 1x, 10x or 0.5x")
    return speed
