"""When to close an archive file and begin the next one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import SECOND, local_time

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

RotationReason = Literal["name", "interval", "boundary", "size"]

_DAY = 86_400
_MARGIN = 1_000
"""Delay in ns of a wake-up after the due time: otherwise rounding could make it early."""


@dataclass(slots=True, kw_only=True)
class OpenFile:
    """Facts about an open file.

    ``name`` is without the revision. ``opened`` is in monotonic seconds, ``opened_wall`` in ns
    since the epoch. ``size`` is in bytes before compression, ``compressed`` after it; for an
    appended file both include the existing bytes.
    """

    name: str
    opened: float
    opened_wall: int
    size: int = 0
    compressed: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Rotate:
    """Close the file; the next record opens another one."""

    reason: RotationReason


class Rotation:
    """The rules of ``--rotate-*``; 0 is no limit, sizes are in bytes, times in seconds.

    ``size`` is before compression; a file may exceed it by one record. ``interval`` counts from
    opening. ``boundary`` divides each day, by the clock of ``zone`` (None is local time), into
    pieces of this length from midnight on; the last piece may be shorter. Size and interval are
    compared with ``>`` (file_logger.go, needsRotation). An empty file stays open for at least
    ``sync_interval``, as its first records may be waiting for the sync. Raises ConfigError for a
    boundary over a day, or with a fraction.
    """

    def __init__(
        self,
        *,
        size: int = 0,
        interval: float = 0,
        boundary: float = 0,
        zone: tzinfo | None = None,
        skip_empty: bool = False,
        sync_interval: float = 0,
    ) -> None:
        if not 0 <= boundary <= _DAY or boundary % 1:
            raise ConfigError(
                f"rotation every {boundary:g} s by the clock: expected whole seconds, "
                "at most a day: use --rotate-interval for others"
            )
        self._size = size or math.inf
        self._interval = interval or math.inf
        self._boundary = int(boundary)
        self._zone = zone
        self._skip_empty = skip_empty
        self._sync_interval = sync_interval
        self._period = (0, 0)

    def decide(self, file: OpenFile, *, name: str, now: float, wall: int) -> Rotate | None:
        """Return whether to close the file before the next write.

        ``name`` is the name of a file opened now; for files named by message time, the file's own.
        ``now`` is monotonic: setting the clock does not affect intervals. ``wall`` is the clock in
        ns since the epoch and may go back: a file holds records of one name and of one piece of
        the day.
        """
        reason: RotationReason
        if name != file.name:
            reason = "name"
        elif now > self._expires(file):
            reason = "interval"
        elif self._boundary and self._end(wall) != self._end(file.opened_wall):
            reason = "boundary"
        elif file.size > self._size:
            reason = "size"
        else:
            return None
        return Rotate(reason)

    def room(self, file: OpenFile) -> float:
        """Return how many bytes, before compression, you may write before the next check.

        The result avoids a check per record. Below 0 write nothing; without a size limit it is
        infinite.
        """
        return self._size - file.size

    def next_due(
        self, file: OpenFile, *, now: float, wall: int, renamed: int | None = None
    ) -> float | None:
        """Return when to check again if nothing is written, in monotonic seconds; None for never.

        ``renamed`` is when the name changes by the clock, in ns since the epoch. ``decide`` returns
        a reason then, unless somebody has set the clock meanwhile. With ``skip_empty`` an empty
        file can wait for its first record.
        """
        if self._skip_empty and not (file.records or file.size):
            return None
        if file.size > self._size:
            return now
        instants = [] if renamed is None else [renamed]
        if self._boundary:
            end = self._end(wall)
            instants.append(end if end == self._end(file.opened_wall) else wall)
        due = min((now + (at - wall + _MARGIN) / SECOND for at in instants), default=math.inf)
        due = min(due, math.nextafter(self._expires(file), math.inf))
        return None if due == math.inf else max(due, now)

    def _expires(self, file: OpenFile) -> float:
        """Return when the interval of a file is over."""
        is_empty = not (file.records or file.size)
        return file.opened + max(self._interval, self._sync_interval if is_empty else 0)

    def _end(self, ns: int) -> int:
        """Return the first boundary after this time, in ns; it is the same for a whole piece."""
        start, end = self._period
        if not start <= ns < end:
            found = _next_boundary(ns // SECOND, self._boundary, self._zone) * SECOND
            start = min(start, ns) if found == end else ns
            self._period = (start, found)
            return found
        return end


def _next_boundary(second: int, every: int, zone: tzinfo | None) -> int:
    """Return the next second at which the local clock shows a multiple of ``every`` since midnight.

    When the clock is put forward over a multiple, the boundary is the time of the change. When the
    clock is put back, a repeated multiple is a boundary both times.
    """
    local = local_time(second, zone)
    of_day = _second_of_day(local)
    left = min(every - of_day % every, _DAY - of_day)
    end = second + left
    offset = local.utcoffset()
    if local_time(end, zone).utcoffset() == offset:
        return end
    before, change = second, end
    while change - before > 1:
        middle = (before + change) // 2
        if local_time(middle, zone).utcoffset() == offset:
            before = middle
        else:
            change = middle
    changed = local_time(change, zone).replace(tzinfo=None)
    left_out = changed >= local.replace(tzinfo=None) + timedelta(seconds=left)
    if left_out or _second_of_day(changed) % every == 0:
        return change
    return _next_boundary(change, every, zone)


def _second_of_day(local: datetime) -> int:
    return local.hour * 3600 + local.minute * 60 + local.second
