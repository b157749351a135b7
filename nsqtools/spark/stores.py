"""File systems for the staging: requirements and implementations."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import shutil
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files.disk import make_directory, sync_directory, write_all

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HADOOP = frozenset({"hdfs", "viewfs"})


class Store(Protocol):
    """A file system with atomic renames of directories.

    Paths are absolute, with slashes. All methods raise OSError; the ledger relies on its subclasses
    FileNotFoundError and FileExistsError.
    """

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents unless they exist. ``sync_dir`` makes it durable."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, unordered; raises FileNotFoundError if it does not
        exist.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, atomically for all observers.

        Raises FileNotFoundError if the source does not exist, and FileExistsError if the target is
        a directory that is not empty.
        """

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Create a file with durable content, in an existing directory.

        Its name is durable after ``sync_dir``. An incomplete file is removed before an error is
        raised.
        """

    def read(self, path: str) -> pa.Buffer:
        """Return the content of a file, memory-mapped if possible."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""


class LocalStore:
    """A Store on a mounted file system: a local disk, or NFS that all hosts share."""

    def make_dir(self, path: str) -> None:
        """Create a directory."""
        make_directory(os.path.dirname(path))
        os.makedirs(path, exist_ok=True)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return os.listdir(path)

    def rename(self, source: str, target: str) -> None:
        """Rename with rename(2)."""
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
            raise

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write and sync a file."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)  # NFS tells of a full disk here
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            if isinstance(error, OSError):
                error.filename = path
            raise

    def read(self, path: str) -> pa.Buffer:
        """Map a file; the mapping remains valid when the file is removed, except by another NFS
        host.

        A task with such a mapping then dies of SIGBUS. Its batch was committed without the task.
        """
        with pa.memory_map(path) as file:
            return file.read_buffer()

    def remove(self, path: str) -> None:
        """Remove a file or directory."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def sync_dir(self, path: str) -> None:
        """Sync a directory."""
        sync_directory(path)


def aside_of(name: str) -> str:
    """Return the prefix of files that are written next to a directory and then moved into it."""
    return f"tmp-{name}-"


class ArrowStore:
    """A Store on a file system of pyarrow, for HDFS.

    A file is durable once it is closed, as far as the datanodes are; a rename is in the journal of
    the namenode when it returns.
    """

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self._fs = filesystem

    def make_dir(self, path: str) -> None:
        """Create a directory."""
        self._fs.create_dir(path, recursive=True)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return [info.base_name for info in self._fs.get_file_info(fs.FileSelector(path))]

    def rename(self, source: str, target: str) -> None:
        """Rename; HDFS would move *into* an existing directory, so the target is checked.

        The check is made before and after the move.
        """
        if self._kind(target) is fs.FileType.Directory:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        try:
            self._fs.move(source, target)
        except OSError as error:
            if self._kind(source) is fs.FileType.NotFound:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source) from error
            raise
        inside = posixpath.join(target, posixpath.basename(source))
        if self._kind(inside) is not fs.FileType.NotFound:
            self._fs.delete_dir(inside)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a file.

        HDFS would create the directory of the file, even if it was just renamed. So the file is
        written next to the directory and moved into it, which fails if the directory is gone.
        """
        folder = posixpath.dirname(path)
        parent, name = posixpath.split(folder)
        aside = posixpath.join(parent, f"{aside_of(name)}{uuid4().hex}")
        try:
            with self._fs.open_output_stream(aside, compression=None) as file:
                file.write(data)
            try:
                self._fs.move(aside, path)
            except OSError as error:
                if self._kind(folder) is fs.FileType.NotFound:
                    raise FileNotFoundError(
                        errno.ENOENT, os.strerror(errno.ENOENT), path
                    ) from error
                raise
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.delete_file(aside)
            raise

    def read(self, path: str) -> pa.Buffer:
        """Return the content of a file."""
        with self._fs.open_input_file(path) as file:
            return file.read_buffer()

    def remove(self, path: str) -> None:
        """Remove a file or directory."""
        with contextlib.suppress(FileNotFoundError):
            if self._kind(path) is fs.FileType.Directory:
                self._fs.delete_dir(path)
            else:
                self._fs.delete_file(path)

    def sync_dir(self, path: str) -> None:
        """Do nothing; renames are durable."""

    def _kind(self, path: str) -> Any:
        return self._fs.get_file_info(path).type


def make_store(location: str) -> tuple[Store, str]:
    """Return the store of a staging location, and the path in it.

    Raises ConfigError unless the location is an absolute path, ``file://``, ``hdfs://`` or
    ``viewfs://``.
    """
    found = _SCHEME.match(location)
    scheme = found[1].lower() if found else "file"
    if scheme in _HADOOP:
        try:
            filesystem, path = fs.FileSystem.from_uri(location)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"staging {location}: {_line(error)}: libhdfs needs JAVA_HOME, HADOOP_HOME and "
                "CLASSPATH (hadoop classpath --glob) on the driver and every executor"
            ) from error
        return ArrowStore(filesystem), path
    if scheme != "file":
        raise ConfigError(
            f"staging {location}: {scheme}: cannot rename directories atomically, which the "
            "staging needs: stage on a shared file system or hdfs://, or archive with "
            "`nsqtools to-file` and `nsqtools pipeline compact`"
        )
    path = location[found.end() :] if found else location
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    if not path.startswith("/"):
        raise ConfigError(f"staging {location!r}: expected an absolute path, or file:///path")
    return LocalStore(), posixpath.normpath(path)


def probe(store: Store, path: str) -> None:
    """Create, rename and remove a directory, to fail before messages are received.

    Raises ConfigError if the path is not writable, OutputError if the disk is full.
    """
    before, after = (posixpath.join(path, f"probe-{uuid4().hex}") for _ in range(2))
    try:
        try:
            store.make_dir(before)
            store.rename(before, after)
            if posixpath.basename(after) not in store.list(path):
                raise ConfigError(
                    f"staging {path}: the file system does not rename directories correctly: "
                    "choose another"
                )
            store.sync_dir(path)
        finally:
            store.remove(before)
            store.remove(after)
    except OSError as error:
        text = f"staging {path}: {_line(error)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(text) from error
        raise ConfigError(f"{text}: choose a directory that this user can write to") from error


def _line(error: Exception) -> str:
    """The reason, in one line."""
    reason = getattr(error, "strerror", None) or str(error)
    return reason.strip().splitlines()[0] if reason.strip() else type(error).__name__
