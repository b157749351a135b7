"""The order and the age of completed files: what retention knows, whatever the wall clock says.

``ages`` in the journal's directory has a line for each completion, in order, with the proven time
and the uptime at that moment. A line without a name is just a moment. All functions block. They
raise nothing: a file that could not be noted counts as new in the next run.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.checksum import is_torn, sealed, unsealed
from nsqtools.clock import boot, uptime_ns
from nsqtools.policy.retention import Kept, Moment, ProvenTime
from nsqtools.records.diskqueue.queuefiles import open_regular
from nsqtools.sinks.files.disk import append_lines, rewrite_lines
from nsqtools.sinks.files.journal import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

_MOST = 64 << 20
"""Bytes at the end of the file that are read: some 400,000 lines."""
_SMALL = 1 << 20
"""Maximum bytes of a file that is not written anew without the files that are gone."""


class Ages:
    """The completed files of an output directory, which several processes may share.

    Not thread-safe. ``max_age`` is in seconds, 0 if only the order counts.
    """

    def __init__(self, output_dir: str, max_age: float) -> None:
        self._root = output_dir
        self._path = os.path.join(output_dir, FOLDER, "ages")
        self._time = ProvenTime(max_age)
        self._known: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._has_failed = False

    def read(self) -> None:
        """Learn what earlier runs, and other processes, have noted."""
        try:
            with open(open_regular(self._path), "rb") as file:
                start = max(0, os.fstat(file.fileno()).st_size - _MOST)
                file.seek(start)
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            lines = []
        except OSError as error:
            log.warning("cannot read %s: %s", self._path, error.strerror)
            lines = []
        damaged = 0
        for number, line in enumerate(lines):
            try:
                self._learn(*_parse(line))
            except ValueError:
                is_part = (start and not number) or (number == len(lines) - 1 and is_torn(line))
                damaged += not is_part
        if damaged:
            log.warning("%s: damaged lines: %d: their files count as new", self._path, damaged)
        if sum(map(len, lines)) > _SMALL:
            self._shorten()

    def knows(self, path: str) -> bool:
        """Whether the completion of a file was noted."""
        return self._name(path) in self._known

    def kept(self, path: str, size: int) -> Kept:
        """Return what retention must know of a file that was noted."""
        number, completed = self._known[self._name(path)]
        return Kept(path, size, number, completed)

    def now(self) -> int:
        """Return the proven time."""
        return self._time.at(_moment())

    def note(self, *paths: str) -> None:
        """Note files, completed now in this order."""
        if paths:
            self._note(map(self._name, paths))

    def tick(self) -> None:
        """Note the time if the last note is long ago or of another boot."""
        if self._time.step and self._time.is_due(_moment()):
            self._note([""])

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def _note(self, names: Iterable[str]) -> None:
        moment = _moment()
        at, data = self._time.at(moment), b""
        for name in names:
            self._learn(name, at, moment)
            data += sealed({"name": name, "at": at, **moment._asdict()}) + b"\n"
        try:
            append_lines(self._path, data, root=self._root)
        except OSError as error:
            if not self._has_failed:
                log.warning("cannot write %s: %s", self._path, error.strerror)
            self._has_failed = True

    def _learn(self, name: str, at: int, moment: Moment) -> None:
        self._time.note(at, moment)
        if name:
            self._count += 1
            self._known[name] = self._count, at

    def _shorten(self) -> None:
        """Write the file anew without the lines of files that are gone, of any topic."""

        def is_needed(line: bytes) -> bool:
            try:
                name, *_ = _parse(line)
            except ValueError:
                return False
            return bool(name) and os.path.lexists(os.path.join(self._root, name))

        try:
            rewrite_lines(self._path, partial(filter, is_needed), root=self._root)
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error.strerror)
            return
        self._note([""])


def _parse(line: bytes) -> tuple[str, int, Moment]:
    """Return name, proven time and moment of a line; raises ValueError."""
    value = unsealed(line)
    name, at, boot, uptime = map(value.get, ("name", "at", *Moment._fields))
    if not (isinstance(name, str) and isinstance(boot, str) and type(at) is type(uptime) is int):
        raise ValueError("wrong types")
    return name, at, Moment(boot, uptime)


def _moment() -> Moment:
    return Moment(boot(), uptime_ns())
