"""An nsqd that counts what a consumer does, and sends what a test says."""

from __future__ import annotations

import asyncio
from typing import Self

from nsqtools.names import Address
from tests.support import wire


class CountingNsqd:
    """An nsqd that takes every subscription and sends what ``on_ready`` writes; it counts."""

    def __init__(self, max_rdy_count: int = 2500) -> None:
        self._max_rdy_count = max_rdy_count
        self.connections = self.requeued = self.finished = 0
        self.topics: dict[asyncio.StreamWriter, str] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        rest = b""
        while data := await reader.read(65536):
            found, rest = wire.split_commands(rest + data)
            for command in found:
                match command.split():
                    case ["IDENTIFY", *_]:
                        writer.write(wire.negotiated(max_rdy_count=self._max_rdy_count))
                    case ["SUB", topic, *_]:
                        self.topics[writer] = topic
                        writer.write(wire.OK)
                    case ["RDY", count]:
                        self.on_ready(int(count), writer)
                    case ["FIN", *_]:
                        self.finished += 1
                        self.on_finish(writer)
                    case ["REQ", *_]:
                        self.requeued += 1
                    case ["CLS"]:
                        self.on_ready(0, writer)
                        self.on_close(writer)
        writer.close()

    def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
        """RDY of this count has come."""

    def on_finish(self, writer: asyncio.StreamWriter) -> None:
        """A FIN has come."""

    def on_close(self, writer: asyncio.StreamWriter) -> None:
        """CLS has come."""
        writer.write(wire.CLOSE_WAIT)
