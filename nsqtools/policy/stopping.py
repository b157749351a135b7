"""When a consumer that was given a limit has reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["empty", "max-duration", "idle-timeout", "count", "stopped"]
"""Why a run ends; a StopRule knows the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Limits of a run; None is no limit. Durations are seconds."""

    max_duration: float | None = None
    idle_timeout: float | None = None
    until_empty: bool = False
    """Stop once every nsqd was seen empty twice: between looks a message may be on its way."""

    def decide(
        self, *, started: float, last_message: float, empties: int, now: float
    ) -> Reason | None:
        """Why to stop now, or None.

        ``last_message`` is when the last one came; before the first it is no later than
        ``started``. ``empties`` counts looks in a row at which every channel was empty.
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
        """When time alone may stop the run, unless a message comes; None for never.

        ``decide`` gives a reason at that time. The other limits are due when their facts change.
        """
        times = []
        if self.max_duration is not None:
            times.append(started + self.max_duration)
        if self.idle_timeout is not None:
            times.append(max(started, last_message) + self.idle_timeout)
        return min(times, default=None)
