"""Percentiles of durations, in constant memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate

_SHORTEST, _LONGEST = 1e-6, 1000.0
_DECADES, _PER_DECADE = 9, 128

# Bounds between buckets; the first and last buckets hold anything shorter and longer.
_BOUNDS = [_SHORTEST * 10 ** (n / _PER_DECADE) for n in range(_DECADES * _PER_DECADE + 1)]
_HALF = 10 ** (0.5 / _PER_DECADE)


class Latency:
    """Durations counted in buckets of equal ratio from 1 us to 1000 s, 128 per power of ten.

    A percentile is the middle of its bucket: the error is at most 1 % from 1 us to 1000 s. Shorter
    durations are reported as 1 us, longer durations as 1000 s. ``longest`` is the exact maximum.
    One object takes 9 KiB.
    """

    __slots__ = ("_count", "_counts", "longest")

    def __init__(self) -> None:
        self.longest = 0.0
        self._count = 0
        self._counts = array("Q", bytes(8 * (len(_BOUNDS) + 1)))

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration ``count`` times."""
        self.longest = max(self.longest, seconds)
        self._count += count
        self._counts[bisect_right(_BOUNDS, seconds)] += count

    def percentile(self, p: float) -> float:
        """Return the percentile ``p``, 0 to 100, in seconds; 0 without durations."""
        if not self._count:
            return 0.0
        rank = max(1.0, self._count * p / 100)
        bucket = bisect_left(list(accumulate(self._counts)), rank)
        return min(_BOUNDS[bucket - 1] * _HALF, _LONGEST, self.longest) if bucket else _SHORTEST
