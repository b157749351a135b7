"""The sandbox's HTTP server: clients that talk nonsense, too much, too slowly, or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sandbox import http
from nsqtools.sandbox.http import Request, Response, get, json_reply, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nsqtools.names import Address
    from nsqtools.sandbox.http import Handler
    from nsqtools.sandbox.server import StreamServer
    from tests.support.tls import Certificates

MAX_BODY = 1000
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: h\r\n"


async def echo(request: Request) -> Response:
    return json_reply([request.path, request.length, request.body.decode("latin-1")])


@contextlib.asynccontextmanager
async def serving(handler: Handler, *args: Any) -> AsyncIterator[StreamServer]:
    server = await serve(handler, "127.0.0.1", 0, *args, max_body=MAX_BODY)
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


async def test_a_request_may_come_byte_by_byte_and_delays_nobody() -> None:
    async with serving(echo) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        for byte in GET[:-1]:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await get(server.address, "/other", timeout=60))[0] == 200
        writer.write(GET[-1:])
        assert await asyncio.wait_for(reader.readline(), 60) == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()


@pytest.mark.usefixtures("no_line_in_the_log")
async def test_random_bytes_never_stop_the_server() -> None:
    rng = random.Random(4)
    async with serving(echo) as server:
        for _ in range(200):
            noise = rng.randbytes(rng.randrange(200))
            await ask(server.address, GET[: rng.randrange(len(GET))] + noise)
        assert (await get(server.address, "/", timeout=60))[0] == 200


@pytest.mark.parametrize(
    "head", [b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000]
)
async def test_an_oversize_head_is_refused(head: bytes) -> None:
    async with serving(echo) as server:
        assert statuses(await ask(server.address, head, half_close=False)) == [431]
        assert (await get(server.address, "/", timeout=60))[0] == 200


async def test_a_handler_that_fails_costs_one_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Request) -> Response:
        raise ValueError("a bug")

    async with serving(fail) as server:
        assert statuses(await ask(server.address, GET + GET)) == [500, 500]
    assert "ValueError('a bug')" in caplog.text


@pytest.mark.parametrize("start", [b"", GET[:10], POST + b"Content-Length: 5\r\n\r\nab"])
async def test_a_client_that_says_nothing_for_long_is_closed(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.01)
    async with serving(echo) as server:
        with contextlib.suppress(ConnectionResetError):
            assert await ask(server.address, start, half_close=False) == b""


async def test_plain_http_is_told_that_this_is_an_https_server(certificates: Certificates) -> None:
    async with serving(echo, certificates.server.context()) as server:
        assert (await ask(server.address, GET)).endswith(b" to an HTTPS server.\n")
