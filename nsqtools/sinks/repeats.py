"""Logging of repeated events, with a count, once a minute."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from nsqtools.config.units import counted

if TYPE_CHECKING:
    from logging import Logger

_INTERVAL = 60.0
"""Seconds between two lines with the same text."""
_MOST = 1000
"""Maximum number of different lines to remember."""


class Repeats:
    """Logs how many messages of a topic met an event, each event at most once a minute."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._known: dict[tuple[int, str, str], tuple[float, int]] = {}

    def tell(self, level: int, topic: str, count: int, event: str) -> None:
        """Log a line, or add to the count of its next occurrence if it was logged recently."""
        key = level, topic, event
        due, held = self._known.pop(key, (0.0, 0))
        held += count
        if (now := monotonic()) >= due:
            self._say(key, held)
            due, held = now + _INTERVAL, 0
        if len(self._known) == _MOST:
            self.close()
        self._known[key] = due, held

    def close(self) -> None:
        """Log counts that have not been logged yet."""
        for key, (_, held) in self._known.items():
            self._say(key, held)
        self._known.clear()

    def _say(self, key: tuple[int, str, str], count: int) -> None:
        level, topic, event = key
        if count:
            self._log.log(level, "topic %s: %s %s", topic, counted(count, "message"), event)
