"""Which files are archives by their names: FileNames the other way round."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Protocol

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
_ABOVE_0, _ZERO = f"(?!-000000){_NUMBERED}", "-000000"

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
    # Not also what could be a revision after it.
    "Z": "(?:[A-Za-z0-9+-]+?(?<![0-9]{6})|UTC[+-][0-9]{2}:[0-9:.]+)",
}
"""What strftime writes in the C locale, which is Python's until a program sets another."""


@dataclass(frozen=True, slots=True)
class Match:
    """Whose file it is; ``name`` as ``FileNames.at`` gives it, with ``<REV>`` still in it.

    ``topic`` is empty where the format does not tell and there are several.
    """

    topic: str
    name: str
    revision: int


class Matcher(Protocol):
    """Knows the names of files, relative to a directory."""

    def match(self, path: str) -> Match | None:
        """What this relative path says; None when the file is not ours."""

    def descend(self, directory: str) -> bool:
        """Whether this directory, relative and not the root, may hold files that match."""


class AnyName:
    """A Matcher that knows the names of several."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = matchers

    def match(self, path: str) -> Match | None:
        """As the first that knows the path."""
        return next((found for each in self._matchers if (found := each.match(path))), None)

    def descend(self, directory: str) -> bool:
        """As any."""
        return any(each.descend(directory) for each in self._matchers)


class NameMatcher:
    """Paths, relative to the output directory, that this command gives to files of its host.

    ``topics`` are those that are archived, or a pattern that their names have a match of. What
    ``FileNames.path`` gives is matched with its own topic, name and revision, whatever process
    and time it was for, where only one reading of the path gives that path again. Where several
    do, as with ``<TOPIC><REV>`` and topics ``a`` and ``a-000001``, it is the longest of the
    topics, or of a pattern's the shortest, because more files are revisions than topics are
    called like one. A revision that these options would write otherwise (with or without 0) is
    read where nothing else fits: the options were others before.
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

    def match(self, path: str) -> Match | None:
        """What this relative path says; None when the file is not ours."""
        for reading, compiled in self._files:
            if found := self._find(reading.file, compiled, path):
                groups = found.groupdict()
                number = groups.get("rev")
                name = "".join(groups[text] if group else text for text, group in reading.name)
                topic = groups.get("topic") or reading.topic or self._only
                return Match(topic, name, int(number[1:]) if number else 0)
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
            revisions = ("", _ABOVE_0, _ZERO) if self._wanted is None else (_ABOVE_0, "", _ZERO)
            if pattern.repeated_by:
                revisions = (_NUMBERED, "")
        # A directory named for the topic "." is none.
        topics = ("", ".") if self._accepts(".") else ("",)
        for revision, shape, topic in product(revisions, _shapes(pattern, hostname), topics):
            if reading := _reading(shape, revision, topic):
                yield reading

    def _accepts(self, topic: str) -> bool:
        if self._wanted is None:
            return re.fullmatch(self._topic, topic) is not None
        return is_valid_name(topic) and self._wanted.search(topic) is not None

    def _compile(self, source: str, topic: str = "") -> re.Pattern[str]:
        return re.compile(source.replace(_HOLE, topic or self._topic), re.ASCII)

    def _find(self, source: str, compiled: re.Pattern[str], path: str) -> re.Match[str] | None:
        """The match whose topic is wanted, of the shortest such topic with a pattern."""
        found = compiled.fullmatch(path)
        if (
            not found
            or self._wanted is None
            or _HOLE not in source
            or self._accepts(found["topic"])
        ):
            return found
        longest = self._compile(source, _LONGEST).fullmatch(path)
        if longest and longest["topic"] != found["topic"]:
            for length in range(1, 65):
                found = self._compile(source, _ANY_TOPIC % f"{length}}}").fullmatch(path)
                if found and self._accepts(found["topic"]):
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
    """One way to read a path: expressions, and pairs of a text or group to make the name of."""

    file: str
    directories: tuple[str, ...]
    name: tuple[tuple[str, bool], ...]
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
    name: list[tuple[str, bool]] = []
    for piece in shape:
        group, regex, text = piece.group, piece.regex, piece.text
        if group == "rev":
            name.append((REV, False))
            regex, text = revision, ""
        elif group == "topic" and topic:
            name.append((topic, False))
            regex, text = "", topic
        else:
            name.append((group or text, bool(group)))
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
    return _Reading(paths[-1], tuple(paths[:-1]), tuple(name), topic)


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
