"""Another process that writes to the same files, which may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nsqtools.sinks.deadletters import ToDirectory
from nsqtools.sinks.files.locks import Lock
from tests.support.archiving import batch
from tests.support.forkserver import ROOT, Forked

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def neighbour(what: str, *args: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does one of the functions below, by its name; at the end it is killed."""
    pipe = subprocess.PIPE
    env = dict(os.environ)
    asked = ("tests.support.neighbour", what, *map(str, args))
    with Forked(*asked, env=env, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def holding(path: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the file locked, as one that writes to it."""
    with neighbour("hold", path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        yield process


def hold(path: str) -> None:
    print(Lock(path).acquire(), flush=True)
    sys.stdin.read()


def letters(folder: str, name: str, count: str) -> None:
    """Dead letters, three at a time; a line for each time tells that they are safe."""

    async def write() -> None:
        letters = ToDirectory(folder)
        await letters.open()
        for number in range(int(count)):
            bodies = (f"{name}-{number}-{part} {'x' * 3000}".encode() for part in range(3))
            given = batch(*bodies)
            await letters.write(given, given, "no reason")
            print(number, flush=True)
        await letters.close()

    asyncio.run(write())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
