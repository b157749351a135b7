"""The disk of the simulation: real files below a directory, through ``os``, with faults.

Each call that changes something is an event at which the process may be killed, the call may fail,
or the disk may be full. When a host loses its power, what was not fsynced is gone, or some of it.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.processes import CURRENT, Killed, Process

_CHANGES = (
    *("open", "write", "writev", "pwrite", "fsync", "ftruncate", "link", "rename", "replace"),
    *("unlink", "mkdir", "rmdir"),
)
_NAMES = frozenset({"link", "rename", "replace", "unlink", "mkdir", "rmdir"})
_GROWS = frozenset({"write", "writev", "pwrite", "mkdir", "link"})
_UNHEARD = frozenset(
    {"link", "rename", "replace", "unlink", "mkdir", "rmdir", "fsync", "ftruncate", "close"}
)
"""Calls that may report an error after they were performed, as when a reply of NFS is lost."""
_STAMPED = frozenset({"open", "write", "writev", "pwrite", "ftruncate"})
_LOCK = fcntl.flock
_TURN = 0.01
"""Seconds after which a process that waits for a lock tries again."""
_REAL: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*_CHANGES, "close")}


class Disk:
    """The files below ``root``; each host has a directory there."""

    def __init__(
        self,
        root: Path,
        rng: Random,
        pause: Callable[[float], None],
        clock: Callable[[str], int] = lambda _: time.time_ns(),
    ) -> None:
        """``clock`` gives the time of a host, for its files, in ns since the epoch."""
        self.root = str(root)
        self.full = Counter[str]()
        """Hosts whose disk takes no more, with the number of reasons."""
        self.failing: defaultdict[str, list[float]] = defaultdict(list)
        """Hosts whose disk fails, with probabilities that a call does; the highest counts."""
        self.unheard: defaultdict[str, list[float]] = defaultdict(list)
        """Hosts whose disk does what it is told and reports an error, likewise."""
        self.linkless: dict[str, int] = {}
        """Hosts whose disk has no hard links, with the error of link."""
        self.slow: defaultdict[str, list[float]] = defaultdict(list)
        """Hosts whose disk is slow, with maximum delays of a call in seconds, which add up."""
        self.on_call: list[Callable[[Process, str, str], None]] = []
        """Called before each call of a process; they may kill it."""
        self._rng = rng
        self._pause = pause
        self._clock = clock
        self._owners: dict[int, tuple[Process, int]] = {}
        """The process that has opened each descriptor, and the inode."""
        self._content: dict[int, bytes] = {}
        self._names: dict[int, list[dict[str, int]]] = {}
        """The names in each directory: those that are synced, and those after each change."""
        self._kept: dict[int, int] = {}
        """A descriptor of each inode that is or may be there, so that no number is used twice."""
        self._many = 100

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions of ``os``."""
        for name in _CHANGES:
            monkeypatch.setattr(os, name, self._call(name, _REAL[name]))
        monkeypatch.setattr(os, "close", self._close)
        monkeypatch.setattr(fcntl, "flock", self._flock)

    def make(self, host: str) -> str:
        """The directory of a host."""
        path = os.path.join(self.root, host)
        if not os.path.isdir(path):
            _REAL["mkdir"](path)
            self._sync(path)
        return path

    def unlock_all(self, process: Process) -> None:
        """Release the locks of a process that has ended.

        Its files stay open until the life is over, so that no number of theirs is used twice.
        """
        for fd in self._open_files(lambda owner: owner is process):
            with contextlib.suppress(OSError):  # a file object was collected meanwhile
                fcntl.flock(fd, fcntl.LOCK_UN)

    def files_of(self, process: Process) -> list[str]:
        """The paths of the files that a process has not closed."""
        return [self._path(fd) for fd in self._open_files(lambda owner: owner is process)]

    def _open_files(self, chosen: Callable[[Process], bool]) -> list[int]:
        """The descriptors of some processes, but for those that a file object has closed."""
        found = []
        for fd, (owner, inode) in self._owners.items():
            with contextlib.suppress(OSError):
                if chosen(owner) and os.fstat(fd).st_ino == inode:
                    found.append(fd)
        return found

    def lose_power(self, host: str, rng: Random) -> None:
        """Forget what was not fsynced, or some of it.

        Changes of a directory last in their order, so a rename lasts or does not. Of what was
        written behind the synced bytes of a file a part may be there.
        """
        folder = os.path.join(self.root, host)
        some = rng.choice(
            (lambda count: 0, lambda count: count, lambda count: rng.randint(0, count))
        )
        left = self._left(folder, some)
        shutil.rmtree(folder)
        self._write(folder, left, {})

    def release(self) -> None:
        """Close what was kept open, so that no inode was used twice."""
        for fd in [*self._kept.values(), *self._open_files(lambda owner: True)]:
            _REAL["close"](fd)
        self._kept.clear()
        self._owners.clear()

    def _call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            process = CURRENT.get()
            if process is None:
                return real(*args, **options)
            path = self._path(args[0], options.get("dir_fd", options.get("src_dir_fd")))
            if not path.startswith(self.root):
                return real(*args, **options)
            is_open = name == "open"
            changes = not is_open or (args[1] & (os.O_CREAT | os.O_TRUNC))
            if not process.alive:
                raise Killed
            if changes:
                if slow := sum(self.slow[process.host]):
                    self._pause(slow * self._rng.random())
                    if not process.alive:
                        raise Killed
                for called in list(self.on_call):
                    called(process, name, path)
                    if not process.alive:
                        raise Killed
                self._fault(process, name, path)
            result = real(*args, **options)
            if changes and name in _STAMPED:
                self._stamp(path, result if is_open else args[0])
            if name == "fsync":
                self._sync_fd(args[0])
            if name in _NAMES or is_open:
                others = args[1:2] if name in ("link", "rename", "replace") else ()
                self._note(path, *(self._path(each, options.get("dst_dir_fd")) for each in others))
            if is_open:
                self._owners[result] = process, os.fstat(result).st_ino
            self._lose_reply(process, name, path)
            return result

        return call

    def _stamp(self, path: str, fd: int) -> None:
        """Give a file the time of the host that has it."""
        now = self._clock(self._host(path))
        os.utime(fd, ns=(now, now))

    def _host(self, path: str) -> str:
        """The host that has a file."""
        return os.path.relpath(path, self.root).partition("/")[0]

    def _fault(self, process: Process, name: str, path: str) -> None:
        if self.full[process.host] and (name in _GROWS or name == "open"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self._rng.random() < max(self.failing[process.host], default=0.0):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if name == "link" and (number := self.linkless.get(self._host(path))):
            raise OSError(number, os.strerror(number), path)

    def _lose_reply(self, process: Process, name: str, path: str) -> None:
        often = max(self.unheard[process.host], default=0.0)
        if often and name in _UNHEARD and self._rng.random() < often:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _close(self, fd: int) -> None:
        process = CURRENT.get()
        owner, _ = self._owners.get(fd, (None, 0))
        if process is not None and not process.alive and owner is process:
            raise Killed
        # close reports what could not be written, so not of a folder or a file that is only read
        is_written = owner is process and fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR)
        path = self._path(fd) if is_written else ""
        self._owners.pop(fd, None)
        _REAL["close"](fd)
        if process and path:
            self._lose_reply(process, "close", path)

    def _flock(self, fd: Any, how: int) -> None:
        """Let other threads run while it waits."""
        process = CURRENT.get()
        if process is None or how & (fcntl.LOCK_NB | fcntl.LOCK_UN):
            _LOCK(fd, how)
            return
        while True:
            try:
                _LOCK(fd, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._pause(_TURN)
            if not process.alive:
                raise Killed

    def _path(self, of: Any, folder: int | None = None) -> str:
        if isinstance(of, int):
            try:
                return os.readlink(f"/proc/self/fd/{of}")
            except OSError:
                return ""
        above = "" if folder is None else self._path(folder)
        return os.path.abspath(os.path.join(above, os.fsdecode(of)))

    def _sync_fd(self, fd: int) -> None:
        self._sync(self._path(fd), _REAL["open"](f"/proc/self/fd/{fd}", os.O_RDONLY))
        if len(self._kept) > self._many:
            self._forget()

    def _sync(self, path: str, fd: int = -1) -> None:
        """Note what is safe from now on."""
        if fd < 0:
            fd = _REAL["open"](path, os.O_RDONLY)
        inode = os.fstat(fd).st_ino
        if self._kept.setdefault(inode, fd) != fd:
            _REAL["close"](fd)
            fd = self._kept[inode]
        if os.path.isdir(path):
            self._names[inode] = [self._listed(path)]
        else:
            self._content[inode] = os.pread(fd, os.fstat(fd).st_size, 0)

    def _forget(self) -> None:
        """Let go of what can be in no directory any more."""
        there = {
            inode for each in self._names.values() for names in each for inode in names.values()
        }
        there |= {each.inode() for each in os.scandir(self.root)}
        for inode in self._kept.keys() - there:
            _REAL["close"](self._kept.pop(inode))
            self._names.pop(inode, None)
            self._content.pop(inode, None)
        self._many = 100 + 2 * len(self._kept)

    def _listed(self, path: str) -> dict[str, int]:
        entries = list(os.scandir(path))
        for each in entries:
            if each.inode() not in self._kept:
                self._kept[each.inode()] = _REAL["open"](each.path, os.O_RDONLY)
        return {each.name: each.inode() for each in entries}

    def _note(self, *paths: str) -> None:
        """Note the names after a change."""
        for folder in set(map(os.path.dirname, paths)):
            history = self._names.setdefault(os.stat(folder).st_ino, [{}])
            now = self._listed(folder)
            if now in history[-2:]:  # also a directory that came and went
                del history[history.index(now, -2) + 1 :]
            else:
                history.append(now)

    def _left(self, folder: str, some: Callable[[int], int]) -> dict[str, Any]:
        """The names that last, with the inode and bytes of files and the names in directories."""
        return self._lasting(os.stat(folder).st_ino, some)

    def _lasting(self, inode: int, some: Callable[[int], int]) -> dict[str, Any]:
        history = self._names.get(inode, [{}])
        left: dict[str, Any] = {}
        for name, each in history[some(len(history) - 1)].items():
            if each in self._names or os.path.isdir(f"/proc/self/fd/{self._kept[each]}"):
                left[name] = self._lasting(each, some)
            else:
                changed = os.fstat(self._kept[each]).st_mtime_ns
                left[name] = (each, self._bytes(each, some), changed)
        return left

    def _bytes(self, inode: int, some: Callable[[int], int]) -> bytes:
        safe, fd = self._content.get(inode, b""), self._kept[inode]
        now = os.pread(fd, os.fstat(fd).st_size, 0)
        if not now.startswith(safe):  # it was cut, or written over
            return safe
        return now[: len(safe) + some(len(now) - len(safe))]

    def _write(self, folder: str, left: dict[str, Any], known: dict[int, str]) -> None:
        _REAL["mkdir"](folder)
        for name, each in left.items():
            path = os.path.join(folder, name)
            if isinstance(each, dict):
                self._write(path, each, known)
                continue
            inode, content, changed = each
            if inode in known:
                _REAL["link"](known[inode], path)
                continue
            known[inode] = path
            with open(path, "wb") as file:
                file.write(content)
            os.utime(path, ns=(changed, changed))
            self._sync(path)
        self._sync(folder)
