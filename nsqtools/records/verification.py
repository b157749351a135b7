"""Verification of archives and manifests. Files are read once, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nsqtools.errors import RecordError
from nsqtools.records.compression import METHODS, method_of
from nsqtools.records.inspection import Inspection, inspect
from nsqtools.records.manifest import LINE, CompletedFile, is_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from typing import BinaryIO

    from nsqtools.records.layout import Layout


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one file, or for one line of a manifest.

    ``records`` and ``size``, in bytes on disk, cover the intact part; for a manifest, the total of
    its ``files``. ``deleted`` counts files of the manifest possibly deleted by retention.
    ``problem`` is empty, or one line on the fault and its place. With ``unreadable`` the file could
    not be read, and it is unknown whether the file is intact. ``waiting`` counts files still
    waiting for ``--upload``, or for success of the ``--on-rotate`` command.
    """

    records: int = 0
    size: int = 0
    problem: str = ""
    unreadable: bool = False
    files: int | None = None
    deleted: int | None = None
    waiting: int = 0


def check(
    path: str,
    layout: Layout,
    *,
    max_msg_size: int = 64 << 20,
    waiting_near: Callable[[str], Container[str]] = lambda _: (),
    uploaded: Callable[[str], BinaryIO] | None = None,
    below: str = "",
    opened: Callable[[str, str], BinaryIO] = lambda path, _: open(path, "rb"),  # noqa: SIM115
) -> Iterator[Verification]:
    """Verify a file and, if it is a manifest, the files listed there.

    For an archive, the suffix of its name gives the compression, ``layout`` gives the format, and
    the result is one report. A manifest is recognised by its first line, and its lines give the
    layout of their files. The result is one report for each faulty line, or one for the whole
    manifest if no line is faulty. If a name is listed repeatedly, the last line counts: a continued
    or replaced file gets another line. ``waiting_near`` takes a path, and returns the real paths of
    the files waiting for ``--upload`` or ``--on-rotate`` in its directory.

    Retention deletes the oldest files of a topic and never the newest. So the missing files of a
    topic before the first existing one are counted as deleted, and any other missing file is a
    problem.

    ``uploaded`` opens the uploaded copy of a file by its name in a manifest; it raises
    FileNotFoundError if the copy is missing. With ``uploaded`` the copies are checked, and a
    missing copy is a problem unless its file still waits for the upload.

    A name that leads out of the manifest's directory is a problem, and its file is not read, unless
    the file is in a directory below ``below``. ``opened`` opens such a file by its path; it takes
    the directory below which others may have made links, too, and raises OSError.
    """
    try:
        if _is_special(path):
            yield Verification(problem="not a regular file", unreadable=True)
            return
        with open(path, "rb") as file:
            if method_of(path) == "none" and is_manifest(file):
                yield from _ManifestCheck(
                    file, os.path.dirname(path), max_msg_size, waiting_near, uploaded, below, opened
                ).check()
                return
            if uploaded:
                yield Verification(problem="not a manifest, which lists uploaded files")
                return
            file.seek(0)
            found = _inspect(file, layout, method_of(path), max_msg_size)
            path = os.path.realpath(path)
            waiting = int(path in waiting_near(path))
            yield Verification(found.records, found.good, found.problem, waiting=waiting)
    except OSError as error:
        yield Verification(problem=_reason(error), unreadable=True)


