"""Locks between processes with flock, which the kernel releases when a process ends."""

from __future__ import annotations

import contextlib
import os
from typing import Self

from nsqtools.errors import LockedError
from nsqtools.sinks.files.disk import is_at, open_locked
from nsqtools.stores.pinned import pinned

_PID_SIZE = 32


class Lock:
    """A file that one Lock in one process holds at a time; not thread-safe.

    While it is held, the file contains the process id. Afterwards it is removed, unless ``keep`` is
    set, for a file that the user named. ``root`` is as in ``pinned``.
    """

    def __init__(self, path: str, *, keep: bool = False, root: str = "") -> None:
        self.path = path
        self._root = root
        self._keep = keep
        self._fd = -1

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd >= 0

    def acquire(self) -> bool:
        """Take the lock without waiting; return False if another process holds it.

        If the lock is already held but its file was removed, it is taken again. The file is
        created, with its directories unless ``keep`` is set. Raises OSError with the file's name.
        """
        if self.held and not is_at(self._fd, self.path, follow=True):
            self.release()
        if not self.held:
            if self._keep:  # a missing directory is probably a typing error
                os.stat(os.path.dirname(self.path) or ".")
            # A link is followed only where the user has named it.
            flags = 0 if self._keep else os.O_NOFOLLOW
            fd = open_locked(self.path, flags, wait=False, root=self._root)
            if fd is None:
                return False
            self._fd = fd
            _write_pid(fd)
        return True

    def holder(self) -> str:
        """Return the process id in the file as text, or an empty text."""
        try:
            with open(self.path, "rb") as file:
                text = file.read(_PID_SIZE).strip()
        except OSError:
            return ""
        return text.decode() if text.isdigit() else ""

    def refusal(self, otherwise: str = "") -> LockedError:
        """Return the error to raise if another process holds the lock, with an alternative for the
        user.
        """
        more = f", or {otherwise}" if otherwise else ""
        return LockedError(f"{self}: try again when that process has ended{more}")

    def __str__(self) -> str:
        holder = self.holder()
        return f"{self.path} is locked by {f'process {holder}' if holder else 'another process'}"

    def release(self) -> None:
        """Release the lock if it is held."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # Removed while locked: a process that has opened the file sees that the name is gone.
            if not self._keep and is_at(fd, self.path, follow=True):
                with contextlib.suppress(OSError), pinned(self.path, self._root) as file:
                    file.unlink()
        finally:
            with contextlib.suppress(OSError):  # the lock is released all the same
                os.close(fd)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self.refusal()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _write_pid(fd: int) -> None:
    """Write the process id for users. The lock holds even if that fails, as on a full disk.

    A file with other content, named by mistake, is left unchanged.
    """
    with contextlib.suppress(OSError):
        found = os.pread(fd, _PID_SIZE, 0).strip()
        if not found or found.isdigit():
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
