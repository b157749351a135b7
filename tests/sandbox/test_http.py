from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sandbox import http
from nsqtools.sandbox.http import (
    Refused,
    Request,
    Response,
    get,
    json_reply,
    ping,
    router,
    serve,
    text_reply,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsqtools.names import Address
    from nsqtools.sandbox.http import Handler
    from nsqtools.sandbox.server import StreamServer
    from tests.support.tls import Certificates

MAX_BODY = 1000
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


async def echo(request: Request) -> Response:
    return json_reply(
        {
            "method": request.method,
            "path": request.path,
            "arguments": request.arguments(),
            "body": request.body.decode(),
            "length": request.length,
        }
    )


@contextlib.asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[StreamServer]:
    server = await serve(handler, "127.0.0.1", 0, max_body=MAX_BODY, **options)
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


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def body_of(reply: bytes) -> Any:
    return json.loads(reply.partition(b"\r\n\r\n")[2])


def split(replies: bytes) -> list[bytes]:
    return [b"HTTP/1.1" + part for part in replies.split(b"HTTP/1.1")[1:]]


async def test_a_request_is_taken_apart_and_a_reply_names_its_version() -> None:
    async with serving(echo) as server:
        reply = await ask(
            server.address,
            b"POST /a%2Fb?x=1&x=2&y=a+b%21&z HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
        )
    assert b"HTTP/1.1 200 OK\r\n" in reply
    assert b"X-Nsq-Content-Type: nsq; version=1.0\r\n" in reply
    assert b"Content-Type: application/json; charset=utf-8\r\n" in reply
    assert body_of(reply) == {
        "method": "POST",
        "path": "/a/b",
        "arguments": {"x": "1", "y": "a b!", "z": ""},
        "body": "abc",
        "length": 3,
    }


@pytest.mark.parametrize("query", ["a=%zz", "a=%2", "a=1;b=2", "%"])
async def test_a_query_that_go_cannot_parse_is_an_invalid_request(query: str) -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, f"GET /?{query} HTTP/1.0\r\n\r\n".encode())
    assert status_of(reply) == 400
    assert body_of(reply) == {"message": "INVALID_REQUEST"}


async def test_pipelined_requests_are_answered_in_order() -> None:
    requests = b"".join(GET.replace(b"/x", b"/%d" % n) for n in range(100))
    async with serving(echo) as server:
        reply = await ask(server.address, requests)
    paths = [body_of(part)["path"] for part in split(reply)]
    assert paths == [f"/{n}" for n in range(100)]


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


@pytest.mark.parametrize(
    "garbage",
    [
        b"  V2IDENTIFY\n\x00\x00\x00\x02{}",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET /x HTTP/1.1\r\n\r\n",  # no Host
        b"GET /x HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nshort",
    ],
)
async def test_nonsense_gets_one_bad_request_and_no_log_line(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, garbage)
        assert status_of(reply) == 400
        assert reply.endswith(b"\r\n\r\n400 Bad Request")
        assert b"Connection: close" in reply
        assert (await get(server.address, "/", timeout=10))[0] == 200
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


async def test_nonsense_after_a_good_request_spoils_only_itself() -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, GET + b"\x00\x01\x02\r\n\r\n" + GET)
    assert [status_of(part) for part in split(reply)] == [200, 400]


async def test_random_bytes_never_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(4)
    async with serving(echo) as server:
        for _ in range(200):
            noise = rng.randbytes(rng.randrange(200))
            await ask(server.address, GET[: rng.randrange(len(GET))] + noise)
        assert (await get(server.address, "/", timeout=10))[0] == 200
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


