"""A store on a mounted file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqtools.stores.interface import UNNAMED, Store, StoredFile
from nsqtools.stores.pinned import pinned, sync_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import BinaryIO

    from nsqtools.stores.interface import Data
    from nsqtools.stores.pinned import PinnedPath


class LocalStore(Store):
    """A Store on a mounted file system with hard links: a local disk, or NFS shared by hosts."""

    threads = 1

    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write a file without a name, and link it: link(2) never replaces a file."""
        with self._unnamed(path) as (unnamed, target, fd):
            write_all(fd, data)
            os.fsync(fd)
            try:
                unnamed.link(target)
            except FileExistsError:
                return False
            target.sync()
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
        with self._unnamed(path) as (unnamed, target, fd):
            with open(fd, "wb", closefd=False) as file:
                yield file
            os.fsync(fd)
            if replace:
                unnamed.rename(target)
            else:
                unnamed.link(target)
            target.sync()

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
    def _unnamed(self, path: str) -> Iterator[tuple[PinnedPath, PinnedPath, int]]:
        """Yield a new, locked file in a file's directory; remove its name at the end.

        Also yields the name that it is to get. A missing directory is created durably.
        """
        target = self.url(path)
        folder = os.path.dirname(target)
        with contextlib.ExitStack() as stack:
            try:
                named = stack.enter_context(pinned(target))
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
                self.sync(os.path.relpath(folder, self.place))
                named = stack.enter_context(pinned(target))
            unnamed, fd = _new(named)
            stack.callback(os.close, fd)
            stack.callback(unnamed.unlink)
            try:
                yield unnamed, named, fd
            except OSError as error:
                error.filename = target
                raise


def _new(target: PinnedPath) -> tuple[PinnedPath, int]:
    """Create and lock a file under a temporary name beside another one."""
    while True:
        file = target.beside(f"{UNNAMED}{uuid4().hex}")
        fd = file.create(os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # not all file systems have locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # else ``sweep`` was faster
            return file, fd
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


def write_all(fd: int, data: Data) -> None:
    """Write all data at the descriptor's position."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
