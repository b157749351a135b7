"""The sandbox's HTTP server: clients that talk nonsense, too much, too slowly, or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sandbox import http, https
from nsqtools.sandbox.http import Request, Response, get, json_reply, serve, text_reply, to_json

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
        return await asyncio.wait_for(reader.read(), 10)
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
        assert (await get(server.address, "/other", timeout=10))[0] == 200
        writer.write(GET[-1:])
        assert await asyncio.wait_for(reader.readline(), 10) == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()


@pytest.mark.usefixtures("no_line_in_the_log")
async def test_random_bytes_never_stop_the_server() -> None:
    rng = random.Random(4)
    async with serving(echo) as server:
        for _ in range(200):
            noise = rng.randbytes(rng.randrange(200))
            await ask(server.address, GET[: rng.randrange(len(GET))] + noise)
        assert (await get(server.address, "/", timeout=10))[0] == 200


@pytest.mark.usefixtures("no_line_in_the_log")
@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Content-Length: 10\r\n\r\nshort",
    ],
)
async def test_nonsense_after_a_good_request_spoils_only_itself(nonsense: bytes) -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, GET + nonsense)
    assert statuses(reply) == [200, 400]
    assert reply.endswith(b"\r\n\r\n400 Bad Request")


@pytest.mark.parametrize(
    "head", [b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000]
)
async def test_an_oversize_head_is_refused(head: bytes) -> None:
    async with serving(echo) as server:
        assert statuses(await ask(server.address, head, half_close=False)) == [431]
        assert (await get(server.address, "/", timeout=10))[0] == 200


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 100000000\r\n\r\n" + b"x" * 100_000,
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"3e9\r\n" + b"x" * 1001 + b"\r\n") * 1000,
    ],
)
async def test_the_handler_of_an_oversize_body_sees_its_length_only(rest: bytes) -> None:
    lengths = []

    async def note(request: Request) -> Response:
        lengths.append((request.length > MAX_BODY, request.body))
        return text_reply()

    async with serving(note) as server:
        reply = await ask(server.address, POST + rest, half_close=False)
    assert b"Connection: close" in reply
    assert lengths == [(True, b"")]


async def test_a_long_reply_reaches_a_client_that_has_closed_its_side() -> None:
    async def long(_: Request) -> Response:
        return text_reply("x" * 5_000_000)

    async with serving(long) as server:
        assert len(await ask(server.address, GET)) > 5_000_000


async def test_a_handler_that_fails_costs_one_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Request) -> Response:
        raise ValueError("a bug")

    async with serving(fail) as server:
        assert statuses(await ask(server.address, GET + GET)) == [500, 500]
    assert "ValueError('a bug')" in caplog.text


async def test_stop_cuts_idle_and_half_sent_requests() -> None:
    async with serving(echo) as server:
        idle = await asyncio.open_connection(*server.address)
        half = await asyncio.open_connection(*server.address)
        half[1].write(GET[:10])
        assert (await get(server.address, "/", timeout=10))[0] == 200
    for reader, writer in (idle, half):
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.transport.abort()


@pytest.mark.parametrize("start", [b"", GET[:10], POST + b"Content-Length: 5\r\n\r\nab"])
async def test_a_client_that_says_nothing_for_long_is_closed(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.01)
    async with serving(echo) as server:
        with contextlib.suppress(ConnectionResetError):
            assert await ask(server.address, start, half_close=False) == b""


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.ca))
    context.load_cert_chain(certificates.server.cert, certificates.server.key)
    return context


async def test_a_client_without_the_certificate_it_needs_is_told_so(
    certificates: Certificates,
) -> None:
    demanding = server_context(certificates)
    demanding.verify_mode = ssl.CERT_REQUIRED
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    async with serving(echo, demanding) as server, asyncio.timeout(20):
        reader, _ = await asyncio.open_connection(
            *server.address, ssl=trusting, server_hostname="localhost"
        )
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await reader.read()


async def test_plain_http_is_told_that_this_is_an_https_server(certificates: Certificates) -> None:
    async with serving(echo, server_context(certificates)) as server:
        assert (await ask(server.address, GET)).endswith(b" to an HTTPS server.\n")


@pytest.mark.parametrize("greeting", [b"\x16\x03\x01\x00\x04oops", b"  V2", b""])
async def test_a_client_that_speaks_nothing_known_is_hung_up_on(
    greeting: bytes, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "HANDSHAKE_TIMEOUT", 0.05)
    async with serving(echo, server_context(certificates)) as server:
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await ask(server.address, greeting, half_close=False)


def test_json_is_written_as_go_writes_it() -> None:
    assert to_json({"b": [1, None, True], "a": "<é&>"}) == (
        '{"b":[1,null,true],"a":"\\u003cé\\u0026\\u003e"}'.encode()
    )
