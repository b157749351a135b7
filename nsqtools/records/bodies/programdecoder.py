"""``--decode cmd:PROGRAM``: a program of the user decodes all bodies.

The program reads a line of base64 for each body, and writes a line of JSON for it, in the same
order; an empty line means that the body does not decode. It must flush each line, or at least
whenever it waits for input. Python flushes none by itself if it prints to a pipe, and each with the
variable PYTHONUNBUFFERED, which is set for the program.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
from base64 import b64encode
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from nsqtools.errors import ConfigError, NSQError, RecordError
from nsqtools.records.bodies.bodydecoder import MAX_BODY, BodyDecoder, max_text
from nsqtools.records.bodies.objects import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_SILENCE = 30.0
"""Seconds without a line read or a byte written after which the program counts as hung."""
_LEAVE = 1.0
"""Seconds for the program to end after its input has ended."""
_MOST_ENDS = 3
"""Consecutive ends of the program without a line: a body may crash it, but not each body."""
_CHUNK = 1 << 18
_TOO_MANY = "the program writes more lines than it reads"


class ProgramDecoder(BodyDecoder):
    """Decodes by one process, started for the first body.

    If the process ends early, the body that it should answer next counts as not decoded, and
    another process gets the bodies after it. Raises ConfigError if the program is not found.
    """

    def __init__(self, spec: str, command: str) -> None:
        super().__init__(spec)
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--decode {spec}: {error}") from None
        if not self._words or not shutil.which(self._words[0]):
            raise ConfigError(f"--decode {spec}: no such program: give its path")
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = 0
        """Consecutive ends of the process without a line."""
        self._is_closed = False
        self._lock = threading.Lock()

    def decode_all(self, bodies: Sequence[bytes]) -> list[bytes | None]:
        """Return the JSON text of each body, or None if the body does not decode.

        Raises NSQError if the program hangs, ends again and again, or writes too many lines.
        """
        with self._lock:
            asked = [at for at, body in enumerate(bodies) if len(body) <= MAX_BODY]
            found: list[bytes | None] = [None] * len(bodies)
            done = 0
            while done < len(asked):
                rest = [bodies[at] for at in asked[done:]]
                lines = self._answers(rest)
                for at, line in zip(asked[done:], lines, strict=False):
                    found[at] = _checked(line, bodies[at])
                done += len(lines)
                if lines:
                    self._ends = 0
                if len(lines) < len(rest):  # the process has ended
                    self._end()
                    done += 1
            self.undecoded += found.count(None)
            return found

    def close(self) -> None:
        """End the program, and log how many bodies did not decode."""
        self._is_closed = True
        if not self._lock.acquire(blocking=False):  # a thread waits for lines
            if process := self._process:
                _kill(process)
            self._lock.acquire()
        try:
            if self._process:
                self._leave(self._process)
                self._process = None
        finally:
            self._lock.release()
        super().close()

    def _answers(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Return the lines for the first bodies: all, unless the process has ended."""
        if self._process:
            self._check_silence(self._process)
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        unsent = memoryview(b"".join([b64encode(body) + b"\n" for body in bodies]))
        answers = _AnswerLines([max_text(body) for body in bodies])
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            heard = monotonic()
            while answers.wanted:
                ready = selector.select(1.0)
                for key, _ in ready:
                    if key.fileobj is process.stdout:
                        if not (chunk := os.read(key.fd, _CHUNK)):
                            return answers.found
                        if answers.add(chunk):
                            heard = monotonic()
                        continue
                    heard = monotonic()
                    try:
                        unsent = unsent[os.write(key.fd, unsent[:_CHUNK]) :]
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        unsent = unsent[:0]
                    if not unsent:
                        selector.unregister(process.stdin)
                if (not ready and self._is_closed) or monotonic() - heard > _SILENCE:
                    self._fail(
                        f"no line within {_SILENCE:g}s: the program must flush its output after"
                        " each line, as 'stdbuf -oL PROGRAM' makes many do"
                    )
        if answers.rest or unsent:
            self._fail(_TOO_MANY)
        return answers.found

    def _check_silence(self, process: subprocess.Popen[bytes]) -> None:
        """Fail if the process has written something unasked: it would shift all later lines."""
        assert process.stdout
        with suppress(BlockingIOError):
            if os.read(process.stdout.fileno(), 1):
                self._fail(_TOO_MANY)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise NSQError(f"--decode {self.spec}: ended")
        try:
            self._process = process = subprocess.Popen(  # noqa: S603 - the user's own program
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a Ctrl-C is for this process, which ends the program
            )
        except OSError as error:
            raise NSQError(f"--decode {self.spec}: {error.strerror}") from error
        assert process.stdin
        assert process.stdout
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def _end(self) -> None:
        """Release the process that has ended; raises NSQError if too many have."""
        assert self._process
        status = self._leave(self._process)
        self._process = None
        self._ends += 1
        if self._is_closed or self._ends >= _MOST_ENDS:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            raise NSQError(f"--decode {self.spec}: the program ended {how} without a line")

    def _leave(self, process: subprocess.Popen[bytes]) -> int:
        """End the input of a process, and kill the process if it stays; returns its status."""
        assert process.stdin
        assert process.stdout
        with suppress(OSError):
            process.stdin.close()
        try:
            return process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            _kill(process)
            return process.wait()
        finally:
            process.stdout.close()

    def _fail(self, reason: str) -> NoReturn:
        """End the process: nobody knows which bodies its next lines are for."""
        assert self._process
        _kill(self._process)
        self._leave(self._process)
        self._process = None
        raise NSQError(f"--decode {self.spec}: {reason}")


class _AnswerLines:
    """Lines of a stream of bytes, as many as there are maximum lengths; a longer line is empty."""

    def __init__(self, most: Sequence[int]) -> None:
        self.found: list[bytes] = []
        self.rest = b""
        self._most = most
        self._is_long = False

    @property
    def wanted(self) -> bool:
        """Whether further lines are wanted."""
        return len(self.found) < len(self._most)

    def add(self, chunk: bytes) -> bool:
        """Take bytes; return whether they end a line."""
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for number, line in enumerate(lines):
            if not self.wanted:
                self.rest = b"\n".join([*lines[number:], self.rest])
                return True
            is_long = self._is_long or len(line) > self._most[len(self.found)]
            self.found.append(b"" if is_long else line)
            self._is_long = False
        if self.wanted and len(self.rest) > self._most[len(self.found)]:
            self.rest, self._is_long = b"", True
        return bool(lines)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it has started."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _checked(line: bytes, body: bytes) -> bytes | None:
    """Return a line if it is JSON."""
    line = line.strip()
    if not line or len(line) > max_text(body):
        return None
    try:
        text_of(line)
    except RecordError:
        return None
    return line
