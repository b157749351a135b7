"""The command line as its users run it: a process of its own."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tests.support.forkserver import LOCALE, PICKY, Forked, can_fork

Called = Callable[..., tuple[int, str, str]]
"""A command line in this process: its arguments to exit code, stdout and stderr."""

_PERSONAL = re.compile(r"_?NSQTOOLS_.*|(?i:\w+_proxy)|NO_COLOR|FORCE_COLOR|COLUMNS|LINES")

COMMAND = (sys.executable, "-m", "nsqtools")
PATIENCE = 120.0

# A process of its own between the test and the command: what a child inherits of its parent's
# peak is then small.
_MEASURE = """
import pathlib, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1]).write_text(str(peak))
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Result:
    """How a process ended."""

    code: int
    stdout: bytes
    stderr: str
    peak: int = 0
    """Most KiB of memory it had, if that was measured."""


class Cli:
    """Runs nsqtools in ``folder``, with no configuration file and no ``NSQTOOLS_*`` variables.

    It is forked from a process that has it loaded, where nothing of how it starts is asked for.
    ``program`` is how to start another installation of it.
    """

    def __init__(self, folder: Path, *program: str) -> None:
        self._folder, self._program = folder, program
        self._started: list[subprocess.Popen[bytes]] = []
        self._prefix: tuple[str, ...] = ()

    def __call__(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 200.0,
    ) -> Result:
        """Run to the end; a process that takes longer than ``timeout`` fails the test."""
        pipe = subprocess.PIPE
        process = self.start(*args, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            _end_group(process)
            stdout, stderr = process.communicate()
            raise AssertionError(
                f"{args} still ran after {timeout:g} s\n{stdout!r}\n{stderr.decode()}"
            ) from None
        return Result(process.returncode, stdout, stderr.decode())

    def measured(self, *args: str, **options: Any) -> Result:
        """As a call, with the peak of memory."""
        file = self._folder / "peak"
        self._prefix = (sys.executable, "-c", _MEASURE, str(file))
        try:
            return replace(self(*args, **options), peak=int(file.read_text()))
        finally:
            self._prefix = ()

    def start(
        self, *args: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start without waiting; ``options`` are Popen's, and without them all streams are null.

        The process leads a group of its own, which is killed when the test ends.
        """
        null = subprocess.DEVNULL
        options = {"stdin": null, "stdout": null, "stderr": null, "cwd": self._folder, **options}
        environment = self._environment(env or {})
        process: subprocess.Popen[bytes]
        if not (self._prefix or self._program) and can_fork(environment, options):
            process = Forked("nsqtools", *args, env=environment, **options)
        else:
            command = [*self._prefix, *(self._program or COMMAND), *args]
            process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kill what still runs, with its children, and close its pipes."""
        for process in self._started:
            _end_group(process)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        config, state = (str(self._folder / f"no-{name}") for name in ("config", "state"))
        return {**neutral(), "XDG_CONFIG_HOME": config, "XDG_STATE_HOME": state, **extra}


class Terminal:
    """A run of nsqtools whose streams are all a terminal; a context manager.

    ``output`` is what was shown so far.
    """

    def __init__(self, cli: Cli, *args: str) -> None:
        self.output = ""
        self._fd, theirs = os.openpty()
        self.process = cli.start(*args, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def until(self, text: str) -> str:
        """Everything shown, once the text is among it."""
        while text not in self.output:
            assert self._read(), f"{text!r} was not shown: {self.output!r}"
        return self.output

    def type(self, line: str) -> None:
        """A line, with Enter."""
        os.write(self._fd, f"{line}\n".encode())

    def end(self) -> int:
        """The exit code, once it has ended."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Whether more was shown, as opposed to the end of the process."""
        ready, _, _ = select.select([self._fd], [], [], PATIENCE)
        assert ready, f"nothing more than {self.output!r}"
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # how a terminal ends whose other side is closed
            return False
        self.output += data.decode()
        return bool(data)


def neutral() -> dict[str, str]:
    """The environment of the tests without what would change what nsqtools does or says."""
    own = {n: os.environ[n] for n in os.environ if not _PERSONAL.fullmatch(n) and n not in PICKY}
    return {**own, **LOCALE}


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
