"""File systems that can hold the staging: what they must do, and those that can."""

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

    Paths are absolute and have slashes. All calls raise OSError, of which FileNotFoundError and
    FileExistsError mean what they say; the ledger relies on both.
    """

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; fine if it is there. ``sync_dir`` makes it last."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, in no order; raises FileNotFoundError if there is none."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, atomically for everyone who looks.

        Raises FileNotFoundError if the source is not there any more, and FileExistsError if the
        target is a directory with something in it.
        """

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Make a new file whose content lasts, in a directory that must be there.

        Its name lasts after ``sync_dir``. A torn file is removed before an error is raised.
        """

    def read(self, path: str) -> pa.Buffer:
        """The content of a file, memory mapped where that can be."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; fine if it is not there."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory last."""


class LocalStore:
    """A Store on what the kernel has mounted: a local disk, or NFS, which all hosts share."""

    def make_dir(self, path: str) -> None:
        """As Store says."""
        make_directory(os.path.dirname(path))
        os.makedirs(path, exist_ok=True)

    def list(self, path: str) -> list[str]:
        """As Store says."""
        return os.listdir(path)

    def rename(self, source: str, target: str) -> None:
        """As Store says, by rename(2)."""
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
            raise

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """As Store says: written and fsynced."""
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
        """As Store says. What is mapped stays when the file is removed, but for another NFS host.

        That host's task then dies of SIGBUS: it is one of a batch that was committed without it.
        """
        with pa.memory_map(path) as file:
            return file.read_buffer()

    def remove(self, path: str) -> None:
        """As Store says."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def sync_dir(self, path: str) -> None:
        """As Store says."""
        sync_directory(path)


def aside_of(name: str) -> str:
    """How the names of files begin that are on their way into a directory of this name."""
    return f"tmp-{name}-"


class ArrowStore:
    """A Store over a file system of pyarrow, for HDFS.

    A file lasts there once it is closed, as far as the datanodes that took it do; a rename is in
    the journal of the namenode when it returns.
    """

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self._fs = filesystem

    def make_dir(self, path: str) -> None:
        """As Store says."""
        self._fs.create_dir(path, recursive=True)

    def list(self, path: str) -> list[str]:
        """As Store says."""
        return [info.base_name for info in self._fs.get_file_info(fs.FileSelector(path))]

    def rename(self, source: str, target: str) -> None:
        """As Store says.

        HDFS moves *into* a directory that is there, so one is looked for before and after.
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
        """As Store says.

        HDFS would make the directory with the file, also one that was renamed meanwhile. So the
        file is written beside that directory and moved into it, which fails if it is gone.
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
        """As Store says."""
        with self._fs.open_input_file(path) as file:
            return file.read_buffer()

    def remove(self, path: str) -> None:
        """As Store says."""
        with contextlib.suppress(FileNotFoundError):
            if self._kind(path) is fs.FileType.Directory:
                self._fs.delete_dir(path)
            else:
                self._fs.delete_file(path)

    def sync_dir(self, path: str) -> None:
        """Nothing to do."""

    def _kind(self, path: str) -> Any:
        return self._fs.get_file_info(path).type


def make_store(location: str) -> tuple[Store, str]:
    """The store of a staging location, and the path in it.

    Raises ConfigError for what is not an absolute path, ``file://``, ``hdfs://`` or ``viewfs://``.
    """
    found = _SCHEME.match(location)
    scheme = found[1].lower() if found else "file"
    if scheme in _HADOOP:
        try:
            filesystem, path = fs.FileSystem.from_uri(location)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"staging {location}: {_line(error)}: libhdfs needs JAVA_HOME, HADOOP_HOME "
                "and CLASSPATH (hadoop classpath --glob) on the driver and every executor"
            ) from error
        return ArrowStore(filesystem), path
    if scheme != "file":
        raise ConfigError(
            f"staging {location}: {scheme}: cannot rename a directory atomically, and only "
            "that keeps two attempts of a task apart: stage on a shared file system or hdfs://, or "
            "archive with `nsqtools to-file` and load that with `nsqtools pipeline compact`"
        )
    path = location[found.end() :] if found else location
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    if not path.startswith("/"):
        raise ConfigError(f"staging {location!r}: give an absolute path, or file:///path")
    return LocalStore(), posixpath.normpath(path)


def probe(store: Store, path: str) -> None:
    """Make, rename and remove a directory, to fail before messages are taken.

    Raises ConfigError if the path cannot be written to, OutputError if there is no room.
    """
    before, after = (posixpath.join(path, f"probe-{uuid4().hex}") for _ in range(2))
    try:
        try:
            store.make_dir(before)
            store.rename(before, after)
            if posixpath.basename(after) not in store.list(path):
                raise ConfigError(f"staging {path}: a renamed directory has another name")
            store.sync_dir(path)
        finally:
            store.remove(before)
            store.remove(after)
    except OSError as error:
        text = f"staging {path}: {_line(error)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(text) from error
        raise ConfigError(f"{text}: name a directory that this user can write to") from error


def _line(error: Exception) -> str:
    """The reason, in one line."""
    reason = getattr(error, "strerror", None) or str(error)
    return reason.strip().splitlines()[0] if reason.strip() else type(error).__name__
