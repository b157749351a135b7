"""A TopicSink with a destination and dead letters that do as a test says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from nsqtools.engine.handler import Batch, Message
from nsqtools.errors import ServerError
from nsqtools.names import Address
from nsqtools.sinks.topic.rules import Rules
from nsqtools.sinks.topic.sink import TopicSink
from tests.support.archiving import Settled
from tests.support.delivering import Letters
from tests.support.scripted import undisturbed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

SOURCE = Address("source", 4150)
TOO_BIG = ServerError("E_BAD_MESSAGE MPUB message too big")


class Destination:
    """A publisher. While ``answers`` is cleared nothing returns; then ``errors`` are raised."""

    def __init__(self) -> None:
        self.published: list[tuple[str, list[bytes]]] = []
        self.defers: list[float | None] = []
        self.times: list[float] = []
        self.errors: list[Exception] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.life: list[str] = []
        self.cancelled = 0

    async def connect(self) -> None:
        self.life.append("connected")

    async def close(self) -> None:
        self.life.append("closed")

    async def publish(
        self, topic: str, bodies: Sequence[bytes], *, defer: float | None = None
    ) -> None:
        self.published.append((topic, list(bodies)))
        self.defers.append(defer)
        self.times.append(asyncio.get_running_loop().time())
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.errors:
            raise self.errors.pop(0)

    @property
    def bodies(self) -> list[list[bytes]]:
        return [bodies for _, bodies in self.published]


class Relaying:
    """An open sink for topics ``t`` and ``u``, which go to ``T`` and ``U``."""

    def __init__(self, *, rules: Rules | None = None, lossy: bool = False, **more: Any) -> None:
        self.destination = Destination()
        self.letters = Letters()
        self.letters.is_lossy = lossy
        self.fates = Settled()
        self.sink = TopicSink(
            self.destination, {"t": "T", "u": "U"}, rules or Rules(), self.letters, **more
        )

    def batch(self, *bodies: bytes, topic: str = "t", **more: Any) -> Batch:
        messages = [Message(b"%016x" % number, body, 1, 1) for number, body in enumerate(bodies, 1)]
        more.setdefault("source", SOURCE)
        return Batch(messages, self.fates, topic=topic, channel="c", **more)

    async def handle(self, *bodies: bytes, **more: Any) -> Batch:
        batch = self.batch(*bodies, **more)
        await self.sink.handle(batch)
        return batch

    async def gave_up(self, *bodies: bytes, **more: Any) -> Batch:
        batch = self.batch(*bodies, **more)
        await self.sink.gave_up(batch)
        return batch

    async def drain(self) -> None:
        for topic in ("t", "u"):
            await self.sink.drain(topic)
            await self.sink.join(topic)


@contextlib.asynccontextmanager
async def relaying(**more: Any) -> AsyncIterator[Relaying]:
    """``more`` is that of Relaying."""
    async with undisturbed():
        made = Relaying(**more)
        await made.sink.open()
        for topic in ("t", "u"):
            await made.sink.join(topic)
        try:
            yield made
        finally:
            await made.sink.close()


async def turns(count: int = 20) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)
