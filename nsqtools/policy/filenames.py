"""Names of archive files: nsq_to_file's tokens, with the time of the clock or of a message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsqtools.errors import ConfigError
from nsqtools.names import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo

FILENAME_FORMAT = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
DATETIME_FORMAT = "%Y-%m-%d_%H"
SECOND = 1_000_000_000
"""One second in ns, the unit of wall clocks and message timestamps."""

REV = "<REV>"
_TOKENS = ("<TOPIC>", "<HOST>", "<PID>", "<DATETIME>", REV)
_HOST_TOKENS = ("<SHORT_HOST>", "<HOSTNAME>")
TOKEN = re.compile(r"(<[^<>/]*>)")
_DIRECTIVE = re.compile(r"%(%|[szZ]|[-_0^#]?[aAbBcCdDeFgGhHIjklmMpPrRSTuUVwWxXyY])")
_MISPLACED = re.compile(r"(?<!%)%[aAbBcCdDeFgGhHIjklmMpPrRsSTuUVwWxXyYzZ]")
_PERCENT = re.compile(r"%[-_0^#:]*.?", re.DOTALL)

_BY_SECOND, _BY_MINUTE = frozenset("sSTXcr"), frozenset("MR")
_QUARTER = 900
"""Seconds; UTC offsets today are multiples of a quarter of an hour, and change at a multiple.

