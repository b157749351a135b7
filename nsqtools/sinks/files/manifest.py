"""What is told of a published file: its line in a manifest, and a link to the newest one."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.records.manifest import object_of
from nsqtools.sinks.files.locks import open_locked
from nsqtools.sinks.files.publish import make_directory, sync_directory, write_all

if TYPE_CHECKING:
    from nsqtools.records.manifest import Published

__all__ = ["LatestLink", "Manifest"]

_BLOCK = 1 << 16
_RECENT = 1 << 20
"""Bytes at a manifest's end that ``has`` looks at: some 2000 lines."""


class Manifest:
    """A file of JSON lines, one for each published file; several processes may share it."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)

    def check(self) -> None:
        """Raise ConfigError if there is another file where it should be; OSError as for reading."""
        try:
            with open(self._path, "rb") as file:
                first = file.readline(_BLOCK)
        except FileNotFoundError:
            return
        if first and not {"name", "sha256"} <= object_of(first).keys():
            raise ConfigError(f"--manifest {self._path}: exists, and is no manifest")

    def append(self, published: Published) -> None:
        """Add a line, and have it on disk; what a crash left of a last line is cut first.

        A last line that lacks nothing but its end, as an editor may leave it, gets that.
        The line's ``name`` is relative to the manifest's directory, ``published`` is now.
        Raises OSError with the file's name; the manifest is then as it was.
        """
        line = published.line(self._name(published.path))
        fd = open_locked(self._path, os.O_APPEND, wait=True)
        assert fd is not None
        try:
            end, missing = _end_of_lines(fd)
            try:
                os.ftruncate(fd, end)
                write_all(fd, missing + line)  # one write, unless the disk fills up
                os.fsync(fd)
                if not end:
                    sync_directory(os.path.dirname(self._path))
            except OSError:
                os.ftruncate(fd, end)
                raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error
        finally:
            os.close(fd)

    def has(self, path: str, *, sha256: str) -> bool:
        """Whether the line of the file at this path is there, among the last ones, of 1 MiB.

        Names come again, with other content or the same: it is the last line of this name, and
        gives this checksum. Raises OSError when the manifest exists and cannot be read.
        """
        name = self._name(path)
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _RECENT))
                recent = file.read()
        except FileNotFoundError:
            return False
        wanted = json.dumps(name).encode()
        if wanted not in recent:
            return False
        for line in reversed(recent.split(b"\n")):
            if wanted in line and (found := object_of(line)).get("name") == name:
                return bool(found.get("sha256") == sha256)
        return False

    def _name(self, path: str) -> str:
        return _relative(path, os.path.dirname(self._path))


class LatestLink:
    """A symbolic link that always names a file: it is replaced, never removed."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)

    def point(self, path: str) -> None:
        """Have the link name this file, relative to the link's directory, which is made.

        Raises OSError: FileExistsError, naming the link, when something else has its name.
        """
        folder = os.path.dirname(self._path)
        target = _relative(path, folder)
        make_directory(folder)
        try:
            if not stat.S_ISLNK(os.lstat(self._path).st_mode):
                raise FileExistsError(
                    errno.EEXIST, "not a symbolic link, so left alone", self._path
                )
            if os.readlink(self._path) == target:
                return
        except FileNotFoundError:
            pass
        new = os.path.join(folder, f".nsqtools-link-{secrets.token_hex(4)}")
        os.symlink(target, new)
        try:
            os.replace(new, self._path)
        except OSError:
            os.unlink(new)
            raise


def _relative(path: str, folder: str) -> str:
    """The path as seen from the folder, where links among the directories do not mislead it."""
    path = os.path.abspath(path)
    plain = os.path.relpath(path, folder)
    if plain.partition(os.sep)[0] != os.pardir:
        return plain
    parent, name = os.path.split(path)
    return os.path.join(os.path.relpath(os.path.realpath(parent), os.path.realpath(folder)), name)


def _end_of_lines(fd: int) -> tuple[int, bytes]:
    """Where the last whole line ends, 0 without any, and what has to follow it there."""
    size = end = os.fstat(fd).st_size
    found = -1
    while end and found < 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
    if size - end < _BLOCK and object_of(os.pread(fd, _BLOCK, end)):
        return size, b"\n"
    return end, b""
