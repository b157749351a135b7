"""Where messages go in the simulation: a pipe with a reader, and HTTP endpoints."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from nsqtools.errors import OutputClosedError
from nsqtools.net.http.server import Request, Response, serve
from tests.support.processes import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.world import World

PIPE: ContextVar[Pipe] = ContextVar("pipe")
"""Standard output of the process that runs."""


class Pipe:
    """A pipe whose reader takes lines at its own pace; ``lines`` are those that it has."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lines: list[bytes] = []
        self.pauses: list[float] = []
        """Seconds for which the next writes block, before the reader goes on."""
        self.is_closed = False

    def pause(self) -> float:
        """How long the next write blocks."""
        return self.pauses.pop(0) if self.pauses else 0.0


class SimulatedOutput:
    """Stands for ``nsqtools.sinks.pipes.Output``."""

    failed: asyncio.Future[None]

    def __init__(self, fd: int, name: str) -> None:
        self._pipe = PIPE.get()
        self._name = name

    async def open(self) -> None:
        self.failed = asyncio.get_running_loop().create_future()

    async def write(self, pieces: Sequence[bytes]) -> None:
        if pause := self._pipe.pause():
            self._pipe.world.log(f"the reader of standard output pauses for {pause:g} s")
            await asyncio.sleep(pause)
        if self._pipe.is_closed:
            error = OutputClosedError(f"{self._name}: the reader is gone")
            if not self.failed.done():
                self.failed.set_exception(error)
                self.failed.exception()
            raise error
        self._pipe.lines += b"".join(pieces).splitlines()

    def close(self) -> None:
        """Nothing is kept."""


class Endpoint:
    """An HTTP server that answers as ``mood`` says, for as long as that lasts."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(name, name)
        self.accepted: list[bytes] = []
        """Bodies that were answered with a success, or for which that was begun."""
        self.mood = "good"
        self.is_picky = False
        """Whether it refuses some bodies."""
        self.delay = 0.0
        """Seconds before each response."""
        self._random = world.random(name)

    async def start(self) -> None:
        """Listen on port 80."""
        self.process.alive = False
        self.process = Process(self.name, self.name)
        await self.world.within(self.process, self._serve())

    async def _serve(self) -> None:
        await serve(self._answer, self.name, 80)

    async def _answer(self, request: Request) -> Response:
        mood = self.mood
        if mood == "moody":
            mood = self._random.choice(("good", "good", "error", "slow", "busy", "hang", "late"))
        if self.delay:
            await asyncio.sleep(self.delay)
        if mood == "slow":
            await asyncio.sleep(self._random.random() * 30)
        if mood == "hang":
            await asyncio.sleep(1000)
        if mood == "error":
            return Response(500)
        if mood == "busy":
            return Response(429, headers=(("Retry-After", "2"),))
        if self.is_picky and request.body[8:9] in b"147":
            return Response(400)
        self.accepted.append(request.body)
        if mood == "late":  # accepted, but nobody learns of it
            await asyncio.sleep(1000)
        return Response(200)


def bodies_of(endpoints: Sequence[Any]) -> list[bytes]:
    """What endpoints have accepted."""
    return [body for endpoint in endpoints for body in endpoint.accepted]
