"""Locks between processes, by flock: the kernel gives them back however a process ends."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

from nsqtools.errors import LockedError
from nsqtools.sinks.files.disk import is_at, open_locked

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Lock"]

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
        if self.held and not is_at(self._fd, self.path, follow=True):
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
            if not self._keep and is_at(fd, self.path, follow=True):
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


def _write_pid(fd: int) -> None:
    """For people: a full disk is no reason not to hold a lock, nor is what else is in the file.

    A file that is no lock file, named by mistake, stays as it is.
    """
    with contextlib.suppress(OSError):
        found = os.pread(fd, _PID_SIZE, 0).strip()
        if not found or found.isdigit():
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
