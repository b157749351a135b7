"""Recognises the archive files of a topic by their names: the reverse of FileNames."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING

from nsqtools.names import TopicPattern, is_valid_name
from nsqtools.policy.filenames import REV, TOKEN

if TYPE_CHECKING:
    from collections.abc import Collection

    from nsqtools.policy.filenames import NamePattern

_TOPIC = "[.a-zA-Z0-9_-]{1,64}"
_NUMBERED = "-(?:[0-9]{6}|[1-9][0-9]{6,})"

_SAMPLES = [
    datetime(2022, month, day, hour, 45, 56, tzinfo=UTC)
    for month, day, hour in product(range(1, 13), range(21, 28), (11, 23))
]
"""Times in all months, on all weekdays, and with AM and PM."""
_SAMPLE = datetime(2022, 11, 23, 23, 45, 56, tzinfo=UTC)
"""A time with the maximum number of digits in each number."""
_OF_ZONE = {"s": "-?[0-9]+", "z": "[+-][0-9]{4}[0-9.]*", "Z": "[A-Za-z0-9:.+-]+"}
"""Expressions for directives with output depending on the zone."""
_PADDED = "ceklr"
"""Directives that may write a space, or nothing, instead of a leading zero."""
_LETTERS = re.compile("[A-Za-z]+")
_RUNS = re.compile("([A-Za-z]+)|([0-9]+)|(.)")


class NameMatcher:
    """Matches paths, relative to the output directory, of files written by this host.

    ``topics`` are names, or a pattern for topic names. Every path returned by ``FileNames.path``
    matches with its topic, for any process, time and revision. A path may fit several topics, as
    with ``<TOPIC><REV>`` and topics ``a`` and ``a-000001``. The matcher then takes the longest of
    several names. With a pattern it takes the shortest topic, because a number is more often a
    revision than part of a name; if no revision fits, the longest topic.
    """

    def __init__(
        self, pattern: NamePattern, *, hostname: str, topics: Collection[str] | TopicPattern
    ) -> None:
        self._topics = topics
        self._only = ""
        if isinstance(topics, TopicPattern):
            forms = [f"{_TOPIC}{greed}(?:#ephemeral)?" for greed in ("?", "")]
        else:
            longest_first = sorted(set(topics), key=len, reverse=True)
            forms = ["|".join(map(re.escape, longest_first)) or "(?!)"]
            self._only = longest_first[0] if len(longest_first) == 1 else ""
        # Files written before an option such as --rotate-size was set may have no revision.
        revisions = [_NUMBERED, ""] if pattern.repeated_by else [f"(?:{_NUMBERED})?"]
        self._paths = [
            _expressions(pattern, hostname, topic=form, revision=revision)
            for revision, form in product(revisions, forms)
        ]

    def match(self, path: str) -> str | None:
        """Return the topic of this relative path; None if the file is not ours.

        The topic is empty if the format has no ``<TOPIC>``, and there are several topics.
        """
        found = self._find(-1, path)
        return found.groupdict().get("topic", self._only) if found else None

    def descend(self, directory: str) -> bool:
        """Whether this relative directory, not the root, may contain matching files."""
        depth = directory.count("/")
        return depth < len(self._paths[0]) - 1 and self._find(depth, directory) is not None

    def accepts(self, topic: str) -> bool:
        """Whether this topic is archived."""
        if isinstance(self._topics, TopicPattern):
            return is_valid_name(topic) and self._topics.search(topic) is not None
        return topic in self._topics

    def _find(self, depth: int, path: str) -> re.Match[str] | None:
        for expressions in self._paths:
            if found := expressions[depth].fullmatch(path):
                topic = found.groupdict().get("topic")
                if topic is None or self.accepts(topic):
                    return found
        return None


def _expressions(
    pattern: NamePattern, hostname: str, *, topic: str, revision: str
) -> list[re.Pattern[str]]:
    """Return expressions for the directories of a path, from the top down, and for the path."""
    tokens = {"<TOPIC>": f"(?P<topic>{topic})", "<PID>": "[0-9]+", REV: revision}
    source = ""
    for literal, directive in pattern.parts(hostname):
        for text in TOKEN.split(literal):
            source += tokens.get(text, re.escape(text))
            if text == "<TOPIC>":
                tokens[text] = "(?P=topic)"
        source += _of_directive(directive)
    parts = source.split("/")  # no other part of the expression contains a slash
    paths = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return [re.compile(path, re.ASCII) for path in paths]


def _of_directive(directive: str) -> str:
    """Return an expression for a directive's output, made from sample times."""
    verb = directive[-1:]
    if verb in _OF_ZONE:
        return _OF_ZONE[verb]
    is_padded = len(directive) > 2 or verb in _PADDED
    source = ""
    written = [_LETTERS.findall(sample.strftime(directive)) for sample in _SAMPLES]
    names = zip(*written, strict=True)
    for letters, digits, other in _RUNS.findall(_SAMPLE.strftime(directive)):
        if digits:
            count = len(digits)
            source += f"[ 0-9]{{1,{count}}}" if is_padded else f"[0-9]{{{count}}}"
        else:
            source += f"(?:{'|'.join(sorted(set(next(names))))})" if letters else re.escape(other)
    return source
