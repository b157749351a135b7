"""Which files are a topic's archives, by their names: FileNames the other way round."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from nsqtools.names import is_valid_name
from nsqtools.policy.filenames import REV, TOKEN, name_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsqtools.policy.filenames import NamePattern

_GROUPS = {"<TOPIC>": "topic", "<PID>": "pid", REV: "rev"}
_ANY_TOPIC = "[.a-zA-Z0-9_-]{%s(?:#ephemeral)?"
_SHORTEST, _LONGEST = _ANY_TOPIC % "1,64}?", _ANY_TOPIC % "1,64}"
_HOLE = "\0"
"""Where the expression for a topic goes; no name has it."""

_NUMBERED = "-(?:[0-9]{6}|[1-9][0-9]{6,})"

_SPELLED_OUT = {
    "D": "%m/%d/%y",
    "x": "%m/%d/%y",
    "F": "%Y-%m-%d",
    "R": "%H:%M",
    "T": "%H:%M:%S",
    "X": "%H:%M:%S",
    "r": "%I:%M:%S %p",
    "c": "%a %b %e %H:%M:%S %Y",
}
_WIDTHS = dict.fromkeys("CdegHIklmMSUVWy", 2) | {"j": 3, "Y": 4, "G": 4, "u": 1, "w": 1}
_WORDS = {
    **dict.fromkeys("abh", "[A-Za-z]{3}"),
    "A": "(?i:(?:Sun|Mon|Tues|Wednes|Thurs|Fri|Satur)day)",
    "B": "(?i:January|February|March|April|May|June|July|August|(?:Septem|Octo|Novem|Decem)ber)",
    **dict.fromkeys("pP", "[AaPp][Mm]"),
    "s": "-?[0-9]+",
    "z": r"[+-][0-9]{4}(?:[0-9]{2}(?:\.[0-9]{6})?)?",
    "Z": "[A-Za-z0-9+-]+|UTC[+-][0-9]{2}:[0-9:.]+",
}
"""What strftime writes in the C locale, which is Python's until a program sets another."""


class NameMatcher:
    """Paths, relative to the output directory, that this command gives to files of its host.

    ``topics`` are those that are archived, or a pattern that their names have a match of. What
    ``FileNames.path`` gives is matched with its topic, whatever process, time and revision it was
    for. Where a path could be several topics', as with ``<TOPIC><REV>`` and topics ``a`` and
    ``a-000001``, it is the longest of the topics, or of a pattern's the shortest, because more
    files are revisions than topics are called like one.
    """

    def __init__(
        self, pattern: NamePattern, *, hostname: str, topics: Collection[str] | re.Pattern[str]
    ) -> None:
        self._wanted = None if isinstance(topics, Collection) else topics
        self._only = ""
        self._topic = _SHORTEST
        if isinstance(topics, Collection):
            longest_first = sorted(set(topics), key=lambda topic: (-len(topic), topic))
            self._topic = "|".join(map(re.escape, longest_first)) or "(?!)"
            self._only = longest_first[0] if len(longest_first) == 1 else ""
        self._readings = list(dict.fromkeys(self._read(pattern, hostname)))
        self._files = [(each, self._compile(each.file)) for each in self._readings]
        self._directories: dict[int, list[tuple[str, re.Pattern[str]]]] = {}
        for source in dict.fromkeys(s for each in self._readings for s in each.directories):
            at_depth = self._directories.setdefault(source.count("/"), [])
            at_depth.append((source, self._compile(source)))

    def match(self, path: str) -> str | None:
        """The topic whose file has this relative path; None when the file is not ours.

        It is empty where the format does not tell and there are several.
        """
        for reading, compiled in self._files:
            if found := self._find(reading.file, compiled, path):
                return found.groupdict().get("topic") or reading.topic or self._only
        return None

    def descend(self, directory: str) -> bool:
        """Whether this directory, relative and not the root, may hold files that match."""
        return any(
            self._find(source, compiled, directory)
            for source, compiled in self._directories.get(directory.count("/"), ())
        )

    def _read(self, pattern: NamePattern, hostname: str) -> Iterator[_Reading]:
        """Readings of a path, the one to be preferred first."""
        revisions: tuple[str, ...] = ("",)
        if REV in pattern.filename_format:
            known = self._wanted is None and not pattern.repeated_by
            revisions = ("", _NUMBERED) if known else (_NUMBERED, "")
        # A directory named for the topic "." is none.
        topics = ("", ".") if self.accepts(".") else ("",)
        for revision, shape, topic in product(revisions, _shapes(pattern, hostname), topics):
            if reading := _reading(shape, revision, topic):
                yield reading

    def accepts(self, topic: str) -> bool:
        """Whether this topic is archived."""
        if self._wanted is None:
            return re.fullmatch(self._topic, topic) is not None
        return is_valid_name(topic) and self._wanted.search(topic) is not None

    def _compile(self, source: str, topic: str = "") -> re.Pattern[str]:
        return re.compile(source.replace(_HOLE, topic or self._topic), re.ASCII)

    def _find(self, source: str, compiled: re.Pattern[str], path: str) -> re.Match[str] | None:
        """The match whose topic is wanted, of the shortest such topic with a pattern."""
        found = compiled.fullmatch(path)
        if not found or self._wanted is None or _HOLE not in source or self.accepts(found["topic"]):
            return found
        longest = self._compile(source, _LONGEST).fullmatch(path)
        if longest and longest["topic"] != found["topic"]:
            for length in range(1, 65):
                found = self._compile(source, _ANY_TOPIC % f"{length}}}").fullmatch(path)
                if found and self.accepts(found["topic"]):
                    return found
        return None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Of a name: a literal ``text``, or what ``regex`` matches and ``group`` is called."""

    text: str
    regex: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One way to read a path, in expressions; ``topic`` is empty where they have its group."""

    file: str
    directories: tuple[str, ...]
    topic: str


