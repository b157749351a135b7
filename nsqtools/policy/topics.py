"""Follows the topics matching a pattern, while nsqlookupds list and forget topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.names import is_valid_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsqtools.names import TopicPattern

MIN_GRACE = 120.0
"""A restarted nsqlookupd lists no topics until nsqds have registered again, within a minute."""


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one round, sorted by name."""

    appeared: Sequence[str] = ()
    disappeared: Sequence[str] = ()


def matching(pattern: TopicPattern, topics: Iterable[str]) -> list[str]:
    """Return the topics with a match anywhere, as for Go's ``regexp.MatchString``, once each."""
    return [topic for topic in dict.fromkeys(topics) if pattern.search(topic)]


class MatchingTopics:
    """Tracks the topics matching a pattern, over rounds of polling nsqlookupds.

    Rounds are ``refresh`` seconds apart. A topic has disappeared once it was missing from all
    rounds for twice ``refresh``, and for at least MIN_GRACE seconds. A round with a silent
    nsqlookupd can add topics, but restarts the time of missing topics.
    """

    def __init__(self, pattern: TopicPattern, refresh: float) -> None:
        self._pattern = pattern
        self._grace = max(2 * refresh, MIN_GRACE)
        self._missing: dict[str, float | None] = {}
        # All current topics, each with the time of the first round without it.

    def heard(self, topics: Iterable[str]) -> Change:
        """Return the new topics of one answer; further answers of the round may follow."""
        found = {topic for topic in matching(self._pattern, topics) if is_valid_name(topic)}
        appeared = sorted(found - self._missing.keys())
        self._missing.update(dict.fromkeys(found))
        return Change(appeared)

    def looked(self, topics: Iterable[str], *, complete: bool, now: float) -> Change:
        """Return the changes of a round; ``complete`` if every nsqlookupd answered."""
        found = set(topics)
        appeared = self.heard(found).appeared
        disappeared = []
        for topic in sorted(self._missing.keys() - found):
            since = self._missing[topic]
            if not complete:
                self._missing[topic] = None
            elif since is None:
                self._missing[topic] = now
            elif now - since >= self._grace:
                del self._missing[topic]
                disappeared.append(topic)
        return Change(appeared, disappeared)
