"""Files on disk: locked by one process while written, completed without overwriting others.

While being written, a file has the suffix ``WORK`` and is locked by its process. So a file with
this suffix and no lock was left by a crash. All functions block and raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from nsqtools.checksum import is_torn
from nsqtools.errors import ConfigError
from nsqtools.stores.interface import naming
from nsqtools.stores.mounted import write_all
from nsqtools.stores.pinned import PinnedPath, is_same, make_directory, pinned

log = logging.getLogger(__name__)

Mark = Callable[[os.stat_result], object]

WORK = ".part"
TORN = ".torn"
DAMAGED = ".damaged"

_CHUNK = 1 << 20
_CALL = 1 << 18
"""Bytes to write in a call: many more at once take the kernel several times as long."""
_MOST_PARTS = 1024
"""Maximum parts per call: IOV_MAX."""
_BLOCK = 1 << 16
_ATTEMPTS = 10


def create(path: str, root: str = "") -> int:
    """Create a file, locked and durable in its directory; return its descriptor.

    ``root`` is as in ``pinned``, here and below. Raises FileExistsError if the name is taken.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with pinned(path, root, make=True) as file:
                return _create(file)
        except FileNotFoundError:  # ``retire`` has just removed an empty directory
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _create(file: PinnedPath) -> int:
    fd = file.create(os.O_RDWR)
    try:
        if not _lock(fd, file.path):  # another process looks whether a crash has left it
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file.path)
        file.sync()
    except BaseException:
        _unlink(file, fd)
        os.close(fd)
        raise
    return fd


def _unlink(file: PinnedPath, fd: int) -> None:
    """Remove the name of an open file, unless it is another's by now."""
    with contextlib.suppress(OSError):
        if is_same(file.status(), os.fstat(fd)):
            file.unlink()