@pytest.mark.parametrize(
    "head", [b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000]
)
async def test_an_oversize_head_is_refused(head: bytes) -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, head, half_close=False)
        assert status_of(reply) == 431
        assert (await get(server.address, "/", timeout=10))[0] == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"Content-Length: 100000000\r\n\r\n" + b"x" * 100_000,
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"3e9\r\n" + b"x" * 1001 + b"\r\n") * 1000,
    ],
)
async def test_the_handler_of_an_oversize_body_sees_its_length_only(request_: bytes) -> None:
    async with serving(echo) as server:
        reply = await ask(
            server.address, b"POST /x HTTP/1.1\r\nHost: h\r\n" + request_, half_close=False
        )
    assert b"Connection: close" in reply
    assert body_of(reply)["body"] == ""
    assert body_of(reply)["length"] > MAX_BODY


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:
    async with serving(echo) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(
            b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert await asyncio.wait_for(reader.readline(), 10) == b"HTTP/1.1 100 Continue\r\n"
        assert await reader.readline() == b"\r\n"
        writer.write(b"hi")
        assert await asyncio.wait_for(reader.readline(), 10) == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()


async def test_head_is_answered_without_a_body() -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
    first, second = split(reply)
    assert first.endswith(b"\r\n\r\n")
    assert b"Content-Length: 0" not in first
    assert body_of(second)["method"] == "GET"


async def test_http_1_0_is_answered_and_closed() -> None:
    async with serving(echo) as server:
        reply = await ask(server.address, b"GET /x HTTP/1.0\r\n\r\n", half_close=False)
    assert body_of(reply)["path"] == "/x"


async def test_a_long_reply_reaches_a_client_that_has_closed_its_side() -> None:
    async def long(_: Request) -> Response:
        return text_reply("x" * 5_000_000)

    async with serving(long) as server:
        reply = await ask(server.address, GET)
    assert len(reply) > 5_000_000


async def test_a_handler_that_fails_costs_one_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Request) -> Response:
        raise ValueError("a bug")

    async with serving(fail) as server:
        reply = await ask(server.address, GET + GET)
    assert [status_of(part) for part in split(reply)] == [500, 500]
    assert b'{"message":"INTERNAL_ERROR"}' in reply
    assert "GET /x: ValueError('a bug')" in caplog.text


async def test_the_router_answers_as_nsqds_does() -> None:
    async def option(request: Request) -> Response:
        return text_reply(request.path)

    handler = router({("GET", "/ping"): ping, ("GET", "/c/*"): option, ("PUT", "/c/*"): option})
    async with serving(handler) as server:

        async def reply(line: str) -> bytes:
            return await ask(server.address, f"{line} HTTP/1.0\r\n\r\n".encode())

        assert (await reply("GET /ping")).endswith(b"\r\n\r\nOK")
        assert b"X-Nsq" not in await reply("GET /ping")
        assert (await reply("PUT /c/x")).endswith(b"/c/x")
        for line in ("GET /nope", "GET /", "GET /c", "GET /c/", "GET /c/x/y"):
            assert status_of(await reply(line)) == 404
        assert body_of(await reply("GET /nope")) == {"message": "NOT_FOUND"}
        wrong = await reply("POST /c/x")
        assert status_of(wrong) == 405
        assert b"Allow: GET, PUT, OPTIONS\r\n" in wrong
        assert body_of(wrong) == {"message": "METHOD_NOT_ALLOWED"}
        options = await reply("OPTIONS /ping")
        assert status_of(options) == 200
        assert b"Allow: GET, OPTIONS\r\n" in options


async def test_a_refusal_is_a_message_in_json() -> None:
    async def refuse(_: Request) -> Response:
        raise Refused(413, "MSG_TOO_BIG")

    async with serving(refuse) as server:
        assert await get(server.address, "/", timeout=10) == (413, b'{"message":"MSG_TOO_BIG"}')


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


async def test_a_client_that_says_nothing_for_long_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.01)
    async with serving(echo) as server:
        for start in (b"", GET[:10], b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab"):
            with contextlib.suppress(ConnectionResetError):
                assert await ask(server.address, start, half_close=False) == b""


async def test_a_taken_port_is_named() -> None:
    async with serving(echo) as server:
        with pytest.raises(OSError, match="in use") as caught:
            await serve(echo, *server.address)
    assert caught.value.filename == str(server.address)


async def test_tls_serves_the_same(certificates: Certificates) -> None:
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificates.server.cert, certificates.server.key)
    client_side = ssl.create_default_context(cafile=str(certificates.ca))
    async with serving(echo, ssl=server_side) as server:
        reader, writer = await asyncio.open_connection(
            *server.address, ssl=client_side, server_hostname="localhost"
        )
        writer.write(GET)
        assert await asyncio.wait_for(reader.readline(), 10) == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()
        assert (await ask(server.address, GET)).endswith(b" to an HTTPS server.\n")


def test_json_is_written_as_go_writes_it() -> None:
    assert to_json({"b": [1, None, True], "a": "<é&>"}) == (
        '{"b":[1,null,true],"a":"\\u003cé\\u0026\\u003e"}'.encode()
    )
