"""``--where`` and ``--set``: jq programs, run by the package jq, which contains libjq.

As a program of its own, this module tells which JSON texts fulfil a condition.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.bodies.objects import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

# The line break ends a comment, and first() makes one value of many.
_WHERE = "first(({}\n), null) | if . then true else false end"
_MOST_ERROR = 200
_MAX_PROGRAM = 10_000
_MOST_SECONDS = 2
_MAX_CPU = 5.0
"""Maximum seconds of CPU time for one text."""
_MEMORY = 512 << 20


class Condition:
    """``--where``: whether the first value of a program is neither false nor null.

    Without a value the condition is false. Raises ConfigError for an invalid program.
    """

    def __init__(self, program: str) -> None:
        self._run = _compiled("--where", program, _WHERE)
        self.failed = 0
        """The number of bodies that are not JSON, or for which the program failed."""
        self._error = ""
        """The first failure."""

    def chooses(self, body: bytes) -> bool:
        """Whether a body fulfils the condition; one for which it fails does not, and is counted."""
        try:
            return self.holds(text_of(body))
        except RecordError as error:
            self.failed += 1
            self._error = self._error or str(error)
            return False

    def holds(self, text: str) -> bool:
        """Whether a JSON text fulfils the condition; raises RecordError if the program fails."""
        values = _values(self._run, "--where", text)
        if not values:
            raise RecordError("--where: the program halted without a value")
        return bool(values[0])

    def log_failures(self) -> None:
        """Log how many bodies were not chosen because of a failure."""
        if self.failed:
            number = "1 message" if self.failed == 1 else f"{self.failed:,} messages"
            log.warning("not chosen, because --where fails: %s: %s", number, self._error)


async def fulfilling(program: str, texts: Sequence[str]) -> list[int]:
    """Return the positions of the texts that fulfil a condition, in a process of its own.

    So a program of somebody else can neither block this process nor see its environment. A text
    for which the program fails does not fulfil it. Raises ConfigError for an invalid program, or
    one that takes more than 2 seconds of CPU time or 512 MiB.
    """
    if len(program) > _MAX_PROGRAM or "\0" in program:  # the system refuses such an argument
        raise ConfigError(f"--where: expected at most {_MAX_PROGRAM} characters, without NUL")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, program),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        answer, _ = await process.communicate(json.dumps(texts).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not answer:
        most = f"{_MOST_SECONDS} s of CPU time and {_MEMORY >> 20} MiB"
        raise ConfigError(f"--where {program!r}: no result within {most}")
    found = json.loads(answer)
    if isinstance(found, str):
        raise ConfigError(found)
    return list(found)


def _answer() -> None:
    """Read a list of texts; print the list of positions, or an error.

    Beyond ``_MEMORY`` or ``_MOST_SECONDS`` the process ends: a program can ask for any amount.
    """
    for limit, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CPU, _MOST_SECONDS)):
        with suppress(ValueError):  # the limit is already lower
            resource.setrlimit(limit, (most, most))
    try:
        condition = Condition(sys.argv[1])
    except ConfigError as error:
        print(json.dumps(str(error)))
        return
    texts = enumerate(json.load(sys.stdin))
    print(json.dumps([position for position, text in texts if condition.chooses(text.encode())]))


def edit(programs: Sequence[str]) -> Callable[[str], bytes | None]:
    """Return a function that applies programs to a JSON text, one after another.

    It returns None if they produce no value. Numbers that they do not change remain exact, whatever
    their size. Raises ConfigError for an invalid program; the function raises RecordError if a
    program fails or produces several values.
    """
    for program in programs:
        _compiled("--set", program, "{}\n")
    run = _compiled("--set", " | ".join(f"({program}\n)" for program in programs), "{}| tojson")

    def edited(text: str) -> bytes | None:
        values = _values(run, "--set", text)
        if len(values) > 1:
            raise RecordError(
                f"--set: the programs produced {len(values)} values, expected at most one"
            )
        return values[0].encode() if values else None

    return edited


def _compiled(flag: str, program: str, frame: str) -> Any:
    try:
        import jq  # type: ignore[import-not-found]
    except ImportError as error:
        install = f"{sys.executable} -m pip install 'nsqtools[jq]'"
        raise ConfigError(f"{flag} needs the package jq: run {install}") from error
    try:
        jq.compile(program)  # compiled alone first, as it could close the bracket of the frame
        return jq.compile(frame.format(program))
    except ValueError as error:
        raise ConfigError(f"{flag} {program!r}: {_reason(error)}") from None


def _values(run: Any, flag: str, text: str) -> list[Any]:
    """Return the values of a program for a text; raises RecordError if the program fails.

    While jq runs, no other thread runs, and Python handles no signal. So an endless program is
    ended by the system: the signal of this timer kills the process, before the text counts as
    handled.
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_CPU)
    try:
        values: list[Any] = run.input_text(text).all()
    except ValueError as error:
        raise RecordError(f"{flag}: {_reason(error)}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return values


def _reason(error: ValueError) -> str:
    """Return the first line of jq's message, without the excerpt below it."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line.removeprefix("jq: error: ").rstrip(" :,")[:_MOST_ERROR]


if __name__ == "__main__":
    _answer()