def hold(path: str, root: str = "") -> int | None:
    """Open and lock an existing file; None if another process has locked it, or it is gone."""
    try:
        with pinned(path, root) as file:
            fd = file.open(os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    held: bool | None = False
    try:
        held = _lock(fd, path)
    finally:
        if not held:
            os.close(fd)
    return fd if held else None


def is_at(fd: int, path: str, *, follow: bool = False) -> bool:
    """Whether the path is still the name of the open file or, with ``follow``, leads to it."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(os.stat(path, follow_symlinks=follow), os.fstat(fd))
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


def give_name(work: PinnedPath, target: PinnedPath, copy: PinnedPath, mark: Mark) -> None:
    """Complete a complete, synced file; raises FileExistsError if the name is taken.

    The name is durable once its directory is synced. Where hard links are supported, the work name
    remains until ``retire``. On another file system the file is copied to the path ``copy``, next
    to the target, first. ``mark`` is called with the status of the file before it gets its final
    name.
    """
    if target.status():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.path)
    if not (found := work.status()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), work.path)
    mark(found)
    try:
        work.publish(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _complete_copy(work, target, copy, mark)


def _complete_copy(work: PinnedPath, target: PinnedPath, copy: PinnedPath, mark: Mark) -> None:
    copy.unlink()  # left by an earlier attempt
    fd = copy.create()
    try:
        with open(work.open(os.O_RDONLY), "rb") as source:
            copy_contents(source.fileno(), fd, 0, os.fstat(source.fileno()).st_size)
        mark(os.fstat(fd))
        copy.publish(target)
    finally:
        with contextlib.suppress(OSError):  # the next start will
            copy.unlink()
        os.close(fd)


def retire(work: str, root: str = "", *, tidies: bool = False) -> None:
    """Remove the work name of a completed file, and directories emptied by this.

    Only directories below ``root`` are removed, and none without ``tidies``.
    """
    with contextlib.suppress(FileNotFoundError), pinned(work, root) as file:
        if file.unlink():
            file.sync()
    if tidies:
        _remove_empty(os.path.dirname(work), root)


def _remove_empty(folder: str, root: str) -> None:
    above = os.path.join(root, "")
    while folder.startswith(above):
        try:
            with pinned(folder, root) as file:
                file.rmdir()
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


def set_aside(
    fd: int, path: str, parts: Iterable[tuple[int, int]], suffix: str, root: str = ""
) -> str:
    """Copy parts of a file, given by their offsets, into a new file next to it; return its path."""
    with pinned(path, root) as file:
        for number in range(10**6):
            more = f".{number}" if number else ""
            aside = file.beside(file.name.removesuffix(WORK) + more + suffix)
            try:
                to = aside.create()
            except FileExistsError:
                continue
            break
        try:
            for start, end in parts:
                copy_contents(fd, to, start, end)
        except BaseException:
            aside.unlink()
            raise
        finally:
            os.close(to)
        aside.sync()
    return aside.path


def keep(fd: int, path: str, parts: Sequence[tuple[int, int]], root: str = "") -> int:
    """Reduce a locked file to these parts, durably; return its descriptor from now on.

    Unless the file is just cut, a copy replaces it, also locked, and ``fd`` is closed. After an
    error ``fd`` is open, and the name is that of the file as it was, or of the copy.
    """
    if not parts or (len(parts) == 1 and not parts[0][0]):
        end = parts[0][1] if parts else 0
        if end < os.fstat(fd).st_size:
            os.ftruncate(fd, end)
            os.fsync(fd)
        return fd
    to = -1
    try:
        with pinned(path, root) as file:
            copy = file.beside(f".{file.name.removesuffix(WORK)}.copy")
            copy.unlink()  # left by an earlier attempt
            to = _create(copy)
            try:
                for start, end in parts:
                    copy_contents(fd, to, start, end)
                copy.rename(file)
                file.sync()
            except BaseException:
                _unlink(copy, to)
                raise
    except BaseException:
        if to >= 0:
            os.close(to)
        raise
    with contextlib.suppress(OSError):  # nothing was written to it
        os.close(fd)
    return to


def move_aside(path: str, root: str = "") -> str:
    """Rename a file to free its name; return its new name."""
    with pinned(path, root) as file:
        for number in range(1, 10**6):
            aside = file.beside(f"{file.name}.{number}")
            if not aside.status():
                file.rename(aside)
                return aside.path
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


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


def open_locked(path: str, flags: int = 0, *, wait: bool, root: str = "") -> int | None:
    """Open a file for reading and writing, create it if necessary, and lock it exclusively.

    ``flags`` are added to open's. Returns a descriptor; closing it releases the lock. Returns None
    if another process has the lock and ``wait`` is false. Raises OSError with the file's name.
    """
    while True:
        with pinned(path, root, make=True) as file:
            fd = file.open(os.O_RDWR | os.O_CREAT | flags)
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


def append_lines(
    path: str,
    data: bytes,
    *,
    is_torn: Callable[[bytes], bool] = is_torn,
    follow: bool = False,
    root: str = "",
) -> None:
    """Append complete lines to a file, a link only with ``follow``, and sync it.

    If the last line has no line end, it is removed if ``is_torn`` recognises the rest of a crash;
    otherwise, as editors may leave it, it gets a line end. Raises OSError with the file's name; the
    lines are then not in the file, or the next call removes them.
    """
    flags = os.O_APPEND if follow else os.O_APPEND | os.O_NOFOLLOW
    fd = open_locked(path, flags, wait=True, root=root)
    assert fd is not None
    try:
        with naming(path):
            end, missing = _end_of_lines(fd, is_torn)
            if torn := os.fstat(fd).st_size - end:
                log.warning(
                    "%s: byte %d: an incomplete line of %d bytes, as a crash leaves it, is removed",
                    *(path, end, torn),
                )
                os.ftruncate(fd, end)
            # before the first line: a file with lines then has a durable name
            if not end:
                with pinned(path, root) as file:
                    file.sync()
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
        with contextlib.suppress(OSError):  # after fsync, close has nothing to report
            os.close(fd)


def rewrite_lines(
    path: str, chosen: Callable[[BinaryIO], Iterable[bytes]], *, root: str = ""
) -> None:
    """Replace a file of ``append_lines`` by one with those of its lines that ``chosen`` returns."""
    fd = open_locked(path, os.O_NOFOLLOW, wait=True, root=root)
    assert fd is not None
    with open(fd, "rb") as file, pinned(path, root) as old:
        data = b"".join(chosen(file))
        new = old.beside(f"{old.name}.copy")
        new.unlink()
        to = new.create()
        try:
            write_all(to, data)
            os.fsync(to)
            new.rename(old)
        finally:
            os.close(to)
        old.sync()


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
