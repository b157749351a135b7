"""Which topics a pattern stands for, while nsqlookupds come to know topics and forget them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.names import is_valid_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from re import Pattern

MIN_GRACE = 120.0
"""A restarted nsqlookupd knows nothing until nsqds have registered again, within a minute."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a look at nsqlookupds has changed; names in order."""

    appeared: Sequence[str] = ()
    gone: Sequence[str] = ()


def matching(pattern: Pattern[str], topics: Iterable[str]) -> list[str]:
    """The topics whose names have a match anywhere, as Go's ``regexp.MatchString``; no doubles."""
    return [topic for topic in dict.fromkeys(topics) if pattern.search(topic)]


class MatchingTopics:
    """The topics of a pattern, by what all nsqlookupds say in each round.

    Rounds are ``refresh`` seconds apart. A topic is gone once it has been missing for two of them,
    and for MIN_GRACE seconds, in all rounds of that time. A round that one nsqlookupd did not
    answer shows what there is, but not what is missing: the time begins anew after it.
    """

    def __init__(self, pattern: Pattern[str], refresh: float) -> None:
        self._pattern = pattern
        self._grace = max(2 * refresh, MIN_GRACE)
        self._missing: dict[str, float | None] = {}
        # Every topic of now, and since when it was missing.

    def looked(self, topics: Iterable[str], *, complete: bool, now: float) -> Change:
        """What is new and what is gone; ``complete`` if everybody answered."""
        found = {topic for topic in matching(self._pattern, topics) if is_valid_name(topic)}
        appeared = sorted(found - self._missing.keys())
        self._missing.update(dict.fromkeys(found))
        gone = []
        for topic in sorted(self._missing.keys() - found):
            since = self._missing[topic]
            if not complete:
                self._missing[topic] = None
            elif since is None:
                self._missing[topic] = now
            elif now - since >= self._grace:
                del self._missing[topic]
                gone.append(topic)
        return Change(appeared, gone)
