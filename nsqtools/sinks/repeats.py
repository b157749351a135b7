"""Logs a repeated event once a minute, with a count."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

_INTERVAL = 60.0
"""Seconds between two lines that say the same."""
_MOST = 1000
"""Different lines that are remembered at a time."""


class Repeats:
    """Logs how many messages of a topic met some fate, each fate once a minute at most."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._known: dict[tuple[int, str, str], tuple[float, int]] = {}

    def tell(self, level: int, topic: str, count: int, fate: str) -> None:
        """Log a line at once, or add to the count of the next one that says the same."""
        key = level, topic, fate
        due, held = self._known.pop(key, (0.0, 0))
        held += count
        if (now := monotonic()) >= due:
            self._say(key, held)
            due, held = now + _INTERVAL, 0
        if len(self._known) == _MOST:
            self.close()
        self._known[key] = due, held

    def close(self) -> None:
        """Log the counts that no line has told."""
        for key, (_, held) in self._known.items():
            self._say(key, held)
        self._known.clear()

    def _say(self, key: tuple[int, str, str], count: int) -> None:
        level, topic, fate = key
        if count:
            self._log.log(level, "topic %s: %d messages %s", topic, count, fate)
