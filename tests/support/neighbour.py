"""Another process that writes to the same files, which may be killed at any moment."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqtools.sinks.deadletters import ToDirectory
from nsqtools.sinks.files.locks import Lock
from nsqtools.sinks.files.topicarchive import Arrival
from tests.support.archiving import START, batch, make_rules
from tests.support.forkserver import ROOT, Forked
from tests.support.sinking import make_archives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsqtools.sinks.files.rules import Rules
    from nsqtools.sinks.files.topicarchive import Fate
    from nsqtools.sinks.files.workfile import Part


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


FILE_CALLS = (
    *("open", "write", "writev", "fsync", "ftruncate", "link", "rename", "unlink", "mkdir"),
    "rmdir",
)


def archive(folder: str, filename_format: str, last: str, links: str) -> None:
    """An archive of six messages that is killed before its file call of this number.

    A line for each message tells that it is safe. Without ``links`` it cannot make hard links.
    """
    calls, write = itertools.count(1), os.write

    def fatal(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            if next(calls) == int(last):
                os._exit(9)
            return call(*args, **more)

        return counted

    def synced(parts: list[Part]) -> None:
        for _, messages in parts:
            write(1, b"".join(message.body + b"\n" for message in messages))

    link = os.link

    def refused(source: str, target: str) -> None:
        if source.endswith(".part"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        link(source, target)

    if links != "True":
        os.link = refused  # type: ignore[assignment]
    for name in FILE_CALLS:
        setattr(os, name, fatal(getattr(os, name)))
    archives = make_archives(rules_of_archive(folder, filename_format))
    archives.lock("events")
    archives.open()
    made = archives.topic("events", synced, now=0.0)
    for number in range(6):
        fate: Fate = "reopen" if number % 2 else ""
        made.step([Arrival(START, batch(b"%d" % number))], now=0.0, wall=START, fate=fate)
    made.step((), now=0.0, wall=START, fate="close")
    made.release()
    archives.close()
    archives.unlock()


def rules_of_archive(folder: str | Path, filename_format: str) -> Rules:
    """Those of ``archive``: with a manifest and, where names are used once, uploads."""
    upload = str(Path(folder, "remote")) if "<REV>" in filename_format else ""
    options: dict[str, Any] = {
        "filename_format": filename_format,
        "manifest": True,
        "upload": upload,
    }
    return make_rules(Path(folder), work_dir=str(Path(folder, "work")), **options)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