def listed(path: str) -> set[str] | None:
    """Return the real paths of the files in a manifest; None if it is missing or no manifest.

    Raises OSError.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return None
    with file:
        if method_of(path) != "none" or not is_manifest(file):
            return None
        lines = _lines(file, os.path.dirname(path))
        return {
            os.path.realpath(each.path) for *_, each in lines if isinstance(each, CompletedFile)
        }


def _inspect(file: BinaryIO, layout: Layout, compression: str, max_msg_size: int) -> Inspection:
    """Inspect a file, and report a problem if a compressed file has no member.

    The encoder writes at least one member, and readers such as ``gzip`` refuse a file without one.
    """
    found = inspect(file, layout, compression=compression, max_msg_size=max_msg_size)
    if compression == "none" or found.good or found.problem:
        return found
    return replace(found, problem=f"empty: it has no {METHODS[compression].noun}")


def _is_special(path: str) -> bool:
    """Whether a path is a device, directory or FIFO, where reading may never end."""
    return os.path.exists(path) and not os.path.isfile(path)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@dataclass(slots=True)
class _TopicFiles:
    """The existing and missing files of a topic; ``last`` is the line of the last missing file."""

    there: bool = False
    gone: int = 0
    last: str = ""


@dataclass(slots=True)
class _ManifestCheck:
    """A manifest under inspection, and the totals of its lines so far."""

    file: BinaryIO
    folder: str
    max_msg_size: int
    waiting_near: Callable[[str], Container[str]]
    uploaded: Callable[[str], BinaryIO] | None
    below: str
    opened: Callable[[str, str], BinaryIO]
    records: int = 0
    size: int = 0
    files: int = 0
    waiting: int = 0
    topics: dict[str, _TopicFiles] = field(default_factory=dict)

    def check(self) -> Iterator[Verification]:
        good = True
        for report in self._faults():
            good = False
            yield report
        for topic in self.topics.values():
            if not topic.there:
                good = False
                yield Verification(
                    problem=f"{topic.last}: missing, although it is the newest file of its topic: "
                    "if it was deleted after its upload, check with --uploaded"
                )
        if good:
            deleted = sum(topic.gone for topic in self.topics.values())
            yield Verification(
                self.records, self.size, files=self.files, deleted=deleted, waiting=self.waiting
            )

    def _faults(self) -> Iterator[Verification]:
        """Yield reports for faulty lines."""
        last = {
            each.name: at
            for at, _, each in _lines(self.file, self.folder)
            if isinstance(each, CompletedFile)
        }
        waiting = self.waiting_near(os.path.join(os.path.realpath(self.folder), "manifest"))
        for number, offset, completed in _lines(self.file, self.folder):
            if not isinstance(completed, CompletedFile):
                yield Verification(problem=f"line {number} at byte {offset}: {completed}")
                continue
            if number < last[completed.name]:
                continue
            place = f"line {number}: {completed.name}"
            topic = self.topics.setdefault(completed.topic, _TopicFiles())
            if not (root := self._root(completed)):
                topic.there = True
                problem = "not read, because it is outside the manifest's directory: give --below"
                yield Verification(problem=f"{place}: {problem}")
                continue
            report = self._look(completed, root)
            waits = os.path.realpath(completed.path) in waiting
            self.waiting += waits and bool(report or self.uploaded)
            if report:
                topic.there = True
                self.files += 1
                self.records += report.records
                self.size += report.size
            elif self.uploaded:
                topic.there = True
                report = Verification(problem="" if waits else "not uploaded")
            elif topic.there:
                report = Verification(problem="missing, although an older file of its topic exists")
            else:
                topic.gone += 1
                topic.last = place
                continue
            if report.problem:
                yield replace(report, problem=f"{place}: {report.problem}")
            if report.unreadable and self.uploaded:  # each file would take as long to fail
                return

    def _root(self, completed: CompletedFile) -> str:
        """Return the directory where the user expects the file, whoever has written the manifest.

        It is empty if the file is elsewhere.
        """
        if not os.path.isabs(completed.name) and ".." not in completed.name.split(os.sep):
            return os.path.abspath(self.folder)
        if not self.below or self.uploaded:
            return ""
        folder, below = map(os.path.realpath, (os.path.dirname(completed.path), self.below))
        return below if os.path.commonpath([folder, below]) == below else ""

    def _look(self, completed: CompletedFile, root: str) -> Verification | None:
        """Inspect the file of a line; None if the file does not exist."""
        if not self.uploaded and _is_special(completed.path):
            return Verification(problem="not a regular file")
        try:
            with (
                self.uploaded(completed.name)
                if self.uploaded
                else self.opened(completed.path, root) as file
            ):
                hashed = _Hashed(file)
                found = _inspect(hashed, completed.layout, completed.compression, self.max_msg_size)  # type: ignore[arg-type]
                size = file.seek(0, os.SEEK_END)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Verification(problem=_reason(error), unreadable=True)
        problem = found.problem or _difference(completed, size, found.records, hashed.sha256)
        return Verification(found.records, found.good, problem)


def _lines(file: BinaryIO, folder: str) -> Iterator[tuple[int, int, CompletedFile | str]]:
    """Yield number, from 1, offset, and content or fault of each line.

    Ends with the first line without a line end.
    """
    number = offset = 0
    file.seek(0)
    while line := file.readline(LINE):
        number += 1
        if not line.endswith(b"\n"):
            is_torn = len(line) < LINE
            fault = "it is incomplete" if is_torn else "too long for a line of a manifest"
            yield number, offset, fault
            return
        try:
            yield number, offset, CompletedFile.parse(line, folder)
        except RecordError as error:
            yield number, offset, str(error)
        offset += len(line)


def _difference(completed: CompletedFile, size: int, records: int, sha256: str) -> str:
    if size != completed.size:
        return f"{size} bytes, expected {completed.size}"
    if sha256 != completed.sha256:
        return f"its sha256 is {sha256}, expected {completed.sha256}"
    if completed.records < 0 or records == completed.records:
        return ""
    if completed.format == "raw" and records > completed.records:
        return ""  # some bodies contain the delimiter
    return f"{records} records, expected {completed.records}"


class _Hashed:
    """A file for ``inspect``; computes the checksum of the data read."""

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
