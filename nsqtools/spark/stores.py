"""Stores: the files below a place on a mounted disk, on HDFS or in an object store.

Nothing is renamed and nothing is written twice: a file appears with its whole content or not at
all. That is what every kind of store offers, and all that the staging of messages needs.
"""

# size: three kinds of stores, side by side, and the places that lead to them

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import posixpath
import re
import shutil
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files.disk import sync_directory, write_all
from nsqtools.spark.places import local, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, TypeAlias

    Data: TypeAlias = bytes | pa.Buffer

_UNNAMED = ".nsqtools-"
"""The prefix of files that are being written; every reader skips hidden files."""
_HADOOP = frozenset({"hdfs", "viewfs"})
_AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
# Of requests to object stores: half a minute at most if connections are refused, in seconds.
_RETRIES = 8
_LONGEST_PAUSE = 4.0
_TIMEOUT = 10.0
_IO_TIMEOUT = 60.0
_PART = 8 << 20


class StoredFile(NamedTuple):
    """A file by its path in the store; ``mtime_ns`` is when it was written."""

    path: str
    size: int
    mtime_ns: int


class Store(ABC):
    """The files below ``place``, by relative paths with slashes. Folders come and go with them.

    All methods raise OSError with ``filename``, and FileNotFoundError for a file that does not
    exist.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or "/"

    def url(self, path: str) -> str:
        """Return the full name of a file, for messages and for Spark."""
        return posixpath.join(self.place, path)

    @abstractmethod
    def put_if_absent(self, path: str, data: Data) -> bool:
        """Create a durable file unless one exists; returns whether this call created it.

        Of concurrent calls for one path exactly one succeeds. ``data`` must be unique to the
        caller: after a lost response it tells whose file exists. After an OSError the file may
        exist, or appear later.
        """

    @abstractmethod
    def put(self, path: str, data: Data) -> None:
        """Create or replace a durable file."""

    @abstractmethod
    def get(self, path: str, start: int = 0, size: int | None = None) -> pa.Buffer:
        """Return the content of a file, or a part that it must have; memory-mapped if possible."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Return the names of files and folders in a folder; none if it does not exist."""

    @abstractmethod
    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all files below a folder; none if it does not exist."""

    @abstractmethod
    def stat(self, path: str) -> StoredFile:
        """Return the facts of a file."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all files below it, if it exists."""

    @abstractmethod
    def create(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a file for writing; it appears, durably, at the end of the ``with`` block.

        An existing file is replaced. After an exception in the block nothing has changed.
        """

    def sync(self, path: str) -> None:
        """Make the names that ``list`` returned for a folder durable, and the folder itself."""


class LocalStore(Store):
    """A Store on a mounted file system with hard links: a local disk, or NFS that hosts share."""

    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write a file without a name, and link it: link(2) never replaces a file."""
        target = self.url(path)
        with self._unnamed(target) as (unnamed, fd):
            write_all(fd, data)
            os.fsync(fd)
            try:
                os.link(unnamed, target)
            except OSError as error:
                # NFS may say that the name exists because it repeats a request whose response was
                # lost; the number of links tells.
                if os.fstat(fd).st_nlink < 2:
                    if isinstance(error, FileExistsError):
                        return False
                    raise OSError(error.errno, error.strerror, target) from error
        sync_directory(os.path.dirname(target))
        return True

    def put(self, path: str, data: Data) -> None:
        """Write a file and rename it."""
        with self.create(path) as file:
            file.write(data)

    def get(self, path: str, start: int = 0, size: int | None = None) -> pa.Buffer:
        """Map a file; the mapping remains valid when the file is deleted, except by another NFS
        host.

        A task with such a mapping then dies of SIGBUS. Its batch was committed without the task.
        """
        with _naming(self.url(path)), pa.memory_map(self.url(path)) as file:
            file.seek(start)
            return file.read_buffer(size)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory.

        An NFS client may answer from memory what another host has changed; after a change of its
        own it asks the server.
        """
        folder = self.url(path)
        try:
            changed = os.path.join(folder, f"{_UNNAMED}{uuid4().hex}")
            with contextlib.suppress(OSError):  # also where nothing can be made
                os.mkdir(changed)
                os.rmdir(changed)
            return [name for name in os.listdir(folder) if not name.startswith(_UNNAMED)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all files below a directory."""
        for folder, _, names in os.walk(self.url(path)):
            for name in names:
                if not name.startswith(_UNNAMED):
                    full = os.path.join(folder, name)
                    with contextlib.suppress(FileNotFoundError):
                        status = os.stat(full)
                        relative = os.path.relpath(full, self.place)
                        yield StoredFile(relative, status.st_size, status.st_mtime_ns)

    def stat(self, path: str) -> StoredFile:
        """Ask the file system."""
        status = os.stat(self.url(path))
        return StoredFile(path, status.st_size, status.st_mtime_ns)

    def delete(self, path: str) -> None:
        """Delete a file or directory."""
        full = self.url(path)
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Write a file and rename it."""
        target = self.url(path)
        with self._unnamed(target) as (unnamed, fd):
            with open(fd, "wb", closefd=False) as file:
                yield file
            os.fsync(fd)
            os.rename(unnamed, target)
        sync_directory(os.path.dirname(target))

    def sync(self, path: str) -> None:
        """Sync a directory and those above it, up to the place and its parent."""
        folder = self.url(path).rstrip("/")
        while folder.startswith(self.place) and folder != "/":
            sync_directory(folder)
            folder = os.path.dirname(folder)
        with contextlib.suppress(PermissionError):
            sync_directory(folder or "/")

    @contextlib.contextmanager
    def _unnamed(self, target: str) -> Iterator[tuple[str, int]]:
        """A new file beside the target, in a directory that lasts; its name goes at the end."""
        folder = os.path.dirname(target)
        unnamed = os.path.join(folder, f"{_UNNAMED}{uuid4().hex}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                fd = os.open(unnamed, flags, 0o666)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
                self.sync(os.path.relpath(folder, self.place))
                fd = os.open(unnamed, flags, 0o666)
            try:
                yield unnamed, fd
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unnamed)
                os.close(fd)
        except OSError as error:
            error.filename = target
            raise


class HadoopStore(Store):
    """A Store on HDFS, through pyarrow.

    A file is durable once it is closed, as far as the datanodes are; a rename, which never replaces
    a file, is in the journal of the namenode when it returns.
    """

    def __init__(self, place: str, filesystem: fs.FileSystem, root: str) -> None:
        super().__init__(place)
        self._fs = filesystem
        self._root = root

    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write a file under another name and rename it."""
        with self._unnamed(path) as (unnamed, target):
            self._write(unnamed, data)
            try:
                self._fs.move(unnamed, target)
            except OSError as error:
                try:
                    # After a lost response the file that exists is this one.
                    return bool(self.get(path).equals(pa.py_buffer(data)))
                except FileNotFoundError:
                    raise error from None
        return True

    def put(self, path: str, data: Data) -> None:
        """Write a file under another name, and put it in the place of the old one."""
        with self.create(path) as file:
            file.write(data)

    def get(self, path: str, start: int = 0, size: int | None = None) -> pa.Buffer:
        """Read a file."""
        with _naming(self.url(path)), self._fs.open_input_file(self._full(path)) as file:
            file.seek(start)
            return file.read_buffer(size)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        selector = fs.FileSelector(self._full(path), allow_not_found=True)
        with _naming(self.url(path)):
            found = self._fs.get_file_info(selector)
        return [each.base_name for each in found if not each.base_name.startswith(_UNNAMED)]

    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all files below a directory."""
        selector = fs.FileSelector(self._full(path), allow_not_found=True, recursive=True)
        with _naming(self.url(path)):
            found = self._fs.get_file_info(selector)
        for each in found:
            if each.is_file and not each.base_name.startswith(_UNNAMED):
                relative = posixpath.relpath(each.path, self._root)
                yield StoredFile(relative, each.size, each.mtime_ns)

    def stat(self, path: str) -> StoredFile:
        """Ask the namenode."""
        found = self._fs.get_file_info(self._full(path))
        if not found.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url(path))
        return StoredFile(path, found.size, found.mtime_ns)

    def delete(self, path: str) -> None:
        """Delete a file or directory."""
        full = self._full(path)
        with contextlib.suppress(FileNotFoundError), _naming(self.url(path)):
            if self._fs.get_file_info(full).type is fs.FileType.Directory:
                self._fs.delete_dir(full)
            else:
                self._fs.delete_file(full)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Write a file under another name, and put it in the place of the old one."""
        with self._unnamed(path) as (unnamed, target):
            with self._fs.open_output_stream(unnamed, compression=None) as file:
                yield file
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(target)
            self._fs.move(unnamed, target)

    def _write(self, path: str, data: Data) -> None:
        with self._fs.open_output_stream(path, compression=None) as file:
            file.write(data)

    @contextlib.contextmanager
    def _unnamed(self, path: str) -> Iterator[tuple[str, str]]:
        target = self._full(path)
        unnamed = posixpath.join(posixpath.dirname(target), f"{_UNNAMED}{uuid4().hex}")
        try:
            with _naming(self.url(path)):
                yield unnamed, target
        finally:
            with contextlib.suppress(OSError):
                if self._exists(unnamed):
                    self._fs.delete_file(unnamed)

    def _exists(self, full: str) -> bool:
        return bool(self._fs.get_file_info(full).type is not fs.FileType.NotFound)

    def _full(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root


class ObjectStore(Store):
    """A Store on S3, Google Cloud Storage or Azure, through opendal.

    ``operator`` is an opendal.Operator whose root is the place.
    """

    def __init__(self, place: str, operator: Any) -> None:
        super().__init__(place)
        self._operator = operator

    def put_if_absent(self, path: str, data: Data) -> bool:
        """PUT with ``If-None-Match: *``; a refusal after a lost response is told by the content."""
        from opendal.exceptions import AlreadyExists, ConditionNotMatch, Conflict

        content = bytes(data)
        for attempt in range(_RETRIES):
            try:
                with self._errors(path):
                    self._operator.write(path, content, if_not_exists=True)
                return True
            except (AlreadyExists, ConditionNotMatch):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    return bool(self.get(path).equals(pa.py_buffer(content)))
                return False
            except Conflict:  # S3: another conditional PUT of this name is under way
                time.sleep(min(_LONGEST_PAUSE, 0.05 * 2**attempt))
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self.url(path))

    def put(self, path: str, data: Data) -> None:
        """PUT."""
        with self._errors(path):
            self._operator.write(path, bytes(data))

    def get(self, path: str, start: int = 0, size: int | None = None) -> pa.Buffer:
        """GET."""
        with self._errors(path):
            return pa.py_buffer(self._operator.read(path, offset=start or None, size=size))

    def list(self, path: str) -> list[str]:
        """Return the names at one level."""
        prefix = f"{path}/" if path else ""
        with self._errors(path):
            found = [each.path.rstrip("/") for each in self._operator.list(prefix)]
        return [each.rpartition("/")[2] for each in found if each != path]

    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all objects with a prefix."""
        prefix = f"{path}/" if path else ""
        with self._errors(path):
            for each in self._operator.list(prefix, recursive=True):
                if not each.path.endswith("/"):
                    yield _facts(each.path, each.metadata)

    def stat(self, path: str) -> StoredFile:
        """HEAD."""
        with self._errors(path):
            return _facts(path, self._operator.stat(path))

    def delete(self, path: str) -> None:
        """Delete an object, and all objects below its name."""
        with self._errors(path):
            self._operator.delete(path)
            self._operator.delete(f"{path}/", recursive=True)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """PUT in parts; without the last request, which close makes, there is no object."""
        with self._errors(path):
            file = self._operator.open(path, "wb", chunk=_PART)
            yield cast("BinaryIO", _Parts(file))
            file.close()

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        from opendal import exceptions

        try:
            yield
        except (exceptions.AlreadyExists, exceptions.ConditionNotMatch, exceptions.Conflict):
            raise
        except exceptions.NotFound as error:
            raise FileNotFoundError(errno.ENOENT, _line(error), self.url(path)) from error
        except Exception as error:
            if not type(error).__module__.startswith("opendal"):  # they have no other base class
                raise
            reason = _line(error)
            refused = isinstance(error, exceptions.PermissionDenied) or _UNSIGNED in str(error)
            if refused:
                reason += f": set {_CREDENTIALS.get(urlsplit(self.place).scheme, _AWS)}"
            code = errno.EACCES if refused else errno.EIO
            raise OSError(code, reason, self.url(path)) from error


_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a role that may do this"
_AZURE = "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or give a role that may do this"
_CREDENTIALS = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS to the file of an account that may do this",
    **dict.fromkeys(_AZURE_SCHEMES, _AZURE),
}
_UNSIGNED = "failed to load signing credential"


class _Parts(io.RawIOBase):
    """A file of opendal that is not closed, and so never complete, by whoever writes to it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        return len(data)


@contextlib.contextmanager
def _naming(target: str) -> Iterator[None]:
    """Give errors of pyarrow the name of the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or target
        raise


def _facts(path: str, found: Any) -> StoredFile:
    """Times are in whole seconds: S3 tells more in a listing, but not of a single object."""
    changed = found.last_modified
    seconds = int(changed.timestamp()) if changed else 0
    return StoredFile(path, found.content_length, seconds * 10**9)


def open_store(place: str, flag: str = "staging") -> Store:
    """Return the store of a path or URL; ``flag`` names it in errors.

    Raises ConfigError for a scheme that is not supported, and for a missing library.
    """
    parts = urlsplit(place)
    scheme = parts.scheme.lower()
    if (path := local(place)) is not None:
        if scheme == "file" and parts.netloc:
            raise ConfigError(f"{flag} {place!r}: expected an absolute path, or file:///path")
        return LocalStore(posixpath.normpath(path))
    if scheme in _HADOOP:
        try:
            return HadoopStore(place, *fs.FileSystem.from_uri(place))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{flag} {place}: {_line(error)}: libhdfs needs JAVA_HOME, HADOOP_HOME and "
                "CLASSPATH (hadoop classpath --glob) on the driver and every executor"
            ) from error
    service = _service(scheme, parts.netloc)
    if service is None:
        raise ConfigError(
            f"{flag} {place}: the scheme {scheme} is not supported: give a path, or a URL of "
            "hdfs, s3a, gs or abfss"
        )
    try:
        from opendal import Operator
        from opendal.layers import RetryLayer, TimeoutLayer
    except ImportError:
        raise ConfigError(
            f"{flag} {place}: opendal is not installed: install nsqtools[cloud], on the driver "
            "and every executor"
        ) from None
    try:
        operator = Operator(**service, root=parts.path or "/")
    except Exception as error:
        raise ConfigError(f"{flag} {place}: {_line(error)}") from error
    limits = TimeoutLayer(timeout=_TIMEOUT, io_timeout=_IO_TIMEOUT)
    retries = RetryLayer(max_times=_RETRIES, max_delay=_LONGEST_PAUSE, min_delay=0.1, jitter=True)
    return ObjectStore(place, operator.layer(limits).layer(retries))


def stored(path: str) -> tuple[Store, str]:
    """Return the store for the path or URL of a file, and the file's path there.

    Raises ConfigError as ``open_store`` does.
    """
    if (mounted := local(path)) is not None:
        return LocalStore("/"), str(mounted)[1:]
    scheme, _, rest = path.partition("://")
    authority, _, below = rest.partition("/")
    return _whole_store(f"{scheme}://{authority}/"), below


@functools.cache
def _whole_store(place: str) -> Store:
    return open_store(place, "--input")


def _service(scheme: str, authority: str) -> dict[str, str] | None:
    """The arguments of an opendal.Operator; None for a URL of no service.

    Credentials come from the environment of each process, or from the role of its machine:

    * S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE; beside them
      AWS_REGION, AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_S3.
    * Google Cloud Storage: GOOGLE_APPLICATION_CREDENTIALS, the path of a key file.
    * Azure: AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_KEY), AZURE_STORAGE_SAS_TOKEN, or
      AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET.
    """
    variable = os.environ.get
    name, _, host = authority.rpartition("@")
    if scheme in ("s3", "s3a", "s3n"):
        endpoint, region = s3_server()
        service = {"scheme": "s3", "bucket": authority, "region": region or "us-east-1"}
        return service | ({"endpoint": endpoint} if endpoint else {})
    if scheme == "gs":
        return {"scheme": "gcs", "bucket": authority}
    if scheme in _AZURE_SCHEMES and name:
        account, _, domain = host.partition(".")
        endpoint = f"https://{account}.{domain.replace('dfs', 'blob', 1)}"
        service = {"scheme": "azblob", "container": name, "endpoint": endpoint}
        given = {
            "account_name": account,
            "account_key": variable("AZURE_STORAGE_ACCOUNT_KEY") or variable("AZURE_STORAGE_KEY"),
            "sas_token": variable("AZURE_STORAGE_SAS_TOKEN"),
        }
        return service | {key: value for key, value in given.items() if value}
    return None


def probe(store: Store, flag: str = "staging") -> None:
    """Check that a store can be written, and that it refuses to create a file twice.

    Raises ConfigError, or OutputError if the disk is full.
    """
    path = f"{_UNNAMED}probe-{uuid4().hex}"
    try:
        exclusive = store.put_if_absent(path, b"1") and not store.put_if_absent(path, b"2")
        store.delete(path)
    except OSError as error:
        text = f"{flag} {store.place}: {_line(error)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(text) from error
        local_one = isinstance(store, LocalStore)
        advice = ": choose a directory that this user can write to" if local_one else ""
        raise ConfigError(text + advice) from error
    if not exclusive:
        raise ConfigError(
            f"{flag} {store.place}: the store does not refuse to create a file twice "
            "(If-None-Match), so messages would not be safe there: choose another one"
        )


def _line(error: Exception) -> str:
    """The reason, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # opendal tells kind, operation and reason in a line, then the context, and then the source.
    text, _, source = str(error).strip().partition("\n\nSource:\n")
    reason = source.strip() or text.partition(" => ")[2] or text or type(error).__name__
    if answer := _ANSWER.search(reason):
        reason = f"{answer[2].rstrip('.')} ({answer[1]})"
    return reason.splitlines()[0]


_ANSWER = re.compile(r'code: "(\w+)", message: "([^"]*)"')
