"""What httpx's requests and errors are over our own connections."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from nsqtools.sinks.http.transport import Transport
from tests.support.scripted_http import reply, serving


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(None, connect_timeout=30.0)
    yield transport
    await transport.aclose()


async def get(transport: Transport, address: object, **headers: str) -> httpx.Response:
    async with asyncio.timeout(60):
        request = httpx.Request("GET", f"http://{address}/", headers=headers)
        return await transport.handle_async_request(request)


async def test_a_response_has_its_headers_and_body(transport: Transport) -> None:
    async with serving(reply("yes", 307, "Location: /elsewhere\r\n")) as server:
        moved = await get(transport, server.address)
    assert (moved.status_code, moved.headers["location"]) == (307, "/elsewhere")
    assert await moved.aread() == b"yes"


async def test_a_refused_connection_is_a_connect_error(
    transport: Transport, unused_tcp_port: int
) -> None:
    with pytest.raises(httpx.ConnectError):
        await get(transport, f"127.0.0.1:{unused_tcp_port}")


@pytest.mark.parametrize(
    ("answer", "reset", "text"),
    [
        (b"", False, "without a response"),
        (b"\0\0\0\x0212", False, "illegal"),
    ],
)
async def test_what_has_no_status_is_a_read_error(
    transport: Transport, answer: bytes, reset: bool, text: str
) -> None:
    async with serving(answer, reset=reset) as server:
        with pytest.raises(httpx.ReadError, match=text) as caught:
            await get(transport, server.address)
    assert "bytearray" not in str(caught.value)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("how", ["reset", "hold", "close"])
@pytest.mark.parametrize(
    "answer",
    [
        HEAD,
        reply("x" * 100)[:-50],
        HEAD + b"\r\nbegun",
        HEAD + b"X Powered By: me\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"X: y\r\n" * 20_000,
        CHUNKED + b"5\r\n",
        CHUNKED + b"no size\r\n",
        HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD,
    ],
)
async def test_a_status_decides_whatever_follows_or_not_and_the_connection_is_dropped(
    answer: bytes, how: str
) -> None:
    transport = Transport(None, connect_timeout=30.0, rest_timeout=0.01)
    async with serving(answer, reset=how == "reset", hold=how == "hold") as server:
        for requests in (1, 2):
            response = await get(transport, server.address)
            assert (response.status_code, server.connections) == (200, requests)
        await transport.aclose()


async def test_a_failure_that_is_not_valid_tells_what_can_be_read(transport: Transport) -> None:
    answer = b"HTTP/1.1 503 No\r\nX Y: z\r\nRetry-After: 7\r\n\r\nno"
    async with serving(answer) as server:
        response = await get(transport, server.address)
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    async with serving(reply("busy", 503)[:-1]) as server:
        response = await get(transport, server.address)
    assert (response.status_code, await response.aread()) == (503, b"bus")


async def test_a_header_that_would_break_out_is_not_sent(transport: Transport) -> None:
    async with serving(reply("")) as server:
        with pytest.raises(httpx.LocalProtocolError):
            await get(transport, server.address, X="a\nX-Evil: 1")
        await transport.aclose()
        assert server.heads == []
