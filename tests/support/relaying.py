"""A RelaySink with a destination and dead letters that do as a test says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ServerError
from nsqtools.sinks.relay.filter import Filter
from nsqtools.sinks.relay.relaysink import RelaySink
from tests.support.archiving import Settled, batch
from tests.support.delivering import Letters
from tests.support.scripted import undisturbed
from tests.support.sinking import InLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nsqtools.engine.handler import Batch

TOO_BIG = ServerError("E_BAD_MESSAGE MPUB message too big")


class Destination:
    """In place of a Producer: ``publish`` returns once ``answers`` is set, or raises ``errors``."""

    def __init__(self) -> None:
        self.published: list[tuple[str, list[bytes]]] = []
        self.defers: list[float | None] = []
        self.times: list[float] = []
        self.errors: list[BaseException] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.cancelled = 0
        self.is_connected = True

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

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

    def __init__(self, *, rules: Filter | None = None, lossy: bool = False, **more: Any) -> None:
        self.destination = Destination()
        self.letters = Letters()
        self.letters.is_lossy = lossy
        self.fates = Settled()
        self.sink = RelaySink(
            self.destination,  # type: ignore[arg-type]
            {"t": "T", "u": "U"},
            rules or Filter(),
            self.letters,
            **{"threads": InLoop(), **more},
        )

    def batch(self, *bodies: bytes, topic: str = "t", **more: Any) -> Batch:
        return batch(*bodies, settled=self.fates, topic=topic, **more)

    async def handle(self, *bodies: bytes, **more: Any) -> Batch:
        made = self.batch(*bodies, **more)
        await self.sink.handle(made)
        return made

    async def gave_up(self, *bodies: bytes, **more: Any) -> Batch:
        made = self.batch(*bodies, **more)
        await self.sink.gave_up(made)
        return made

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
