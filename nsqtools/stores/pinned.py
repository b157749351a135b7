"""Paths below a directory where others may write: folders are opened once, links of others not.

Who may rename a folder can put a link in its place at any moment, also between a check and the
call that follows. So each folder is opened by its name in the one before, and the file is reached
by its name in the last of them, wherever the path leads meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from nsqtools.stores.interface import naming

if TYPE_CHECKING:
    from collections.abc import Iterator

MODE = 0o666
_FOLDER_MODE = 0o770  # as in nsq_to_file
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY

# Errors of link(2) where hard links are not supported: FAT, some network file systems, containers.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL})


class PinnedPath(NamedTuple):
    """The name of a file in an open folder; ``path`` is for messages. Methods raise OSError.

    With ``is_shared`` others may write to the folder.
    """

    path: str
    folder: int
    is_shared: bool = False

    @property
    def name(self) -> str:
        """The file's name in the folder."""
        return os.path.basename(self.path)

    def beside(self, name: str) -> PinnedPath:
        """Return another name in the same folder."""
        return self._replace(path=os.path.join(os.path.dirname(self.path), name))

    def status(self) -> os.stat_result | None:
        """Return the status of what has the name, which may be a link; None if nothing has it."""
        with naming(self.path), contextlib.suppress(FileNotFoundError):
            return os.lstat(self.name, dir_fd=self.folder)
        return None

    def open(self, flags: int, mode: int = MODE) -> int:
        """Open the file, but no link of another user in a shared folder; return the descriptor."""
        name = self.name
        with naming(self.path):
            if self.is_shared and not flags & (os.O_NOFOLLOW | os.O_EXCL):
                try:
                    return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=self.folder)
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                name = _text_of_link(self.folder, self.path)
            return os.open(name, flags, mode, dir_fd=self.folder)

    def create(self, flags: int = os.O_WRONLY) -> int:
        """Create the file; raises FileExistsError if something has the name."""
        return self.open(flags | os.O_CREAT | os.O_EXCL)

    def unlink(self) -> bool:
        """Remove the name; return whether it was there."""
        with naming(self.path), contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)
            return True
        return False

    def rmdir(self) -> None:
        """Remove an empty folder of this name."""
        with naming(self.path):
            os.rmdir(self.name, dir_fd=self.folder)

    def rename(self, target: PinnedPath) -> None:
        """Give the file another name, and take this one away. A file of that name is replaced."""
        with naming(target.path):
            os.rename(self.name, target.name, src_dir_fd=self.folder, dst_dir_fd=target.folder)

    def link(self, target: PinnedPath) -> None:
        """Give the file a second name; raises FileExistsError if another file has it.

        NFS may report an existing name after repeating a request because of a lost response.
        """
        try:
            with naming(target.path):
                os.link(self.name, target.name, src_dir_fd=self.folder, dst_dir_fd=target.folder)
        except OSError:
            if not is_same(self.status(), target.status()):
                raise

    def publish(self, target: PinnedPath) -> None:
        """Give the file another name that nothing has; raises FileExistsError.

        Where hard links are supported, this name remains. Elsewhere the file is renamed onto an
        empty file that was created exclusively. A server may report an error although it has
        renamed the file, as after a lost response. So what has the name then is removed only if it
        is still that empty file.
        """
        try:
            self.link(target)
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        ours = self.status()
        os.close(target.create())
        try:
            self.rename(target)
        except OSError:
            if is_same(ours, target.status()):
                return
            if self.status():
                target.remove_empty()
            raise

    def remove_empty(self) -> None:
        """Remove the name if it is that of an empty file."""
        found = self.status()
        if found and stat.S_ISREG(found.st_mode) and not found.st_size:
            self.unlink()

    def sync(self) -> None:
        """Make the names in the folder durable; ignores file systems without support."""
        sync_directory(os.path.dirname(self.path), self.folder)


def status(path: str, root: str = "") -> os.stat_result | None:
    """Return ``PinnedPath.status`` of a path; None also if a folder is missing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), pinned(path, root) as file:
        return file.status()
    return None


def open_below(path: str, root: str) -> BinaryIO:
    """Open a file below a directory for reading, through no link there that another user made."""
    folder, name = os.path.split(os.path.abspath(path))
    if not os.path.join(folder, "").startswith(os.path.join(root, "")):
        folder = os.path.realpath(folder)
    with pinned(os.path.join(folder, name), root) as file:
        return open(file.open(os.O_RDONLY | os.O_NONBLOCK), "rb")


def is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Whether both are the status of one file."""
    return one is not None and other is not None and os.path.samestat(one, other)


@contextlib.contextmanager
def pinned(path: str, root: str = "", *, make: bool = False) -> Iterator[PinnedPath]:
    """Open the folder of a path and yield the path in it.

    Below ``root``, a link that another user made is an OSError; links of root and of this user are
    followed. Without ``root``, and for a path elsewhere, all links are. With ``make`` missing
    folders are created durably, otherwise they are a FileNotFoundError.
    """
    folder = os.path.dirname(path)
    is_shared = bool(root) and os.path.join(folder, "").startswith(os.path.join(root, ""))
    top = root if is_shared else folder
    if make:
        make_directory(top)
    fd = _open(top or ".", top)
    try:
        at = top
        for name in filter(None, folder[len(top) :].split(os.sep)):
            at = os.path.join(at, name)
            above, fd = fd, _enter(fd, at, make=make)
            os.close(above)
        yield PinnedPath(path, fd, is_shared)
    finally:
        os.close(fd)


def _open(name: str, path: str, flags: int = 0, folder: int | None = None) -> int:
    with naming(path):
        return os.open(name, _FOLDER | flags, dir_fd=folder)


def _enter(folder: int, path: str, *, make: bool) -> int:
    """Open the folder at a path in the open one above."""
    name = os.path.basename(path)
    try:
        return _open(name, path, os.O_NOFOLLOW, folder)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return _open(_text_of_link(folder, path), path, 0, folder)
    with contextlib.suppress(FileExistsError), naming(path):
        os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
    sync_directory(os.path.dirname(path), folder)
    return _enter(folder, path, make=False)


def _text_of_link(folder: int, path: str) -> str:
    """Return where a link in an open folder leads, unless it is another user's."""
    name = os.path.basename(path)
    with naming(path), contextlib.ExitStack() as stack:
        if hasattr(os, "O_PATH"):  # what has the name now is looked at, whatever has it later
            link = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
            stack.callback(os.close, link)
            found, name, folder = os.fstat(link), "", link
        else:
            found = os.lstat(name, dir_fd=folder)
        if not stat.S_ISLNK(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if found.st_uid not in (0, os.geteuid()):
            raise OSError(errno.ELOOP, "a link of another user, not followed")
        return os.readlink(name, dir_fd=folder)


def make_directory(path: str, mode: int = _FOLDER_MODE) -> None:
    """Create a directory and its parents, durably. The directory may exist."""
    if not path or os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_directory(parent)


def sync_directory(path: str, folder: int | None = None) -> None:
    """Make the names in a directory durable; ignores file systems without support.

    ``folder`` is the directory if it is open.
    """
    if folder is None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    else:
        with naming(path):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        with naming(path):
            os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)
