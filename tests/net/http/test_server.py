"""The HTTP server: clients that talk nonsense, too much, too slowly, or are too many."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import socket
from typing import TYPE_CHECKING

import pytest

from nsqtools.names import Address
from nsqtools.net import tcp
from nsqtools.net.http import server as serving_http
from nsqtools.net.http.server import Request, Response, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nsqtools.net.http.server import RequestHandler
    from nsqtools.net.tcp import StreamServer

MAX_BODY = 1000
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: h\r\n"


async def echo(request: Request) -> Response:
    return Response(body=f"{request.path} {request.length} ".encode() + request.body)


@contextlib.asynccontextmanager
async def serving(handler: RequestHandler) -> AsyncIterator[StreamServer]:
    server = await serve(handler, "127.0.0.1", 0, max_body=MAX_BODY)
    try:
        yield server
    finally:
        await server.stop()


async def ask(address: Address, request: bytes, *, half_close: bool = True) -> bytes:
    """Everything the server says to these bytes, until it closes."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        if half_close:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.transport.abort()


def statuses(replies: bytes) -> list[int]:
    return [int(each.split(b" ", 2)[1]) for each in replies.split(b"HTTP/1.1")[1:]]


@pytest.fixture
def no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


async def test_requests_are_answered_in_turn_and_a_body_too_big_by_its_length_alone() -> None:
    async with serving(echo) as server:
        said = await ask(server.address, POST + b"Content-Length: 2\r\n\r\nab" + GET)
        assert statuses(said) == [200, 200]
        assert said.index(b"/x 2 ab") < said.index(b"/x 0 ")
        said = await ask(server.address, POST + b"Content-Length: 99999999\r\n\r\nab")
        assert said.endswith(b"/x 99999999 ")
        assert b"Connection: close" in said


async def test_a_request_may_come_byte_by_byte_and_delays_nobody() -> None:
    async with serving(echo) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        for byte in GET[:-1]:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert statuses(await ask(server.address, GET)) == [200]
        writer.write(GET[-1:])
        assert await asyncio.wait_for(reader.readline(), 60) == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()


@pytest.mark.usefixtures("no_line_in_the_log")
async def test_random_bytes_never_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsqtools")
    rng = random.Random(4)
    async with serving(echo) as server:
        for _ in range(200):
            noise = rng.randbytes(rng.randrange(200))
            await ask(server.address, GET[: rng.randrange(len(GET))] + noise)
        assert statuses(await ask(server.address, GET)) == [200]
    assert "illegal " in caplog.text
    assert "bytearray" not in caplog.text


@pytest.mark.parametrize(
    "head", [b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000]
)
async def test_an_oversize_head_is_refused(head: bytes) -> None:
    async with serving(echo) as server:
        assert statuses(await ask(server.address, head, half_close=False)) == [431]
        assert statuses(await ask(server.address, GET)) == [200]


async def test_a_handler_that_fails_costs_one_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Request) -> Response:
        raise ValueError("a bug")

    async with serving(fail) as server:
        assert statuses(await ask(server.address, GET + GET)) == [500, 500]
    assert "ValueError('a bug')" in caplog.text


@pytest.mark.parametrize(
    ("limit", "start"),
    [
        ("HEAD_TIMEOUT", b""),
        ("HEAD_TIMEOUT", GET[:10]),
        ("TIMEOUT", POST + b"Content-Length: 5\r\n\r\nab"),
    ],
)
async def test_a_client_that_says_nothing_for_long_is_closed(
    limit: str, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_http, limit, 0.01)
    async with serving(echo) as server:
        with contextlib.suppress(ConnectionResetError):
            assert await ask(server.address, start, half_close=False) == b""


async def test_one_connection_too_many_takes_the_place_of_one_that_waits_or_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that send half a request keep no probe out."""
    monkeypatch.setattr(tcp, "MAX_CONNECTIONS", 2)
    busy, answered = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Response:
        if request.method == "POST":
            busy.set()
            await answered.wait()
        return Response(200, b"")

    async with serving(answer) as server:
        asking = asyncio.create_task(ask(server.address, POST + b"Content-Length: 0\r\n\r\n"))
        await busy.wait()
        half, writer = await asyncio.open_connection(*server.address)
        writer.write(GET[:10])
        for _ in range(5):
            assert statuses(await ask(server.address, GET)) == [200]
        with contextlib.suppress(ConnectionResetError):
            assert await half.read() == b""
        writer.transport.abort()
        monkeypatch.setattr(tcp, "MAX_CONNECTIONS", 1)
        with contextlib.suppress(OSError):  # a reset, before or after the request
            assert await ask(server.address, GET) == b""
        answered.set()
        assert statuses(await asking) == [200]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EADDRINUSE, "error while binding"), "Address already in use"),
        (socket.gaierror(-2, "unknown"), "[Errno -2] unknown"),
        (OSError("could not bind"), "could not bind"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named_with_the_reason(
    error: OSError, text: str
) -> None:
    with pytest.raises(OSError, match="h:1") as raised, tcp.naming(Address("h", 1)):
        raise error
    assert raised.value.strerror == text


@pytest.mark.parametrize(
    ("peer", "address"),
    [(("::1", 5, 0, 0), ("::1", 5)), (("127.0.0.1", 5), ("127.0.0.1", 5)), (None, ("", 0))],
)
def test_a_peer_has_an_address_until_its_connection_ends(
    peer: tuple[object, ...] | None, address: tuple[str, int]
) -> None:
    assert tcp.peer_address(asyncio.BaseTransport({"peername": peer})) == address
