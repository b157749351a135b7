"""Which dead letters of a directory are published: a journal beside the files, and its lock."""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Self

from nsqtools.checksum import is_torn, sealed, unsealed
from nsqtools.errors import RecordError
from nsqtools.sinks.files.disk import append_lines
from nsqtools.sinks.files.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROGRESS = "redrive.progress"
LOCK = "redrive.lock"


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


def covers(ranges: Sequence[LineRange], offset: int) -> bool:
    """Return whether the line at this offset is in one of the ranges, which are in order."""
    position = bisect_right(ranges, offset, key=lambda each: each.start)
    return position > 0 and offset < ranges[position - 1].end


class PublishedLines:
    """The journal of a directory, a context manager; one process at a time can enter it.

    A file is known by a digest of its first line: it may be renamed or compressed meanwhile. All
    methods block and raise OSError with the file's name; entering raises LockedError, and
    RecordError if the journal is damaged.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, PROGRESS)
        self._lock = Lock(os.path.join(folder, LOCK))
        self._published: dict[str, list[LineRange]] = {}

    def __enter__(self) -> Self:
        if not self._lock.acquire():
            raise self._lock.refusal()
        try:
            self.read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def read(self) -> None:
        """Read the journal; without entering, to look only. Raises as entering does.

        A cut last line is the rest of a crash; its messages count as left.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with open(fd, "rb") as journal:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RecordError(f"{self._path}: is not a file: move it away")
            for number, line in enumerate(journal, 1):
                if not line.endswith(b"\n") and is_torn(line):
                    break
                try:
                    file, ranges = _entry(line)
                except ValueError as error:
                    raise RecordError(
                        f"{self._path}: line {number}: {error}: unknown which messages are "
                        "published; remove the file to publish all of them"
                    ) from None
                self._published.setdefault(file, []).extend(ranges)

    def published(self, file: str) -> list[LineRange]:
        """Return the published lines of a file, given by its digest, in order."""
        return joined(self._published.get(file, ()))

    def add(self, file: str, name: str, ranges: Iterable[LineRange]) -> None:
        """Note published lines durably; ``name`` is that of the file, for people."""
        found = joined(ranges)
        append_lines(self._path, _line(file, name, found))
        self._published.setdefault(file, []).extend(found)


def _line(file: str, name: str, ranges: list[LineRange]) -> bytes:
    return sealed({"file": file, "name": name, "published": ranges}) + b"\n"


def _entry(line: bytes) -> tuple[str, list[LineRange]]:
    """Return the digest of a file and its lines; raises ValueError for other data."""
    entry = unsealed(line)
    try:
        file, ranges = entry["file"], [LineRange(*each) for each in entry["published"]]
    except (KeyError, TypeError):
        raise ValueError("does not name published lines") from None
    if type(file) is not str or any(type(each) is not int for each in chain(*ranges)):
        raise ValueError("does not name published lines")
    return file, ranges