For other offsets, each second is looked up separately.
"""

INCOMPLETE = (".part", ".torn", ".damaged", ".copy")
"""Suffixes of incomplete files only."""

_LONGEST = 250
"""Maximum bytes of a name: with ``.part`` it fits into the 255 bytes of most file systems."""

_CACHED = 512
_LOOK_AHEAD = 86_400


class Stamped(Protocol):
    """An object with a timestamp, such as a message."""

    @property
    def timestamp(self) -> int:
        """Nanoseconds since the epoch."""


M = TypeVar("M", bound=Stamped)


def local_time(second: int, zone: tzinfo | None) -> datetime:
    """Return the aware local time at this second since the epoch; None is the machine's zone."""
    if zone is None:
        return datetime.fromtimestamp(second).astimezone()
    return datetime.fromtimestamp(second, zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """The options for file names, as in nsq_to_file; raises ConfigError naming the flag.

    ``suffix`` is the suffix of the compression, such as ``.gz``, appended where missing.
    ``repeated_by`` is the flag responsible for several files of one name (compression, rotation, a
    work directory), if any: then ``<REV>`` is required and always written. Otherwise revision 0 is
    written as an empty string (file_logger.go, computeFilenameFormat). Unlike in nsq_to_file,
    literals around strftime's directives are kept, directives missing in Go work, and unknown
    tokens and directives are errors.
    """

    filename_format: str = FILENAME_FORMAT
    datetime_format: str = DATETIME_FORMAT
    host_identifier: str = ""
    suffix: str = ""
    repeated_by: str = ""

    def __post_init__(self) -> None:
        _check_tokens("--filename-format", self.filename_format, _TOKENS)
        _check_tokens("--host-identifier", self.host_identifier, _HOST_TOKENS)
        if wrong := _MISPLACED.search(self.filename_format):
            raise ConfigError(
                f"--filename-format {self.filename_format!r}: {wrong[0]} is expanded only in "
                "--datetime-format: move it there, and write <DATETIME> here"
            )
        if self.filename_format.endswith(INCOMPLETE):
            raise ConfigError(
                f"--filename-format {self.filename_format!r}: {' '.join(INCOMPLETE)} are reserved "
                "for incomplete files: choose another suffix"
            )
        for token in _TOKENS:
            if token in self.datetime_format:
                raise ConfigError(
                    f"--datetime-format {self.datetime_format!r}: {token} is expanded only in "
                    "--filename-format: move it there"
                )
        _split(self.datetime_format)
        if self.repeated_by and REV not in self.filename_format:
            raise ConfigError(
                f"--filename-format {self.filename_format!r}: with {self.repeated_by} several "
                f"files may get the same name: add <REV>, as in {FILENAME_FORMAT!r}"
            )
        # Find errors independent of topic and host before the first topic is known.
        FileNames(self, topic="topic", hostname="host", pid=1, zone=None)

    def host(self, hostname: str) -> str:
        """Return the text for ``<HOST>`` on a host."""
        short, _, _ = hostname.partition(".")
        hosts = {"<SHORT_HOST>": short, "<HOSTNAME>": hostname}
        return _replace(self.host_identifier or "<SHORT_HOST>", hosts)

    def parts(self, hostname: str) -> Iterator[tuple[str, str]]:
        """Yield pairs of a literal and the directive after it; the last pair has no directive.

        ``<TOPIC>``, ``<PID>`` and ``<REV>`` stay in the literals.
        """
        literal = ""
        for piece in TOKEN.split(self.filename_format):
            if piece != "<DATETIME>":
                literal += self.host(hostname) if piece == "<HOST>" else piece
                continue
            for text, directive in _split(self.datetime_format):
                literal += text
                if directive:
                    yield literal, directive
                    literal = ""
        yield literal if literal.endswith(self.suffix) else literal + self.suffix, ""


class FileNames:
    """The names of one topic's files, relative to the output directory.

    A name has no revision, as in nsq_to_file: it contains ``<REV>``, and ``path`` replaces this.
    A ``zone`` of None is the machine's local time. Raises ConfigError for a name outside the
    directory.
    """

    def __init__(
        self, pattern: NamePattern, *, topic: str, hostname: str, pid: int, zone: tzinfo | None
    ) -> None:
        fixed = {"<TOPIC>": check_name("topic", topic), "<PID>": str(pid)}
        self._always_numbered = bool(pattern.repeated_by)
        parts = pattern.parts(hostname)
        self._parts = [(_replace(literal, fixed), directive) for literal, directive in parts]
        self._zone = zone
        self._step = _resolution(directive for _, directive in self._parts) * SECOND
        self._cache: dict[int, str | None] = {}
        self._change = (0, 0)
        for revision in (0, 1) if REV in pattern.filename_format else (0,):
            self.path(self.at(0), revision)

    def at(self, ns: int) -> str:
        """Return the name at this time, in ns since the epoch."""
        name = self._during(ns // self._step)
        return self._render(ns // SECOND) if name is None else name

    def by_name(self, messages: Sequence[M]) -> dict[str, list[M]]:
        """Group messages by the names for their timestamps; both keep their order."""
        if not messages:
            return {}
        step = self._step
        stamps = [message.timestamp for message in messages]
        bucket = min(stamps) // step
        if max(stamps) // step == bucket and (name := self._during(bucket)) is not None:
            return {name: list(messages)}
        groups: dict[str, list[M]] = {}
        group: list[M] = []
        last = None
        for message, ns in zip(messages, stamps, strict=True):
            bucket = ns // step
            if bucket != last:
                name = self._during(bucket)
                last = None if name is None else bucket
                group = groups.setdefault(self.at(ns) if name is None else name, [])
            group.append(message)
        return groups

    def next_change(self, ns: int) -> int:
        """Return when the clock's name changes after ``ns``, but at most a day after ``ns``.

        Setting the clock changes the result: ask again now and then.
        """
        start, end = self._change
        if not start <= ns < end:
            name = self.at(ns)
            second = self._unchanged_until(ns // SECOND)
            limit = ns // SECOND + _LOOK_AHEAD
            while second < limit and self.at(second * SECOND) == name:
                second = self._unchanged_until(second)
            end = min(second, limit) * SECOND
            self._change = (ns, end)
        return end

    def path(self, name: str, revision: int) -> str:
        """Return the path of a name's revision, from 0, below the output directory.

        Raises ConfigError if the path leaves the directory, or a revision above 0 lacks ``<REV>``.
        """
        if revision and REV not in name:
            raise ConfigError(
                f"--filename-format: {name} exists: add <REV> to the format, so that each file has "
                "a name of its own"
            )
        number = f"-{revision:06d}" if revision or self._always_numbered else ""
        return inside(name.replace(REV, number))

    def _during(self, bucket: int) -> str | None:
        """Return the name during one step of time; None if it may change within the step."""
        try:
            return self._cache[bucket]
        except KeyError:
            pass
        step = self._step // SECOND
        first = local_time(bucket * step, self._zone)
        last = local_time(bucket * step + step - 1, self._zone)
        offset = first.utcoffset() or timedelta()
        steady = (first.utcoffset(), first.tzname()) == (last.utcoffset(), last.tzname())
        name = None
        if step == 1 or (steady and not offset % timedelta(seconds=step)):
            name = self._render(bucket * step)
        if len(self._cache) >= _CACHED:
            self._cache.clear()
        self._cache[bucket] = name
        return name

    def _unchanged_until(self, second: int) -> int:
        """Return a later second; the name does not change before it."""
        step = self._step // SECOND
        bucket = second // step
        return second + 1 if self._during(bucket) is None else (bucket + 1) * step

    def _render(self, second: int) -> str:
        moment = local_time(second, self._zone)
        text = ""
        for literal, directive in self._parts:
            # strftime's %s would use the machine's zone instead of the date's.
            text += literal + (str(second) if directive == "%s" else moment.strftime(directive))
        return text


class Revisions:
    """Hands out revisions, to use no name twice even when the clock goes back.

    One object serves all topics of an output directory. nsq_to_file starts again from 0 and relies
    on finding the old file. Only the last ``remembered`` names are kept.
    """

    def __init__(self, remembered: int = 10_000) -> None:
        self._remembered = remembered
        self._next: dict[str, int] = {}

    def skip(self, name: str, revision: int) -> None:
        """Note a revision used by an earlier process, wherever its file is now."""
        self._next[name] = max(self._next.pop(name, 0), revision + 1)

    def take(self, name: str) -> int:
        """Return the lowest revision above all used ones, from 0."""
        revision = self._next.pop(name, 0)
        self._next[name] = revision + 1
        if len(self._next) > self._remembered:
            self._next.pop(next(iter(self._next)), None)  # topics may share this, in threads
        return revision


def _check_tokens(flag: str, text: str, tokens: Sequence[str]) -> None:
    for token in TOKEN.findall(text):
        if token not in tokens:
            from difflib import get_close_matches

            near = get_close_matches(token.upper(), tokens, n=1)
            fix = f"did you mean {near[0]}?" if near else f"use {' '.join(tokens)}"
            raise ConfigError(f"{flag} {text!r}: unknown token {token}: {fix}")


def _replace(text: str, values: dict[str, str]) -> str:
    return "".join(values.get(piece, piece) for piece in TOKEN.split(text))


def _split(datetime_format: str) -> Iterable[tuple[str, str]]:
    """Return pairs of a literal and a directive; this is empty after "%%" and at the end."""
    pairs, start = [], 0
    while (sign := datetime_format.find("%", start)) >= 0:
        literal = datetime_format[start:sign]
        if found := _DIRECTIVE.match(datetime_format, sign):
            percent = found[0] == "%%"
            pairs.append((literal + "%", "") if percent else (literal, found[0]))
            start = found.end()
            continue
        wrong = _PERCENT.match(datetime_format, sign)
        text = wrong[0] if wrong else "%"
        fix = "use %% for a percent sign"
        if text == "%f":
            fix = "every message would get a file of its own: use %S or a longer unit"
        raise ConfigError(f"--datetime-format {datetime_format!r}: {text} is not supported: {fix}")
    pairs.append((datetime_format[start:], ""))
    return pairs


def _resolution(directives: Iterable[str]) -> int:
    """Return a step in seconds: within one UTC offset a name changes only at its multiples."""
    verbs = {directive[-1:] for directive in directives}
    if verbs & _BY_SECOND:
        return 1
    return 60 if verbs & _BY_MINUTE else _QUARTER


def inside(path: str) -> str:
    """Return the path; raises ConfigError if it leaves the directory or has redundant parts."""
    source = f"--filename-format: {path!r}"
    if "\0" in path:
        raise ConfigError(f"{source} contains a NUL character: remove it")
    if path.startswith("/"):
        raise ConfigError(f"{source} is absolute: give the directory with --output-dir")
    *_, last = parts = path.split("/")
    if ".." in parts:
        raise ConfigError(f"{source} is outside --output-dir: remove '..'")
    if last in ("", "."):
        raise ConfigError(f"{source} is a directory: add a file name")
    if not {"", "."}.isdisjoint(parts):
        raise ConfigError(f"{source} has an empty part or '.': remove it")
    if any(len(part.encode("utf-8", "surrogateescape")) > _LONGEST for part in parts):
        raise ConfigError(f"{source} is longer than a file name may be ({_LONGEST} bytes)")
    return path
