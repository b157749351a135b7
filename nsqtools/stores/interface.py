"""The interface of all stores, and their errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, BinaryIO, TypeAlias

    Data: TypeAlias = bytes | memoryview

UNNAMED = ".nsqtools-"
"""The prefix of files still being written; every reader skips hidden files."""

THREADS = 16
"""Number of requests to a server at once."""
READ = 8 << 20
"""Bytes per read request."""
_PIECE = 1 << 20
"""Bytes per write to a store."""
_STATUS = re.compile(r"status: (\d{3})")
_ANSWER = re.compile(r'code: "(\w+)", message: "([^"]*)"')


class StoredFile(NamedTuple):
    """A file by its path in the store; ``mtime_ns`` is the time of writing, in ns."""

    path: str
    size: int
    mtime_ns: int


class Store(ABC):
    """The files below ``place``, by relative paths with slashes. Only files create folders.

    All methods raise OSError with ``filename``, and FileNotFoundError for a missing file.
    """

    patience: float | None = None
    """Maximum seconds of a request to a server, including its retries; None for no limit."""
    threads = THREADS
    """Number of threads for many requests."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or "/"

    def url(self, path: str) -> str:
        """Return the full name of a file, for messages and for Spark."""
        return posixpath.join(self.place, path)

    @abstractmethod
    def put_if_absent(self, path: str, data: Data) -> bool:
        """Create a durable file unless one exists; returns whether this call created it.

        If several calls for one path run at once, exactly one succeeds. ``data`` must be unique to
        the caller: after a lost response the content shows whether the file is the caller's. After
        an OSError the file may exist, or appear later.
        """

    def put(self, path: str, data: Data) -> None:
        """Create or replace a durable file."""
        with self.create(path) as file:
            file.write(data)

    @abstractmethod
    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Return the content of a file, or a part of it, as much as there is."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Return the names of files and folders in a folder; none if it does not exist."""

    @abstractmethod
    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all files below a folder; none if it does not exist."""

    def list_below(self, path: str) -> Mapping[str, Collection[str]]:
        """Return the names of the files in each folder of a folder; empty if it does not exist."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for each in self.files(path):
            folder, _, name = posixpath.relpath(each.path, path).rpartition("/")
            found[folder].add(name)
        return found

    @abstractmethod
    def stat(self, path: str) -> StoredFile:
        """Return size and time of a file."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all files below it, if it exists."""

    @abstractmethod
    def create(
        self, path: str, *, replace: bool = True
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a file for writing; it appears, durably, at the end of the ``with`` block.

        An existing file is replaced; without ``replace`` it stays, and the end of the block raises
        FileExistsError. After an exception in the block nothing has changed.
        """

    def sweep(self, path: str) -> None:
        """Remove the incomplete files of killed processes in a folder.

        Without locks in the file system, processes still writing there get an OSError.
        """

    def open(self, path: str, ahead: int = READ) -> BinaryIO:
        """Open a file for reading, in pieces of ``ahead`` bytes."""
        return io.BufferedReader(_StoredBytes(self, path), ahead)

    def upload(self, file: BinaryIO, path: str, *, moved: Callable[[], object] = bool) -> None:
        """Create a durable file with the content of an open one, unless it is there already.

        ``moved`` is called after each part. Raises FileExistsError if an existing file has other
        content; the file stays.
        """
        try:
            self.stat(path)
        except (FileNotFoundError, PermissionError):  # from S3 without permission to list
            try:
                with self.create(path, replace=False) as copy:
                    while part := file.read(_PIECE):
                        copy.write(part)
                        moved()
                return
            except FileExistsError:
                file.seek(0)
        self._compare(file, path, moved)

    def _compare(self, file: BinaryIO, path: str, moved: Callable[[], object]) -> None:
        size, wanted = self.stat(path).size, os.fstat(file.fileno()).st_size
        if size != wanted:
            found = f"it has {size} bytes, expected {wanted}"
        else:
            with self.open(path) as there:
                while (part := file.read(READ)) and part == there.read(READ):
                    moved()
            if not part:
                return
            found = "it has other content"
        raise FileExistsError(errno.EEXIST, f"taken by another file: {found}", self.url(path))

    def sync(self, path: str) -> None:
        """Make a folder durable, with the names returned by ``list``."""


class _StoredBytes(io.RawIOBase):
    """A file of a store, read in ranges."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path
        self._size = store.stat(path).size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {1: self._position, 2: self._size}.get(whence, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = max(min(len(buffer), self._size - self._position), 0)
        if size:
            buffer[:size] = self._store.get(self._path, self._position, size)
        self._position += size
        return size


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the name of the file to an OSError."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


@contextlib.contextmanager
def as_output_error(place: str) -> Iterator[None]:
    """Convert OSErrors to OutputError; FileNotFoundError is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OutputError(f"{error.filename or place}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # opendal's text: kind, operation and reason on one line, then the context, then the source.
    text, _, source = str(error).strip().partition("\n\nSource:\n")
    reason = source.strip() or text.partition(" => ")[2] or text or type(error).__name__
    if status := _STATUS.search(text) if reason == text else None:  # HEAD has no text
        reason = f"HTTP status {status[1]}"
    if answer := _ANSWER.search(reason):
        reason = f"{answer[2].rstrip('.')} ({answer[1]})"
    return reason.splitlines()[0]
