"""Another process that works on the same files, and is killed."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Event
from typing import Any

from nsqtools.sinks.files.locks import Lock

_CHANGES = (
    *("open", "write", "writev", "fsync", "ftruncate", "link", "rename", "unlink", "mkdir"),
    "rmdir",
)


@contextmanager
def holding(path: object) -> Iterator[ForkProcess]:
    """A process that has the file locked, as one that writes to it; at the end it is killed."""
    forking = multiprocessing.get_context("fork")
    is_held = forking.Event()
    process = forking.Process(target=_hold, args=(str(path), is_held))
    process.start()
    assert is_held.wait(60)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _hold(path: str, is_held: Event) -> None:
    if Lock(path).acquire():
        is_held.set()
    signal.pause()


def killed(work: Callable[[], object], at: int) -> bool:
    """Do work in a process that is killed at this change of the disk; whether it got there.

    The first half of a write is done.
    """
    pid = os.fork()
    if not pid:
        try:
            _kill_at(at)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _kill_at(at: int) -> None:
    changes, write = itertools.count(), os.write

    def fatal(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if (name != "open" or args[1] & os.O_CREAT) and next(changes) == at:
                if name == "write":
                    write(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in _CHANGES:
        setattr(os, name, fatal(name, getattr(os, name)))
