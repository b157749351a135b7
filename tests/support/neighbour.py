"""Another process that works on the same files, and is killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nsqtools.sinks.files.locks import Lock
from tests.support.forkserver import ROOT, Forked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHANGES = (
    *("open", "write", "writev", "fsync", "ftruncate", "link", "rename", "unlink", "mkdir"),
    "rmdir",
)


@contextmanager
def holding(path: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the file locked, as one that writes to it; at the end it is killed."""
    pipe = subprocess.PIPE
    asked = (__name__, str(path))
    with Forked(*asked, env=dict(os.environ), cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout
        assert process.stdout.readline() == b"True\n"
        try:
            yield process
        finally:
            process.kill()


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


if __name__ == "__main__":
    print(Lock(sys.argv[1]).acquire(), flush=True)
    sys.stdin.read()
