"""Whether archives and manifests hold what they should: read once, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.compression import METHODS, method_of
from nsqtools.sinks.files.journal import owing_near
from nsqtools.sinks.formats import unescape
from nsqtools.sinks.members import NOUNS
from nsqtools.sinks.recovery import Inspection, inspect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

__all__ = ["FORMATS", "Layout", "Report", "check", "is_manifest"]

FORMATS = ("raw", "json", "length-prefixed")

_LINE = 1 << 20
"""Bytes of the longest line of a manifest; ours have some hundreds."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How records stand in a file; ``delimiter`` is for ``raw``."""

    format: str = "raw"
    delimiter: bytes = b"\n"
    max_msg_size: int = 64 << 20

    def inspect(self, file: BinaryIO, compression: str) -> Inspection:
        """As ``recovery.inspect``, but a compressed file without a member has a problem.

        No encoder leaves one so, and readers such as ``gzip`` refuse it.
        """
        found = inspect(
            file,
            compression=compression,
            json=self.format == "json",
            length_prefix=self.format == "length-prefixed",
            delimiter=self.delimiter,
            max_msg_size=self.max_msg_size,
        )
        if compression == "none" or found.good or found.problem:
            return found
        return replace(found, problem=f"empty: not even one {NOUNS[compression]}")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one file, or of one line of a manifest.

    ``records`` and ``size``, in bytes on disk, are those of what is good; of a manifest, those of
    all its files together, which are ``files``. ``deleted`` are its files that retention may have
    deleted. ``problem`` is empty, or one line on what is wrong and where. ``unreadable`` says that
    it is about the reading: whether the file is good is not known. ``waiting`` counts the files
    with which ``--on-rotate`` has not succeeded yet.
    """

    records: int = 0
    size: int = 0
    problem: str = ""
    unreadable: bool = False
    files: int | None = None
    deleted: int | None = None
    waiting: int = 0


def check(path: str, layout: Layout) -> Iterator[Report]:
    """Read a file, and if it is a manifest the files that it lists.

    An archive is unpacked as its name's end tells and read as ``layout`` tells; it gives one
    report. A manifest, which is known by its first line, gives one for each line that is wrong,
    and if none is wrong one for all; its lines tell the layout of their files. Of the lines of one
    name the last counts: a file that is continued gets another, as does one that takes its name.

    Retention deletes the oldest files of a topic and never the newest. So files of a topic that
    are gone are counted up to the first that is there, and any other that is gone is a problem.
    """
    try:
        with open(path, "rb") as file:
            if method_of(path) != "none" or not is_manifest(file):
                file.seek(0)
                report = _checked(file, method_of(path), layout)
                path = os.path.realpath(path)
                yield replace(report, waiting=int(path in owing_near(path)))
                return
            yield from _manifest(file, os.path.dirname(path), layout)
    except OSError as error:
        yield Report(problem=_reason(error), unreadable=True)


def _checked(file: BinaryIO, compression: str, layout: Layout) -> Report:
    found = layout.inspect(file, compression)
    return Report(found.records, found.good, found.problem)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def is_manifest(file: BinaryIO) -> bool:
    """Whether its first line is that of a manifest."""
    try:
        value = json.loads(file.readline(_LINE))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"name", "records", "bytes", "sha256"} <= value.keys()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of a manifest (``published.Manifest`` writes them)."""

    name: str
    topic: str
    records: int | None
    size: int
    sha256: str
    layout: Layout
    compression: str


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of this number, from 1, that begins at ``offset``: its entry, or its fault."""

    number: int
    offset: int
    entry: _Entry | None = None
    problem: str = ""


@dataclass(slots=True)
class _Topic:
    """Which files of a topic were there so far; ``last`` is the place of the last that was not."""

    there: bool = False
    gone: int = 0
    last: str = ""


@dataclass(slots=True)
class _Sum:
    records: int = 0
    size: int = 0
    files: int = 0
    waiting: int = 0
    topics: dict[str, _Topic] = field(default_factory=dict)


def _manifest(file: BinaryIO, folder: str, layout: Layout) -> Iterator[Report]:
    total = _Sum()
    good = True
    for report in _faults(file, folder, layout, total):
        good = False
        yield report
    for topic in total.topics.values():
        if not topic.there:
            good = False
            yield Report(problem=f"{topic.last}: gone, though the newest file of its topic")
    if good:
        deleted = sum(topic.gone for topic in total.topics.values())
        yield Report(
            total.records, total.size, files=total.files, deleted=deleted, waiting=total.waiting
        )


def _faults(file: BinaryIO, folder: str, layout: Layout, total: _Sum) -> Iterator[Report]:
    """What is wrong with single lines; ``total`` gets the rest."""
    last = {line.entry.name: line.number for line in _lines(file) if line.entry}
    owing = owing_near(os.path.join(os.path.realpath(folder), "manifest"))
    for line in _lines(file):
        entry = line.entry
        if not entry:
            yield Report(problem=f"line {line.number} at byte {line.offset}: {line.problem}")
            continue
        if line.number < last.get(entry.name, 0):
            continue
        place = f"line {line.number}: {entry.name}"
        topic = total.topics.setdefault(entry.topic, _Topic())
        report = _listed(entry, folder, layout.max_msg_size)
        if report:
            topic.there = True
            total.files += 1
            total.waiting += os.path.realpath(os.path.join(folder, entry.name)) in owing
            total.records += report.records
            total.size += report.size
        elif topic.there:
            report = Report(problem="gone, though an older file of its topic is there")
        else:
            topic.gone += 1
            topic.last = place
            continue
        if report.problem:
            yield Report(
                report.records, report.size, f"{place}: {report.problem}", report.unreadable
            )


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """All lines, up to one that has no end."""
    number = offset = 0
    file.seek(0)
    while line := file.readline(_LINE):
        number += 1
        if not line.endswith(b"\n"):
            torn = "it is torn" if len(line) < _LINE else "too long for a line of a manifest"
            yield _Line(number, offset, problem=torn)
            return
        try:
            yield _Line(number, offset, _entry(line))
        except (RecordError, ConfigError) as error:
            yield _Line(number, offset, problem=str(error))
        offset += len(line)


def _listed(entry: _Entry, folder: str, max_msg_size: int) -> Report | None:
    """What is wrong with the file of a line; None if there is none."""
    try:
        with open(os.path.join(folder, entry.name), "rb") as file:
            hashed = _Hashed(file)
            layout = replace(entry.layout, max_msg_size=max_msg_size)
            found = layout.inspect(hashed, entry.compression)  # type: ignore[arg-type]
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Report(problem=_reason(error), unreadable=True)
    problem = found.problem or _difference(entry, size, found.records, hashed.sha256)
    return Report(found.records, found.good, problem)


def _difference(entry: _Entry, size: int, records: int, sha256: str) -> str:
    if size != entry.size:
        return f"{size} bytes, expected {entry.size}"
    if sha256 != entry.sha256:
        return f"its sha256 is {sha256}, expected {entry.sha256}"
    if entry.records is None or records == entry.records:
        return ""
    if entry.layout.format == "raw" and records > entry.records:
        return ""  # there are bodies with the delimiter in them
    return f"{records} records, expected {entry.records}"


class _Hashed:
    """As much of a file as ``inspect`` needs, with a checksum of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _entry(line: bytes) -> _Entry:
    """A line's content; raises RecordError, or ConfigError for its delimiter."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordError("not JSON") from None
    if not isinstance(value, dict):
        raise RecordError("not an object")
    form = _get(value, "format", str)
    if form not in FORMATS:
        raise RecordError(f"format is {form!r}, expected {', '.join(FORMATS)}")
    compression = _get(value, "compression", str)
    if compression not in METHODS:
        raise RecordError(f"compression is {compression!r}, expected {', '.join(METHODS)}")
    delimiter = unescape(_get(value, "delimiter", str)) if form == "raw" else b"\n"
    if not delimiter:
        raise RecordError("delimiter is empty")
    name = _get(value, "name", str)
    try:
        possible = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise RecordError(f"name is {name!r}, which no file can have")
    records: int | None = None
    if value.get("records") is not None:
        records = _get(value, "records", int)
    return _Entry(
        name=name,
        topic=_get(value, "topic", str),
        records=records,
        size=_get(value, "bytes", int),
        sha256=_get(value, "sha256", str),
        layout=Layout(form, delimiter),
        compression=compression,
    )


def _get(value: dict[str, Any], key: str, kind: type[Any]) -> Any:
    found = value.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        expected = "a string" if kind is str else "a whole number"
        raise RecordError(f"{key} is {'missing' if found is None else f'not {expected}'}")
    return found
