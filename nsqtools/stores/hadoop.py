"""A store on HDFS."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from typing import TYPE_CHECKING
from uuid import uuid4

from pyarrow import fs

from nsqtools.errors import ConfigError
from nsqtools.stores.interface import UNNAMED, Store, StoredFile, naming, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from nsqtools.stores.interface import Data


class HadoopStore(Store):
    """A Store on HDFS, through pyarrow.

    A closed file is as durable as its datanodes. A rename never replaces a file, and is in the
    namenode's journal when the call returns.
    """

    def __init__(self, place: str, filesystem: fs.FileSystem, root: str) -> None:
        super().__init__(place)
        self._fs = filesystem
        self._root = root

    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write a file under another name and rename it."""
        with self._unnamed(path) as (unnamed, target):
            with self._fs.open_output_stream(unnamed, compression=None) as file:
                file.write(data)
            try:
                self._fs.move(unnamed, target)
            except OSError as error:
                try:
                    # After a lost response, the existing file may be ours.
                    return self.get(path) == data
                except FileNotFoundError:
                    raise error from None
        return True

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read a file."""
        with naming(self.url(path)), self._fs.open_input_file(self._full(path)) as file:
            file.seek(start)
            return bytes(file.read(size))

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        names = [each.base_name for each in self._entries(path)]
        return [name for name in names if not name.startswith(UNNAMED)]

    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all files below a directory."""
        for each in self._entries(path, recursive=True):
            if each.is_file and not each.base_name.startswith(UNNAMED):
                relative = posixpath.relpath(each.path, self._root)
                yield StoredFile(relative, each.size, each.mtime_ns)

    def _entries(self, path: str, *, recursive: bool = False) -> Sequence[fs.FileInfo]:
        selector = fs.FileSelector(self._full(path), allow_not_found=True, recursive=recursive)
        with naming(self.url(path)):
            found: Sequence[fs.FileInfo] = self._fs.get_file_info(selector)
        return found

    def stat(self, path: str) -> StoredFile:
        """Ask the namenode."""
        found = self._fs.get_file_info(self._full(path))
        if not found.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url(path))
        return StoredFile(path, found.size, found.mtime_ns)

    def delete(self, path: str) -> None:
        """Delete a file or directory."""
        full = self._full(path)
        with contextlib.suppress(FileNotFoundError), naming(self.url(path)):
            if self._fs.get_file_info(full).type is fs.FileType.Directory:
                self._fs.delete_dir(full)
            else:
                self._fs.delete_file(full)

    def sweep(self, path: str) -> None:
        """Delete files without a name."""
        for each in self._entries(path):
            if each.base_name.startswith(UNNAMED):
                self.delete(posixpath.join(path, each.base_name))

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """Write a file under another name, and rename it."""
        with self._unnamed(path) as (unnamed, target):
            with self._fs.open_output_stream(unnamed, compression=None) as file:
                yield file
            if replace:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_file(target)
            elif self._exists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            self._fs.move(unnamed, target)

    @contextlib.contextmanager
    def _unnamed(self, path: str) -> Iterator[tuple[str, str]]:
        target = self._full(path)
        unnamed = posixpath.join(posixpath.dirname(target), f"{UNNAMED}{uuid4().hex}")
        try:
            with naming(self.url(path)):
                yield unnamed, target
        finally:
            with contextlib.suppress(OSError):
                if self._exists(unnamed):
                    self._fs.delete_file(unnamed)

    def _exists(self, full: str) -> bool:
        return bool(self._fs.get_file_info(full).type is not fs.FileType.NotFound)

    def _full(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root


def open_hadoop(place: str, flag: str) -> HadoopStore:
    """Return the store of a URL; raises ConfigError if libhdfs is not set up."""
    try:
        return HadoopStore(place, *fs.FileSystem.from_uri(place))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{flag} {place}: {reason(error)}: libhdfs needs JAVA_HOME, HADOOP_HOME and "
            "CLASSPATH (hadoop classpath --glob) on the driver and every executor"
        ) from error
