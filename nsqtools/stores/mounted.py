"""A store on a mounted file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqtools.stores.interface import UNNAMED, Store, StoredFile, naming

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import BinaryIO

    from nsqtools.stores.interface import Data


class LocalStore(Store):
    """A Store on a mounted file system with hard links: a local disk, or NFS shared by hosts."""

    threads = 1

    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write a file without a name, and link it: link(2) never replaces a file."""
        target = self.url(path)
        with self._unnamed(target) as (unnamed, fd):
            write_all(fd, data)
            os.fsync(fd)
            try:
                os.link(unnamed, target)
            except OSError as error:
                # NFS may repeat a request after a lost response, and then report its own link as
                # an existing name. The number of links shows whether the first request succeeded.
                if os.fstat(fd).st_nlink < 2:
                    if isinstance(error, FileExistsError):
                        return False
                    raise OSError(error.errno, error.strerror, target) from error
        sync_directory(os.path.dirname(target))
        return True

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read a file."""
        with open(self.url(path), "rb") as file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory.

        An NFS client may list an outdated directory from its cache. After a change of its own it
        asks the server, hence the temporary directory.
        """
        folder = self.url(path)
        try:
            changed = os.path.join(folder, f"{UNNAMED}{uuid4().hex}")
            with contextlib.suppress(OSError):  # the directory may be read-only
                os.mkdir(changed)
                os.rmdir(changed)
            return [name for name in os.listdir(folder) if not name.startswith(UNNAMED)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_below(self, path: str) -> Mapping[str, Collection[str]]:
        """Read the directories as ``list`` does."""
        return {name: self.list(f"{path}/{name}") for name in self.list(path)}

    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all files below a directory."""
        for folder, _, names in os.walk(self.url(path)):
            for name in names:
                if not name.startswith(UNNAMED):
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
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """Write a file and rename it; without ``replace`` link it, since links replace no file."""
        target = self.url(path)
        with self._unnamed(target) as (unnamed, fd):
            with open(fd, "wb", closefd=False) as file:
                yield file
            os.fsync(fd)
            if replace:
                os.rename(unnamed, target)
            else:
                os.link(unnamed, target)
        sync_directory(os.path.dirname(target))

    def sweep(self, path: str) -> None:
        """Delete files without a name unless a process has locked them."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.url(path)):
                if name.startswith(UNNAMED):
                    with _unlocked(os.path.join(self.url(path), name)) as unlocked:
                        if unlocked:
                            self.delete(os.path.join(path, name))

    def sync(self, path: str) -> None:
        """Sync a directory and its parents, up to the place and the place's parent."""
        folder = self.url(path).rstrip("/")
        while folder.startswith(self.place) and folder != "/":
            sync_directory(folder)
            folder = os.path.dirname(folder)
        with contextlib.suppress(PermissionError):
            sync_directory(folder or "/")

    @contextlib.contextmanager
    def _unnamed(self, target: str) -> Iterator[tuple[str, int]]:
        """Yield a new, locked file in the target's directory; remove its name at the end.

        A missing directory is created durably.
        """
        folder = os.path.dirname(target)
        try:
            try:
                unnamed, fd = _new(folder)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
                self.sync(os.path.relpath(folder, self.place))
                unnamed, fd = _new(folder)
            try:
                yield unnamed, fd
            finally:
                try:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(unnamed)
                finally:
                    os.close(fd)
        except OSError as error:
            error.filename = target
            raise


def _new(folder: str) -> tuple[str, int]:
    """Create and lock a file under a temporary name; return its path and descriptor."""
    while True:
        path = os.path.join(folder, f"{UNNAMED}{uuid4().hex}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # not all file systems have locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # else ``sweep`` was faster
            return path, fd
        os.close(fd)


def is_locked(path: str) -> bool:
    """Whether a process holds a lock (flock) on a file; False if the file cannot be opened."""
    with _unlocked(path) as unlocked:
        return not unlocked


@contextlib.contextmanager
def _unlocked(path: str) -> Iterator[bool]:
    """Yield whether no process has locked a file; until the end, other processes cannot lock it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield True
        return
    unlocked = True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        unlocked = not isinstance(error, BlockingIOError)
    try:
        yield unlocked
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable; ignores file systems without support."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
            os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)


def write_all(fd: int, data: Data) -> None:
    """Write all data at the descriptor's position."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