def _shapes(pattern: NamePattern, hostname: str) -> Iterator[list[_Piece]]:
    """The pieces of a name, with its suffix appended and, where a topic may bring it, without."""
    parts = list(name_parts(pattern, hostname, {}))
    repeats = pattern.filename_format.count("<DATETIME>")
    period = (len(parts) - 1) // max(repeats, 1)
    pieces: list[_Piece] = []
    for number, (literal, directive) in enumerate(parts):
        pieces += _tokens(literal)
        if directive:
            pieces += _spelled_out(directive, f"w{number % period}")
    suffix, (last, _) = pattern.suffix, parts[-1]
    if last.endswith(suffix):
        yield pieces
        return
    _, topic, after = last.rpartition("<TOPIC>")
    if not topic or not suffix.endswith(after):
        yield [*pieces, _Piece(suffix)]
        return
    ending = re.escape(suffix)
    yield [*pieces, _Piece("", f"(?<!{ending})"), _Piece(suffix)]
    yield [*pieces, _Piece("", f"(?<={ending})")]


def _tokens(literal: str) -> Iterator[_Piece]:
    regexes = {"<TOPIC>": _HOLE, "<PID>": "[0-9]+"}
    for text in TOKEN.split(literal):
        if group := _GROUPS.get(text):
            yield _Piece(text, regexes.get(text, ""), group)
        elif text:
            yield _Piece(text)


def _spelled_out(directive: str, group: str) -> Iterator[_Piece]:
    """The directive in pieces, of which those with a slash are literals."""
    flag, verb = directive[1:-1], directive[-1]
    if text := _SPELLED_OUT.get(verb):
        for number, part in enumerate(re.split("(%.)", text)):
            if part.startswith("%"):
                yield from _spelled_out(part, f"{group}_{number}")
            elif part:
                yield _Piece(part)
        return
    if regex := _WORDS.get(verb):
        yield _Piece(directive, regex, group)
        return
    width = _WIDTHS[verb]
    if flag or verb in "ekl":
        yield _Piece(directive, f"[ 0-9]{{0,{width - 1}}}[0-9]", group)
    else:
        yield _Piece(directive, f"[0-9]{{{width}}}", group)


def _reading(shape: Sequence[_Piece], revision: str, topic: str) -> _Reading | None:
    """The reading for revisions like this, none if empty, and for this topic, any if empty.

    Parts of a path that are empty or ``.`` are left out, as ``FileNames.path`` leaves them out;
    None where it would refuse the path.
    """
    components: list[list[_Piece]] = [[]]
    for piece in shape:
        group, regex, text = piece.group, piece.regex, piece.text
        if group == "rev":
            regex, text = revision, ""
        elif group == "topic" and topic:
            regex, text = "", topic
        if regex:
            components[-1].append(_Piece("", regex, group))
            continue
        first, *others = text.split("/")
        components[-1].append(_Piece(first))
        components += [[_Piece(other)] for other in others]
    fixed = [None if any(p.regex for p in c) else "".join(p.text for p in c) for c in components]
    if fixed[0] == "" or fixed[-1] in ("", ".") or ".." in fixed:
        return None
    seen: set[str] = set()
    sources = [
        "".join(_regexes(component, seen))
        for component, text in zip(components, fixed, strict=True)
        if text not in ("", ".")
    ]
    paths = ["/".join(sources[: depth + 1]) for depth in range(len(sources))]
    return _Reading(paths[-1], tuple(paths[:-1]), topic)


def _regexes(component: Iterable[_Piece], seen: set[str]) -> Iterator[str]:
    """Of each piece; what stands in a name twice is the same in both places."""
    for piece in component:
        if not piece.regex or not piece.group:
            yield piece.regex or re.escape(piece.text)
        elif piece.group in seen:
            yield f"(?P={piece.group})"
        else:
            seen.add(piece.group)
            yield f"(?P<{piece.group}>{piece.regex})"
