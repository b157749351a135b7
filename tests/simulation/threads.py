"""Threads, locks and shell commands of the product, on the virtual clock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.support.processes import CURRENT, Baton, Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World


def threading_of(baton: Baton) -> SimpleNamespace:
    """What the product uses of ``threading``."""
    # size: classes as the product calls them, which share the baton

    class Lock:
        """Also stands for an RLock."""

        def __init__(self) -> None:
            self._owner, self._depth = 0, 0

        def acquire(self) -> bool:
            me = threading.get_ident()
            baton.wait(lambda: self._owner in (0, me))
            self._owner = me
            self._depth += 1
            return True

        def release(self) -> None:
            self._depth -= 1
            if not self._depth:
                self._owner = 0
                baton.wake()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Condition(Lock):
        def __init__(self) -> None:
            super().__init__()
            self._notified = 0

        def wait(self, timeout: float | None = None) -> None:
            before = self._notified
            self.release()
            baton.wait(lambda: self._notified > before, timeout)
            self.acquire()

        def notify(self) -> None:
            self._notified += 1
            baton.wake()

        notify_all = notify

    class Thread:
        def __init__(self, target: Callable[[], object], **_: object) -> None:
            self._target = target
            self._done = False

        def start(self) -> None:
            process = CURRENT.get()
            assert process

            def work() -> None:
                try:
                    self._target()
                finally:
                    self._done = True
                    baton.wake()

            baton.call_later(0, lambda: baton.start(process, work))

        def join(self, timeout: float | None = None) -> None:
            baton.wait(lambda: self._done, timeout)

        def is_alive(self) -> bool:
            return not self._done

    return SimpleNamespace(Lock=Lock, Condition=Condition, Thread=Thread)


class SimulatedHook:
    """A shell command of --on-rotate: ``archive SECONDS DIRECTORY FILE`` is the only one.

    It copies the file there and, some seconds later, removes it, as ``cp FILE DIRECTORY && sleep 2
    && rm FILE`` would. It goes on when the command that has started it was killed; the next one may
    run it again. So the name of the copy has a checksum: that of the same content is the same.
    """

    pid = 1

    def __init__(self, world: World, words: list[str]) -> None:
        self._world = world
        _, seconds, folder, path = words
        self._code: int | None = None
        self._path = path
        name = os.path.basename(path)
        try:
            target = self.copy_of(path, folder)
            with open(path, "rb") as source:
                content = source.read()
        except OSError:
            self._code = 1
            return
        world.log(f"hook: copies {name}, {len(content)} bytes")
        with open(target, "wb") as copy:
            copy.write(content)
        world.loop.outside(float(seconds), self._finish)

    @staticmethod
    def copy_of(path: str, folder: str) -> str:
        """Where it copies a file to: the name tells the directory, the name and the content."""
        with open(path, "rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()[:16]
        place = os.path.basename(os.path.dirname(path))
        return f"{folder}/{place}_{os.path.basename(path)}.{digest}" if folder else ""

    def _finish(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._world.log(f"hook: has removed {os.path.basename(self._path)}")
        self._code = 0
        self._world.loop.baton.wake()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises TimeoutExpired."""
        if not self._world.loop.baton.wait(lambda: self._code is not None, timeout):
            raise subprocess.TimeoutExpired("archive", timeout or 0.0)
        assert self._code is not None
        return self._code

    @classmethod
    def module(cls, world: World) -> SimpleNamespace:
        """What the product uses of ``subprocess``."""

        def popen(command: str, **_: object) -> SimulatedHook:
            process = CURRENT.get()
            if process is None or not process.alive:
                raise Killed
            return cls(world, command.split())

        return SimpleNamespace(
            Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
        )
