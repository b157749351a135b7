"""Which published files to delete, by number, age, or total size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.policy.filenames import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEP = 600 * SECOND


@dataclass(frozen=True, slots=True)
class Kept:
    """A published file.

    ``size`` is in bytes. ``number`` is its place in the order of completion, and ``completed`` the
    time of it in ns of a ``ProvenTime``.
    """

    path: str
    size: int
    number: int
    completed: int


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

    def surplus(self, files: Sequence[Kept], now: int) -> list[Kept]:
        """Return the files to delete among one topic's files, oldest first.

        ``now`` is in ns of the files' ``ProvenTime``. The newest file is never deleted, however old
        or large. If a file in the result must stay for now, no newer file is deleted in its place.
        """
        oldest = now - self.max_age * SECOND if self.max_age else -math.inf
        keep, max_total = self.keep or math.inf, self.max_total or math.inf
        found = []
        total = 0
        newest_first = sorted(files, key=lambda file: file.number, reverse=True)
        for count, file in enumerate(newest_first, 1):
            total += file.size
            over = count > keep or total > max_total or file.completed < oldest
            if over and count > 1:
                found.append(file)
        return found[::-1]


class Moment(NamedTuple):
    """A moment in ns of the uptime of a host since this boot."""

    boot: str
    uptime: int


class ProvenTime:
    """Time that has certainly passed, in ns from an arbitrary moment on.

    A wall clock may jump by a year, either way, before a start or during a run, so the difference
    of two of its times is no age. The uptime of a host proves what has passed since an earlier
    moment of the same boot. Nothing proves how long the host was down, so that does not count.
    """

    def __init__(self, max_age: float) -> None:
        self.step = min(int(max_age * SECOND) // 10, _STEP)
        """ns that are lost at most where a boot ends, if a moment is noted at least as often."""
        self._boots: dict[str, tuple[int, int]] = {}
        self._newest = 0

    def note(self, at: int, moment: Moment) -> None:
        """Learn what ``at`` has returned for a moment; in order for each boot."""
        self._boots[moment.boot] = at, moment.uptime
        self._newest = max(self._newest, at)

    def at(self, moment: Moment) -> int:
        """Return the proven time at a moment."""
        if not (known := self._boots.get(moment.boot)):
            return self._newest
        at, uptime = known
        return at + max(0, moment.uptime - uptime)

    def is_due(self, moment: Moment) -> bool:
        """Whether to note a moment, so that little is lost if the boot ends."""
        known = self._boots.get(moment.boot)
        return not known or moment.uptime - known[1] > self.step
