"""Which published files to delete, by number, age, or total size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.policy.filenames import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Kept:
    """A published file. ``size`` is in bytes, ``mtime_ns`` since the epoch."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """``--keep``, ``--max-age`` in seconds and ``--max-total`` in bytes; 0 is no limit."""

    keep: int = 0
    max_age: float = 0.0
    max_total: int = 0

    @property
    def unlimited(self) -> bool:
        """Whether nothing is ever deleted."""
        return not (self.keep or self.max_age or self.max_total)

    def surplus(self, files: Sequence[Kept], now_ns: int) -> list[Kept]:
        """Return the files to delete among one topic's files, oldest first.

        The newest file is never deleted, however old or large. If a file in the result must stay
        for now, no newer file is deleted in its place.
        """
        oldest = now_ns - self.max_age * SECOND if self.max_age else -math.inf
        keep, max_total = self.keep or math.inf, self.max_total or math.inf
        found = []
        total = 0
        newest_first = sorted(files, key=lambda file: (file.mtime_ns, file.path), reverse=True)
        for count, file in enumerate(newest_first, 1):
            total += file.size
            over = count > keep or total > max_total or file.mtime_ns < oldest
            if over and count > 1:
                found.append(file)
        return found[::-1]
