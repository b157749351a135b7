"""Files on disk: locked by one process while written, completed without overwriting others.

While being written, a file has the suffix ``WORK`` and is locked by its process. So a file with
this suffix and no lock was left by a crash. All functions block and raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from nsqtools.errors import ConfigError
from nsqtools.stores.interface import naming
from nsqtools.stores.mounted import sync_directory, write_all

Mark = Callable[[os.stat_result], object]

WORK = ".part"
TORN = ".torn"

_DIRECTORY_MODE = 0o770  # as in nsq_to_file
_FILE_MODE = 0o666
_CHUNK = 1 << 20
_CALL = 1 << 18
"""Bytes to write in a call: many more at once take the kernel several times as long."""
_MOST_PARTS = 1024
"""Maximum parts per call: IOV_MAX."""
_BLOCK = 1 << 16
_ATTEMPTS = 10

# Errors of link(2) where hard links are not supported: FAT, some network file systems, containers.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL})


def create(path: str) -> int:
    """Create a file, locked and durable in its directory; return its descriptor.

    Raises FileExistsError if the name is taken.
    """
    folder = os.path.dirname(path)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            make_directory(folder)
            fd = _create(path)
            break
        except FileNotFoundError:  # ``retire`` has just removed an empty directory
            if attempt == _ATTEMPTS:
                raise
    try:
        sync_directory(folder)
    except BaseException:
        _undo(fd, path)
        raise
    return fd


def _create(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    try:
        held = _lock(fd, path)
    except BaseException:
        _undo(fd, path)
        raise
    if not held:  # another process looks whether a crash has left it
        _undo(fd, path)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    return fd


def _undo(fd: int, path: str) -> None:
    with contextlib.suppress(OSError):
        if is_at(fd, path):
            os.unlink(path)
    os.close(fd)


def hold(path: str) -> int | None:
    """Open and lock an existing file; None if another process has locked it, or it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    held: bool | None = False
    try:
        held = _lock(fd, path)
    finally:
        if not held:
            os.close(fd)
    return fd if held else None


def check_links(root: str, path: str) -> None:
    """Raise OSError if a directory between the two is another user's link.

    Such a link may lead anywhere.
    """
    folder = os.path.dirname(path)
    while folder.startswith(os.path.join(root, "")):
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(folder)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
                raise OSError(errno.ELOOP, "a link of another user, not followed", folder)
        folder = os.path.dirname(folder)


def is_at(fd: int, path: str, *, follow: bool = False) -> bool:
    """Whether the path is still the name of the open file or, with ``follow``, leads to it."""
    try:
        there, ours = os.stat(path, follow_symlinks=follow), os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(there, ours)


def is_same(one: str, other: str) -> bool:
    """Whether both are names of one file. Links are not followed."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _lock(fd: int, path: str, *, wait: bool = False, follow: bool = False) -> bool | None:
    """Whether the file is locked and still has its name; None if another process has the lock."""
    try:
        with naming(path):
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return is_at(fd, path, follow=follow)


def write_pieces(fd: int, pieces: Iterable[bytes]) -> None:
    """Write them one after another at the descriptor's position, without joining them."""
    for call in _calls(pieces):
        written = os.writev(fd, call)
        if written < sum(map(len, call)):
            write_all(fd, b"".join(call)[written:])


def _calls(pieces: Iterable[bytes]) -> Iterator[list[memoryview]]:
    """Return the pieces for one write: several small pieces, or a part of a large one."""
    call: list[memoryview] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), _CALL):
            call.append(memoryview(piece)[start : start + _CALL])
            size += len(call[-1])
            if size >= _CALL or len(call) == _MOST_PARTS:
                yield call
                call, size = [], 0
    if call:
        yield call


