"""A LocalStore whose power fails: what was not fsynced is gone, or some of it."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nsqtools.sinks.files import disk
from nsqtools.stores import mounted
from tests.support.ledgers import Stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

_STEPS = frozenset({"open", "fsync", "link", "rename", "unlink", "mkdir", "rmdir", "makedirs"})


class Disk:
    """Files below ``folder`` as the store changes them, and as they are on the disk itself.

    Each call that changes something is a step; at ``stop_at`` the process is killed instead, once.
    A file has its content for good after its fsync, a directory its names.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.stop_at = -1
        folder.mkdir()
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._kept: list[int] = []  # open files, so that no inode is used twice
        self._fsync(os.open(folder, os.O_RDONLY))
        changes = {name: self._step(getattr(os, name)) for name in _STEPS}
        for module in (mounted, disk):
            monkeypatch.setattr(module, "os", SimpleNamespace(**vars(os) | changes))
        monkeypatch.setattr(mounted, "shutil", SimpleNamespace(rmtree=self._remove))

    def _remove(self, folder: str) -> None:
        for each, folders, files in os.walk(folder, topdown=False):
            for name in files:
                self._step(os.unlink)(os.path.join(each, name))
            for name in folders:
                self._step(os.rmdir)(os.path.join(each, name))
        self._step(os.rmdir)(folder)

    def _step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self.stop_at -= 1
            if self.stop_at == -1:
                raise Stop
            if call is os.fsync:
                return self._fsync(os.dup(args[0]))
            return call(*args, **options)

        return step

    def _fsync(self, fd: int) -> None:
        self._kept.append(fd)
        inode = os.fstat(fd).st_ino
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            self._names[inode] = {each.name: each.inode() for each in os.scandir(path)}
            for each in os.scandir(path):
                self._kept.append(os.open(each.path, os.O_RDONLY))
        else:
            self._content[inode] = os.pread(fd, os.fstat(fd).st_size, 0)

    def fail(self, keeps: Callable[[], bool]) -> None:
        """The power fails; ``keeps`` tells of each name that was changed whether that lasts."""
        self.stop_at = -1
        left = self._left(self.folder, keeps)
        shutil.rmtree(self.folder)
        self._write(self.folder, left)
        self._names.clear()
        self._content.clear()
        for folder, _, files in os.walk(self.folder):
            for name in [".", *files]:
                self._fsync(os.open(os.path.join(folder, name), os.O_RDONLY))

    def _left(self, folder: Path, keeps: Callable[[], bool]) -> dict[str, Any]:
        """The names in a directory, with the bytes of files and the names in directories."""
        now = {each.name: each.inode() for each in os.scandir(folder)}
        before = self._names.get(folder.stat().st_ino, {})
        left: dict[str, Any] = {}
        for name in sorted(now.keys() | before.keys()):
            inode = (
                now.get(name) if now.get(name) == before.get(name) or keeps() else before.get(name)
            )
            if inode is None:
                continue
            if now.get(name) == inode and (folder / name).is_dir():
                left[name] = self._left(folder / name, keeps)
            elif inode in self._names:
                left[name] = self._gone(inode)
            else:
                left[name] = self._content.get(inode, b"")
        return left

    def _gone(self, inode: int) -> dict[str, Any]:
        """What was in a directory that was removed, when it was synced."""
        return {
            name: self._gone(each) if each in self._names else self._content.get(each, b"")
            for name, each in self._names[inode].items()
        }

    def close(self) -> None:
        shutil.rmtree(self.folder)
        for fd in self._kept:
            os.close(fd)

    def _write(self, folder: Path, left: dict[str, Any]) -> None:
        folder.mkdir()
        for name, each in left.items():
            if isinstance(each, dict):
                self._write(folder / name, each)
            else:
                (folder / name).write_bytes(each)
