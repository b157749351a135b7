"""A process that has nsqtools loaded, and forks it: in a tenth of the time that a start takes.

``Forked`` is what tests use. The server ends when the process that started it does.
"""

import atexit
import contextlib
import functools
import gc
import json
import logging
import os
import pkgutil
import runpy
import select
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support import forkclient
from tests.support.forkclient import ask, ended

ROOT = Path(__file__).parents[2]
NOT_LOADED = ("nsqtools.__main__", "nsqtools.spark", "nsqtools.sandbox.pytest")
LOCALE = {"LC_ALL": "C.UTF-8"}
"""What a forked process has begun with."""
PICKY = ("PYTHONWARNINGS", "PYTHONDEVMODE")
"""Variables that make an interpreter say more than its user would see."""
AT_START = ("PYTHON", "LC_", "LANG", "MALLOC_")
"""How variables begin that a process reads while it starts, and never again."""


def can_fork(environment: dict[str, str], options: dict[str, Any]) -> bool:
    """Whether a fork is as good as a start, with these of Popen's options."""
    known = {"stdin", "stdout", "stderr", "cwd"}
    given = {**os.environ, **LOCALE}
    changed = {name for name in environment if environment[name] != given.get(name)}
    return known >= set(options) and not any(name.startswith(AT_START) for name in changed)


class Forked(subprocess.Popen[bytes]):
    """As Popen of ``python -m MODULE ARGS`` with a session of its own."""

    def __init__(self, module: str, *args: str, env: dict[str, str], **options: Any) -> None:
        self._module, self._environment = module, env
        super().__init__([module, *args], **options)

    # Popen makes the pipes, waits and communicates; it starts and reaps a child by these three.
    def _execute_child(self, args: Any, *rest: Any) -> None:
        cwd, pipes = rest[4], rest[9:15]
        stdin, stdout, stderr = pipes[0], pipes[3], pipes[5]
        command = (self._module, args[1:], str(cwd or os.getcwd()), self._environment)
        streams = [own if fd == -1 else fd for own, fd in enumerate((stdin, stdout, stderr))]
        try:
            self.pid, self._told = ask(fork_server(), command, streams)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        os.set_blocking(self._told, not wait_flags & os.WNOHANG)
        try:
            return self.pid, ended(self._told)
        except BlockingIOError:
            return 0, 0

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and (found := self._try_wait(os.WNOHANG))[0]:
            self._handle_exitstatus(found[1])  # type: ignore[attr-defined]
        return self.returncode


@functools.cache
def fork_server() -> str:
    """Where the process listens that forks; it is started when it is first asked for."""
    folder = tempfile.mkdtemp(prefix="nsqtools-tests-")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address := f"{folder}/fork")
        listener.listen(100)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forkserver", str(listener.fileno())],
            stdin=subprocess.PIPE,  # whose end is its end
            pass_fds=[listener.fileno()],
            cwd=ROOT,
            env={**{n: os.environ[n] for n in os.environ if n not in PICKY}, **LOCALE},
            start_new_session=True,  # Ctrl-C ends the tests, and they end this
        )
    atexit.register(process.communicate)
    atexit.register(shutil.rmtree, folder)
    return address


def words() -> str:
    """What does as nsqtools at the start of a shell's line."""
    return shlex.join([sys.executable, "-IS", forkclient.__file__, fork_server()])


def _load() -> None:
    """Import all that a command may, since each would import it anew."""
    import nsqtools

    for found in pkgutil.walk_packages(nsqtools.__path__, "nsqtools."):
        if not found.name.startswith(NOT_LOADED):
            import_module(found.name)
    for name in ("tests.support.sandboxed", "httpx", "rich.live", "rich.table", "ssl"):
        import_module(name)
    gc.collect()
    gc.freeze()


def _serve(listener: socket.socket) -> str:
    """Fork at each request; return, in the child, the module that it is to run."""
    children: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([0, listener.fileno(), *children], [], [])[0]:
            if ready == 0:
                os._exit(0)
            if ready in children:
                pid, told = children.pop(ready)
                with contextlib.suppress(BrokenPipeError):  # who asked was killed
                    os.write(told, struct.pack("i", os.waitpid(pid, 0)[1]))
                os.close(told)
                os.close(ready)
                continue
            with listener.accept()[0] as asking:
                header, fds, _, _ = socket.recv_fds(asking, 4, 4)
                request = asking.recv(struct.unpack("I", header)[0], socket.MSG_WAITALL)
            pid = os.fork()
            if not pid:
                return _become(fds[:3], *json.loads(request))
            *streams, told = fds
            for fd in streams:
                os.close(fd)
            children[os.pidfd_open(pid)] = pid, told
            os.write(told, struct.pack("i", pid))


def _become(
    fds: list[int], module: str, args: list[str], folder: str, environment: dict[str, str]
) -> str:
    """Make this process what a start with these streams, variables and folder would be."""
    os.setsid()
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv[1:] = args
    sys.orig_argv[1:] = ["-m", module, *args]
    return module


def _leave(code: int) -> None:
    """End at once: to take all modules apart takes longer than most commands do."""
    if threading.active_count() == 1:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _load()
    chosen = _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy.run_module(chosen, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if isinstance(left.code, int | None):
            with contextlib.suppress(OSError):  # the interpreter says and does what is right then
                _leave(left.code or 0)
        raise
