"""Percentiles of durations, in constant memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate

_SHORTEST, _LONGEST = 1e-4, 100.0
_DECADES, _PER_DECADE = 6, 16

# Bounds between buckets; the first and last buckets hold anything shorter and longer.
_BOUNDS = [_SHORTEST * 10 ** (n / _PER_DECADE) for n in range(_DECADES * _PER_DECADE + 1)]
_HALF = 10 ** (0.5 / _PER_DECADE)


class Latency:
    """Durations counted in buckets of equal ratio from 0.1 ms to 100 s, 16 per power of ten.

    A percentile is the middle of its bucket: the error is at most 7.5 % from 0.1 ms to 100 s.
    Shorter durations are reported as 0.1 ms, longer ones as 100 s. It takes less than 1 KiB.
    """

    __slots__ = ("_count", "_counts")

    def __init__(self) -> None:
        self._count = 0
        self._counts = array("Q", bytes(8 * (len(_BOUNDS) + 1)))

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._count += 1
        self._counts[bisect_right(_BOUNDS, seconds)] += 1

    def percentile(self, p: float) -> float:
        """Return the percentile ``p``, 0 to 100, in seconds; 0 without durations."""
        if not self._count:
            return 0.0
        rank = max(1.0, self._count * p / 100)
        bucket = bisect_left(list(accumulate(self._counts)), rank)
        return min(_BOUNDS[bucket - 1] * _HALF, _LONGEST) if bucket else _SHORTEST