def give_name(work: str, target: str, copy: str, mark: Mark) -> None:
    """Complete a complete, synced file; raises FileExistsError if the name is taken.

    The name is durable once its directory is synced. Where hard links are supported, the work name
    remains until ``retire``. On another file system the file is copied to the path ``copy``, next
    to the target, first. ``mark`` is called with the status of the file before it gets its final
    name.
    """
    make_directory(os.path.dirname(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    mark(os.stat(work))
    try:
        _link(work, target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            _complete_copy(work, target, copy, mark)
        elif error.errno in _NO_LINKS:
            _complete_renamed(work, target)
        else:
            raise


def _link(work: str, target: str) -> None:
    """Give a file a second name.

    NFS may report an existing name after repeating a request because of a lost response.
    """
    try:
        os.link(work, target)
    except OSError:
        if not is_same(work, target):
            raise


def _complete_copy(work: str, target: str, copy: str, mark: Mark) -> None:
    with contextlib.suppress(FileNotFoundError):  # left by an earlier attempt
        os.unlink(copy)
    fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    try:
        with open(work, "rb") as source:
            copy_contents(source.fileno(), fd, 0, os.fstat(source.fileno()).st_size)
        mark(os.fstat(fd))
        try:
            _link(copy, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _complete_renamed(copy, target)
    finally:
        with contextlib.suppress(OSError):  # the next start will
            os.unlink(copy)
        os.close(fd)


def _complete_renamed(work: str, target: str) -> None:
    """Rename onto an exclusively created empty file: no other file is overwritten.

    A server may report an error although it has renamed the file, as after a lost response. So
    what has the name then is removed only if it is still the empty file.
    """
    ours = os.lstat(work)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE))
    try:
        os.rename(work, target)
    except OSError:
        if os.path.samestat(os.lstat(target), ours):
            return
        if is_same(work, work):
            free_reserved(target)
        raise


def free_reserved(target: str) -> None:
    """Remove the empty file left by ``give_name`` after a crash."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = os.lstat(target)
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            os.unlink(target)


def retire(work: str, root: str = "") -> None:
    """Remove the work name of a completed file, and directories emptied by this.

    Only directories below ``root``, which contains the file, are removed; none without it.
    """
    folder = os.path.dirname(work)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(work)
        sync_directory(folder)
    if root:
        _remove_empty(folder, root)


def _remove_empty(folder: str, root: str) -> None:
    above = os.path.join(root, "")
    while folder.startswith(above):
        try:
            os.rmdir(folder)
        except FileNotFoundError:  # another topic has removed it
            pass
        except OSError:
            return
        folder = os.path.dirname(folder)


def copy_contents(source: int, target: int, start: int, end: int) -> None:
    """Copy a range of an open file, with or without a name, and sync the copy."""
    while start < end and (data := os.pread(source, min(_CHUNK, end - start), start)):
        write_all(target, data)
        start += len(data)
    os.fsync(target)


def set_aside(fd: int, path: str, start: int, size: int) -> str:
    """Move the bytes from ``start`` into a new file next to this one; return its path."""
    for number in range(10**6):
        aside = path.removesuffix(WORK) + (f".{number}" if number else "") + TORN
        try:
            to = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        except FileExistsError:
            continue
        break
    try:
        copy_contents(fd, to, start, size)
    except BaseException:
        os.unlink(aside)
        raise
    finally:
        os.close(to)
    sync_directory(os.path.dirname(aside))
    os.ftruncate(fd, start)
    os.fsync(fd)
    return aside


def move_aside(path: str) -> str:
    """Rename a file to free its name; return its new name."""
    for number in range(1, 10**6):
        aside = f"{path}.{number}"
        if not os.path.lexists(aside):
            os.rename(path, aside)
            return aside
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def make_directory(path: str, mode: int = _DIRECTORY_MODE) -> None:
    """Create a directory and its parents, durably. The directory may exist."""
    if not path or os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_directory(parent)


def make_writable_directory(path: str) -> None:
    """Create a directory; raises OSError also if it is no directory or not writable."""
    make_directory(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", path)


@contextlib.contextmanager
def named_option(flag: str, path: str) -> Iterator[None]:
    """Convert the OSError of an unusable path into a ConfigError with the option's name."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error


def open_locked(path: str, flags: int = 0, *, wait: bool) -> int | None:
    """Open a file for reading and writing, create it if necessary, and lock it exclusively.

    ``flags`` are added to open's. Returns a descriptor; closing it releases the lock. Returns None
    if another process has the lock and ``wait`` is false. Raises OSError with the file's name.
    """
    while True:
        fd = _open_or_make(path, os.O_RDWR | os.O_CREAT | flags)
        held: bool | None = False
        try:
            held = _lock(fd, path, wait=wait, follow=True)
        finally:
            if not held:
                os.close(fd)
        if held:
            return fd
        if held is None:
            return None


def _open_or_make(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        make_directory(os.path.dirname(path))
        return os.open(path, flags, 0o666)


def append_lines(
    path: str, data: bytes, *, is_torn: Callable[[bytes], bool], flags: int = 0
) -> None:
    """Append complete lines to a file and sync it; ``flags`` are added to open's.

    If the last line has no line end, it is removed if ``is_torn`` recognises the rest of a crash;
    otherwise, as editors may leave it, it gets a line end. Raises OSError with the file's name; the
    lines are then not in the file, or the next call removes them.
    """
    fd = open_locked(path, os.O_APPEND | flags, wait=True)
    assert fd is not None
    try:
        with naming(path):
            end, missing = _end_of_lines(fd, is_torn)
            os.ftruncate(fd, end)
            # before the first line: a file with lines then has a durable name
            if not end:
                sync_directory(os.path.dirname(path))
            try:
                write_all(fd, missing + data)  # a single write, unless the disk is full
                os.fsync(fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, end)
                raise
            if not os.fstat(fd).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "removed while it was written to")
    finally:
        os.close(fd)


def rewrite_lines(path: str, is_needed: Callable[[bytes], bool]) -> None:
    """Remove lines from a file of ``append_lines``, which is replaced by another one."""
    fd = open_locked(path, os.O_NOFOLLOW, wait=True)
    assert fd is not None
    with open(fd, "rb") as file:
        data = b"".join(line for line in file if is_needed(line))
        new = path + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        to = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        try:
            write_all(to, data)
            os.fsync(to)
            os.rename(new, path)
        finally:
            os.close(to)
        sync_directory(os.path.dirname(path))


def _end_of_lines(fd: int, is_torn: Callable[[bytes], bool]) -> tuple[int, bytes]:
    """Return the end of the last complete line, 0 for none, and the bytes to add there first."""
    size = end = os.fstat(fd).st_size
    found = -1
    while end and found < 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
    line = os.pread(fd, size - end, end)
    return (end, b"") if not line or is_torn(line) else (size, b"\n")
