"""Locks between processes, by flock: the kernel gives them back however a process ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from typing import TYPE_CHECKING, Self

from nsqtools.errors import LockedError
from nsqtools.sinks.files.publish import make_directory

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Lock", "obtain", "open_locked"]

log = logging.getLogger(__name__)

_POLL = 0.2
_PID_SIZE = 32


class Lock:
    """A file that one process, and one Lock in it, holds at a time; not thread-safe.

    While it is held it contains the process id. ``keep`` leaves the file where it is afterwards,
    as an operator expects of a file that was named; it is otherwise removed.
    """

    def __init__(self, path: str, *, keep: bool = False) -> None:
        self.path = path
        self._keep = keep
        self._fd = -1

    @property
    def held(self) -> bool:
        """Whether it is ours."""
        return self._fd >= 0

    def acquire(self) -> bool:
        """Take it, without waiting; False when another has it, True also when it is ours already.

        Ours whose file was removed is taken anew. The file is made, and its directories unless
        it is kept. Raises OSError with the file's name.
        """
        if self.held and not _names(self.path, self._fd):
            self.release()
        if not self.held:
            if self._keep:  # a directory that is not there is one mistyped
                os.stat(os.path.dirname(self.path) or ".")
            fd = open_locked(self.path, wait=False)
            if fd is None:
                return False
            self._fd = fd
            _write_pid(fd)
        return True

    def holder(self) -> str:
        """The process id that the file names, as text; empty when it names none."""
        try:
            with open(self.path, "rb") as file:
                text = file.read(_PID_SIZE).strip()
        except OSError:
            return ""
        return text.decode() if text.isdigit() else ""

    def refusal(self, otherwise: str = "") -> LockedError:
        """What to raise because another has it; ``otherwise`` is what else one can do."""
        more = f", or {otherwise}" if otherwise else ""
        return LockedError(f"{self}: try again when that has ended{more}")

    def __str__(self) -> str:
        holder = self.holder()
        return f"{self.path} is locked by {f'process {holder}' if holder else 'another process'}"

    def release(self) -> None:
        """Give it back; does nothing when it is not held."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # Removed while it is held: whoever opened it before sees that it has lost its name.
            if not self._keep and _names(self.path, fd):
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self.refusal()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


async def obtain(lock: Lock, *, wait: bool) -> None:
    """Take the lock. When another has it, wait for that to end, or raise LockedError.

    Raises OSError as ``acquire``. Cancelled while waiting, it holds nothing.
    """
    if lock.acquire():
        return
    if not wait:
        raise lock.refusal("wait for it with --wait-lock")
    log.info("waiting: %s", lock)
    while not lock.acquire():  # noqa: ASYNC110 - nothing tells of the end of another process
        await asyncio.sleep(_POLL)


def open_locked(path: str, flags: int = 0, *, wait: bool) -> int | None:
    """Open to read and write, or make, the file that has this name, and lock it exclusively.

    ``flags`` are added to open's. The result is a descriptor whose closing is the unlocking; None
    when another has the lock and ``wait`` is false. Raises OSError with the file's name.
    """
    how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        fd = _open(path, os.O_RDWR | os.O_CREAT | flags)
        named = False
        try:
            fcntl.flock(fd, how)
            named = _names(path, fd)
        except BlockingIOError:
            return None
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            if not named:
                os.close(fd)
        if named:
            return fd


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        make_directory(os.path.dirname(path))
        return os.open(path, flags, 0o666)


def _names(path: str, fd: int) -> bool:
    """Whether the path is that of the open file: it may have been removed or replaced since."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _write_pid(fd: int) -> None:
    """For people: a full disk is no reason not to hold a lock, nor is what else is in the file.

    A file that is no lock file, named by mistake, stays as it is.
    """
    with contextlib.suppress(OSError):
        found = os.pread(fd, _PID_SIZE, 0).strip()
        if not found or found.isdigit():
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
