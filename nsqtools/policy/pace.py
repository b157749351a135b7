"""A rate, or the distances in time of a recording, kept by saying when the next message may go."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)x")

# A pause at least: what is closer together goes together.
_TICK = 0.01


class Pace:
    """At most ``rate`` messages per second; 0 is no limit. A pause is never made up for."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    def burst(self, count: int) -> int:
        """How many of ``count`` messages to send at once: a tenth of a second's, at least one."""
        return min(count, max(1, int(self._rate / 10))) if self._rate else count

    def delay(self, count: int, *, now: float) -> float:
        """Seconds to wait before sending ``count`` messages, which are then counted as sent."""
        if not self._rate:
            return 0.0
        start = max(self._free, now)
        self._free = start + count / self._rate
        return start - now


class Replay:
    """Messages at the distances of their timestamps, divided by ``speed``, which is over 0.

    The first one goes at once and the others follow its clock: one that is late goes at once, as
    does one whose timestamp is before that of its predecessor. None goes early, and for want of
    a pause between close ones none is more than 10 ms late.
    """

    def __init__(self, speed: float) -> None:
        self._ns_per_second = speed * 1e9
        self._origin: tuple[int, float] | None = None  # timestamp and time of the first message

    def delay(self, timestamp: int, *, now: float) -> float:
        """Seconds to wait before the next message, which has this timestamp, in ns, is sent."""
        early = self._due(timestamp, now) - now
        return max(early, _TICK) if early > 0 else 0.0

    def burst(self, timestamps: Sequence[int], start: int, *, now: float) -> int:
        """How many to send at once: that at ``start``, and those after it that may go by now."""
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
    """The factor of ``10x``, None for ``max``; raises ConfigError, which names ``--pace``."""
    if text == "max":
        return None
    match = _SPEED.fullmatch(text)
    speed = float(match[1]) if match else 0.0
    if not speed:
        raise ConfigError(f"--pace {text!r}: expected max, or a factor such as 1x, 10x or 0.5x")
    return speed
