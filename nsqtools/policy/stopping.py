"""The stop conditions for time and empty channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StopReason = Literal["empty", "unknown", "max-duration", "idle-timeout", "count", "stopped"]
"""Why a run ends; a StopRule decides all but ``count`` and ``stopped``."""
OUT_OF_TIME: frozenset[StopReason] = frozenset({"empty", "unknown", "max-duration", "idle-timeout"})
"""After these reasons, a topic never reached counts as failed."""
MAY_LEAVE_MESSAGES: frozenset[StopReason] = frozenset({"unknown", "max-duration", "idle-timeout"})
"""Reasons that may end an ``until_empty`` run before the channels are empty."""

UNKNOWN_TIMEOUT = 30.0
"""Seconds a server may be silent while all others are empty; then the run ends: "unknown"."""


@dataclass(frozen=True, slots=True)
class Left:
    """The messages of a channel; ``unknown`` names nsqds with unknown contents, and the reasons.

    Unknown contents do not count as empty.
    """

    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """The number of messages on the nsqds with known contents."""
        return self.waiting + self.in_flight + self.deferred

    def __add__(self, other: Left) -> Left:
        return Left(
            self.waiting + other.waiting,
            self.in_flight + other.in_flight,
            self.deferred + other.deferred,
            (*self.unknown, *(each for each in other.unknown if each not in self.unknown)),
        )

    def __str__(self) -> str:
        parts = {
            "not delivered": self.waiting,
            "in flight": self.in_flight,
            "deferred": self.deferred,
        }
        return ", ".join(f"{count} {name}" for name, count in parts.items() if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Limits of a run, in seconds; None is no limit."""

    max_duration: float | None = None
    idle_timeout: float | None = None
    until_empty: bool = False
    """Stop once two checks found every nsqd empty: during one check a message may be on its way."""

    def decide(
        self,
        *,
        started: float,
        last_message: float,
        empties: int,
        now: float,
        silent_since: float | None = None,
    ) -> StopReason | None:
        """Return the reason to stop now, or None.

        ``last_message`` is the time of the last message; before the first it is ``started`` or
        earlier. ``empties`` is the number of consecutive checks finding every channel empty. Since
        ``silent_since`` every check has found some servers silent and all others empty.
        """
        if self.until_empty and empties >= 2:
            return "empty"
        if (
            self.until_empty
            and silent_since is not None
            and now >= max(silent_since, last_message) + UNKNOWN_TIMEOUT
        ):
            return "unknown"
        if self.max_duration is not None and now >= started + self.max_duration:
            return "max-duration"
        if self.idle_timeout is not None and now >= (
            max(started, last_message) + self.idle_timeout
        ):
            return "idle-timeout"
        return None

    def next_check(self, *, started: float, last_message: float) -> float | None:
        """Return when time may stop the run if no message comes; None for never.

        ``decide`` returns a reason then. ``until_empty`` depends on checks, not on time.
        """
        times = []
        if self.max_duration is not None:
            times.append(started + self.max_duration)
        if self.idle_timeout is not None:
            times.append(max(started, last_message) + self.idle_timeout)
        return min(times, default=None)
