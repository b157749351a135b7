"""The command line on a terminal that asks something."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.eventually import eventually

if TYPE_CHECKING:
    import subprocess

    from tests.support.process import Cli

PATIENCE = 120.0


class Terminal:
    """A run of nsqtools whose streams are all a terminal; a context manager.

    ``output`` is what was shown so far.
    """

    def __init__(self, cli: Cli, *args: str) -> None:
        self.output = ""
        self._cli = cli
        self._args = args

    def __enter__(self) -> Self:
        self._fd, theirs = os.openpty()
        self.process: subprocess.Popen[bytes] = self._cli.start(
            *self._args, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
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

    def interrupt(self) -> None:
        """SIGINT while the process waits for input: just before that, read(2) would miss it."""
        eventually(lambda: ") S " in Path(f"/proc/{self.process.pid}/stat").read_text())
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """The exit code, once it has ended."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Whether more was shown, as opposed to the end of the process."""
        deadline = time.monotonic() + PATIENCE
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more than {self.output!r}"
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # how a terminal ends whose other side is closed
            return False
        self.output += data.decode()
        return bool(data)
