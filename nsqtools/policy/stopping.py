"""The stop conditions that depend on time and emptiness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StopReason = Literal["empty", "max-duration", "idle-timeout", "count", "stopped"]
"""Why a run ends; a StopRule decides the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Limits of a run, in seconds; None is no limit."""

    max_duration: float | None = None
    idle_timeout: float | None = None
    until_empty: bool = False
    """Stop after two checks found every nsqd empty: at one check a message may be on its way."""

    def decide(
        self, *, started: float, last_message: float, empties: int, now: float
    ) -> StopReason | None:
        """Return the reason to stop now, or None.

        ``last_message`` is the time of the last message; before the first it is ``started`` or
        earlier. ``empties`` is the number of consecutive checks that found every channel empty.
        """
        if self.until_empty and empties >= 2:
            return "empty"
        if self.max_duration is not None and now >= started + self.max_duration:
            return "max-duration"
        if self.idle_timeout is not None and now >= (
            max(started, last_message) + self.idle_timeout
        ):
            return "idle-timeout"
        return None

    def next_check(self, *, started: float, last_message: float) -> float | None:
        """Return when time may stop the run if no message comes; None for never.

        ``decide`` returns a reason at that time. ``until_empty`` depends on checks, not on time.
        """
        times = []
        if self.max_duration is not None:
            times.append(started + self.max_duration)
        if self.idle_timeout is not None:
            times.append(max(started, last_message) + self.idle_timeout)
        return min(times, default=None)
