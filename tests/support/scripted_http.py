"""An HTTP server with one reply that a test chooses, and clients of it."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from nsqtools.errors import HTTPError
from nsqtools.names import Address
from nsqtools.net.http.api import HTTPClient
from nsqtools.net.http.daemons import Lookupd, NsqdHTTP
from nsqtools.net.tcp import close

PATIENCE = 10.0
Answer: TypeAlias = "bytes | Callable[[], Awaitable[bytes]] | None"

NODE: dict[str, Any] = {
    "remote_address": "10.0.0.1:5000",
    "hostname": "host",
    "broadcast_address": "nsqd.test",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}

CHANNEL: dict[str, Any] = {
    "channel_name": "c",
    "depth": 1,
    "backend_depth": 2,
    "in_flight_count": 3,
    "deferred_count": 4,
    "message_count": 5,
    "requeue_count": 6,
    "timeout_count": 7,
    "client_count": 8,
    "clients": None,
    "paused": True,
}

TOPIC: dict[str, Any] = {
    "topic_name": "t",
    "depth": 1,
    "backend_depth": 2,
    "message_count": 3,
    "paused": False,
    "channels": [CHANNEL],
}

V1 = "X-NSQ-Content-Type: nsq; version=1.0\r\n"


def reply(body: bytes | str, status: int = 200, headers: str = "") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status} Status\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


def v1(data: object, status: int = 200) -> bytes:
    return reply(json.dumps(data), status, V1)


def v1_empty() -> bytes:
    return reply("", 200, V1)


def envelope(data: object, code: int = 200, text: str = "OK", status: int = 200) -> bytes:
    return reply(json.dumps({"status_code": code, "status_txt": text, "data": data}), status)


@dataclass(slots=True, kw_only=True)
class OneReply:
    """Answers the first request of every connection with the same bytes, or, if None, not at all.

    Then it hangs up, or resets the connection, or holds it until the client hangs up. ``keep``
    answers further requests as well, until an answer is empty. ``plain`` takes the first bytes for
    a request, whatever they are.
    """

    answer: Answer
    reset: bool = False
    hold: bool = False
    keep: bool = False
    plain: bool = False
    connections: int = field(default=0, init=False)
    address: Address = field(default_factory=lambda: Address("", 0), init=False)
    heads: list[str] = field(default_factory=list, init=False)

    @property
    def head(self) -> str:
        (head,) = self.heads
        return head

    @property
    def target(self) -> str:
        return self.head.split()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._answer(reader, writer) and self.keep:
                pass
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.plain:
            await reader.read(65536)
        else:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        answer = await self.answer() if callable(self.answer) else self.answer
        writer.write(answer or b"")
        await writer.drain()
        if answer is None or self.hold:
            await reader.read()
        if self.reset:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return bool(answer)


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, *, tls: ssl.SSLContext | None = None, **how: bool
) -> AsyncIterator[OneReply]:
    """A server at ``address``; ``how`` are the switches of OneReply."""
    script = OneReply(answer=answer, **how)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(script.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    script.address = Address(*server.sockets[0].getsockname())
    try:
        yield script
    finally:
        await close(server)
        await asyncio.gather(*tasks)


def lookupd(server: OneReply | str, **options: Any) -> Lookupd:
    url = server if isinstance(server, str) else str(server.address)
    return Lookupd(url, **{"connect_timeout": PATIENCE, "request_timeout": PATIENCE, **options})


def nsqd(server: OneReply) -> NsqdHTTP:
    return NsqdHTTP(str(server.address), connect_timeout=PATIENCE, request_timeout=PATIENCE)


async def failure(client: HTTPClient, call: Awaitable[object]) -> HTTPError:
    """The HTTPError of a call, which must be one line and name the server."""
    async with client:
        with pytest.raises(HTTPError) as raised:
            await call
    assert raised.value.address == client.address
    assert str(raised.value).startswith(f"{client.address}: ")
    assert str(raised.value).isprintable()
    return raised.value
