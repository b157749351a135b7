"""A FileSink on the real disk, in virtual time or with its threads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsqtools.sinks.files.filesink import FileSink
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.store import Archives
from nsqtools.sinks.threads import Threads
from tests.support.archiving import Settled, batch, below, make_rules, plain
from tests.support.clock import elapse

SOON = 0.001


class InLoop(Threads):
    """Is worked on in the event loop, after so many virtual seconds."""

    slow = 0.0

    def __init__(self) -> None:
        super().__init__(1, "unused")

    def start(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        async def slowly() -> Any:
            await elapse(self.slow)
            return work(*args)

        return asyncio.ensure_future(slowly())


class Sinking:
    """A sink that is open and has joined its topics, and what becomes of its messages."""

    def __init__(self, sink: FileSink, rules: Rules) -> None:
        self.sink = sink
        self.rules = rules
        self.settled = Settled()
        self.is_closed = False

    async def handle(self, *bodies: bytes, **more: Any) -> None:
        await self.sink.handle(batch(*bodies, settled=self.settled, **more))

    async def close(self) -> None:
        self.is_closed = True
        await self.sink.close()

    @property
    def finished(self) -> list[bytes]:
        return self.settled.finished

    def names(self) -> list[str]:
        """Of all files below the output directory but locks."""
        return [name for name in below(self.rules.output_dir) if not name.endswith(".lock")]

    def locks(self) -> list[str]:
        return [name for name in below(self.rules.output_dir) if name.endswith(".lock")]

    def completed(self) -> dict[str, bytes]:
        root = Path(self.rules.output_dir)
        return {name: plain(root / name) for name in self.names() if not name.endswith(".part")}


def slow(running: Sinking, seconds: float) -> None:
    """From now on each work on the disk takes so long."""
    assert isinstance(running.sink.threads, InLoop)
    running.sink.threads.slow = seconds


def make_archives(
    rules: Rules, *, topics: tuple[str, ...] = ("events",), **options: Any
) -> Archives:
    """Archives by these rules, but for some options."""
    changed = rules.options.with_values(**options)
    return Archives(replace(rules, options=changed), topics)


@contextlib.contextmanager
def started(rules: Rules, **options: Any) -> Iterator[Archives]:
    """Those of the next start, until it gives its locks back."""
    archives = make_archives(rules, **options)
    archives.open()
    try:
        yield archives
    finally:
        archives.unlock()


@contextlib.asynccontextmanager
async def sinking(
    folder: Path,
    *,
    threads: Threads | None = None,
    topics: tuple[str, ...] = ("events",),
    max_in_flight: int = 100,
    **more: Any,
) -> AsyncIterator[Sinking]:
    """``more`` is that of ``make_rules``; names have no time in them unless told."""
    more.setdefault("filename_format", "<TOPIC><REV>.log")
    rules = make_rules(folder, **more)
    sink = FileSink(
        make_archives(rules, topics=topics),
        max_in_flight=max_in_flight,
        threads=threads or InLoop(),
    )
    await sink.open()
    for topic in topics:
        await sink.join(topic)
    running = Sinking(sink, rules)
    try:
        yield running
    finally:
        if not running.is_closed:
            await running.close()


@contextlib.contextmanager
def blocked(path: Path) -> Any:
    """A file is where a directory has to be, which stops even root."""
    aside = path.with_name(f"{path.name}-aside")
    if path.exists():
        path.rename(aside)
    path.write_bytes(b"")
    try:
        yield
    finally:
        path.unlink()
        if aside.exists():
            aside.rename(path)
