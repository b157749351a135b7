"""Which dead letters of a directory are published: a journal beside the files, and its lock."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from nsqtools.errors import RecordError
from nsqtools.records.manifest import object_of
from nsqtools.sinks.files.disk import append_lines
from nsqtools.sinks.files.locks import Lock
from nsqtools.stores.mounted import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROGRESS = "redrive.progress"
LOCK = "redrive.lock"
_LARGE = 4 << 20
"""Minimum size in bytes of a journal that is rewritten, shorter, at the start."""


class LineRange(NamedTuple):
    """Published lines of a file, from byte ``start`` to ``end``, and the CRC-32 of the last one."""

    start: int
    end: int
    crc: int


def joined(ranges: Iterable[LineRange]) -> list[LineRange]:
    """Return the ranges in order, joined where they touch or overlap."""
    found: list[LineRange] = []
    for each in sorted(ranges):
        if found and each.start <= found[-1].end:
            if each.end > found[-1].end:
                found[-1] = LineRange(found[-1].start, each.end, each.crc)
        else:
            found.append(each)
    return found


def covers(ranges: Iterable[LineRange], offset: int) -> bool:
    """Return whether the line at this offset is published."""
    return any(each.start <= offset < each.end for each in ranges)


class PublishedLines:
    """The journal of a directory, a context manager; one process at a time can enter it.

    A file is known by a digest of its first line: it may be renamed or compressed meanwhile. All
    methods block and raise OSError with the file's name; entering raises LockedError.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, PROGRESS)
        self._lock = Lock(os.path.join(folder, LOCK))
        self._published: dict[str, list[LineRange]] = {}

    def __enter__(self) -> Self:
        if not self._lock.acquire():
            raise self._lock.refusal()
        try:
            self.read()
            with suppress(FileNotFoundError):
                if os.path.getsize(self._path) >= _LARGE:
                    self._shorten()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def read(self) -> None:
        """Read the journal; without entering, to look only. Raises RecordError if it is damaged."""
        with suppress(FileNotFoundError), open(self._path, "rb") as journal:
            for number, line in enumerate(journal, 1):
                if not line.endswith(b"\n"):  # the rest of a crash
                    break
                entry = object_of(line)
                try:
                    file, ranges = entry["file"], [_range(each) for each in entry["published"]]
                except (KeyError, TypeError, ValueError):
                    raise RecordError(
                        f"{self._path}: line {number}: damaged: unknown which messages are "
                        "published; remove the file to publish all of them"
                    ) from None
                self._published.setdefault(str(file), []).extend(ranges)

    def published(self, file: str) -> list[LineRange]:
        """Return the published lines of a file, given by its digest, in order."""
        return joined(self._published.get(file, ()))

    def add(self, file: str, name: str, ranges: Iterable[LineRange]) -> None:
        """Note published lines durably; ``name`` is that of the file, for people."""
        found = joined(ranges)
        append_lines(self._path, _line(file, name, found), is_torn=_is_torn, flags=os.O_NOFOLLOW)
        self._published.setdefault(file, []).extend(found)

    def _shorten(self) -> None:
        lines = [_line(file, "", joined(ranges)) for file, ranges in self._published.items()]
        with LocalStore(self._folder).create(PROGRESS) as journal:
            journal.write(b"".join(lines))


def _range(numbers: Sequence[int]) -> LineRange:
    """Return the range of these three numbers; raises TypeError and ValueError."""
    start, end, crc = numbers
    if not all(type(each) is int for each in numbers):
        raise TypeError
    return LineRange(start, end, crc)


def _line(file: str, name: str, ranges: list[LineRange]) -> bytes:
    return json.dumps({"file": file, "name": name, "published": ranges}).encode() + b"\n"


def _is_torn(line: bytes) -> bool:
    return not object_of(line)
