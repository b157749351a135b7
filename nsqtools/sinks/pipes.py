"""Writing to pipes, terminals, sockets and files without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import stat
from typing import TYPE_CHECKING

from nsqtools.errors import OutputClosedError, OutputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIPE_SIZE = 1 << 20
_NEVER_BLOCKS = select.PIPE_BUF
"""Bytes accepted by a ready pipe or socket in blocking mode without blocking."""
_MOST_PIECES = os.sysconf("SC_IOV_MAX")
_DESCRIPTORS = "/proc/self/fd"


class Output:
    """A file, pipe, terminal or socket that was given open, written without blocking the loop.

    ``failed`` exists from ``open`` on and ends with OutputClosedError as soon as the reader is
    gone, even if nothing is being written (of a TCP socket: when a write fails), or with
    OutputError when a write fails. One ``write`` at a time.
    """

    failed: asyncio.Future[None]

    def __init__(self, fd: int, name: str) -> None:
        self._given = fd
        self._name = name
        self._fd = -1
        self._may_block = self._is_terminal = False
        self._hangup: select.epoll | None = None
        """Ready once the reader is gone."""

    async def open(self) -> None:
        """Prepare for writing. Raises OutputClosedError or OutputError."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        try:
            if fcntl.fcntl(self._given, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "not open for writing")
            mode = os.fstat(self._given).st_mode
            self._fd = _open_again(self._given, mode)
            self._may_block = not stat.S_ISREG(mode) and os.get_blocking(self._fd)
            self._is_terminal = stat.S_ISCHR(mode)
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                _enlarge(self._fd)
                # Bytes from a socket's peer are no events: they belong to whoever reads stdin.
                self._hangup = select.epoll()
                self._hangup.register(self._fd, 0)
                loop.add_reader(self._hangup, self._reader_gone)
        except OSError as error:
            raise self._error(error) from error

    async def write(self, pieces: Sequence[bytes]) -> None:
        """Write all pieces. Raises OutputError, which ``failed`` gets too."""
        rest: Sequence[bytes | memoryview] = pieces
        try:
            while rest:
                if self._may_block:
                    await self._writable()
                some = rest[:_MOST_PIECES]
                if self._may_block:
                    some = [memoryview(rest[0])[:_NEVER_BLOCKS]]
                try:
                    if self._may_block and self._is_terminal:  # it may have room for a byte only
                        written = await asyncio.to_thread(os.writev, self._fd, some)
                    else:
                        written = os.writev(self._fd, some)
                except BlockingIOError:
                    await self._writable()
                else:
                    rest = _behind(rest, written)
        except OSError as error:
            self._fail(failure := self._error(error))
            raise failure from error

    def close(self) -> None:
        """Stop using the output. Nothing is buffered."""
        if self._fd < 0:
            return
        self._unwatch()
        os.close(self._fd)
        self._fd = -1

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_writer(self._fd, ready.set)
        except PermissionError:  # a device that is always ready to be written
            return
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)

    def _reader_gone(self) -> None:
        self._fail(OutputClosedError(f"{self._name}: the reader is gone"))
        self._unwatch()

    def _unwatch(self) -> None:
        if self._hangup:
            asyncio.get_running_loop().remove_reader(self._hangup)
            self._hangup.close()
            self._hangup = None

    def _fail(self, error: OutputError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # so that asyncio does not log it as never retrieved

    def _error(self, error: OSError) -> OutputError:
        if isinstance(error, BrokenPipeError | ConnectionResetError):
            return OutputClosedError(f"{self._name}: the reader is gone")
        return OutputError(f"{self._name}: {error.strerror}")


def _behind(pieces: Sequence[bytes | memoryview], count: int) -> Sequence[bytes | memoryview]:
    """Return the rest of the pieces after this many bytes."""
    for number, piece in enumerate(pieces):
        if count < len(piece):
            return [memoryview(piece)[count:], *pieces[number + 1 :]]
        count -= len(piece)
    return []


def _open_again(fd: int, mode: int) -> int:
    """Open the same pipe, terminal or file once more. Raises OSError.

    O_NONBLOCK belongs to the open file description. The shell and stderr share a terminal's
    description, hence a new description where possible. Sockets cannot be reopened, nor can another
    user's pipe or terminal, as after su. Their flags stay unchanged: other processes with the same
    description would fail, and kill -9 would leave the flags changed.
    """
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            return os.open(f"{_DESCRIPTORS}/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            if error.errno == errno.ENXIO and stat.S_ISFIFO(mode):
                raise BrokenPipeError(errno.EPIPE, "no reader") from error
    return os.dup(fd)


def _enlarge(fd: int) -> None:
    """Enlarge a pipe to hold a whole batch, so that writer and reader switch less often."""
    with contextlib.suppress(OSError):  # not a pipe, or above the user's limit
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _PIPE_SIZE:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
