"""A rate, kept by saying when the next message may go."""

from __future__ import annotations


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
