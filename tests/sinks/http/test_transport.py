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
        (reply("x" * 100)[:-50], True, "within the response"),
        (b"\0\0\0\x0212", False, "illegal"),
    ],
)
async def test_what_is_no_whole_response_is_a_read_error(
    transport: Transport, answer: bytes, reset: bool, text: str
) -> None:
    async with serving(answer, reset=reset) as server:
        with pytest.raises(httpx.ReadError, match=text):
            await get(transport, server.address)


async def test_a_header_that_would_break_out_is_not_sent(transport: Transport) -> None:
    async with serving(reply("")) as server:
        with pytest.raises(httpx.LocalProtocolError):
            await get(transport, server.address, X="a\nX-Evil: 1")
        await transport.aclose()
        assert server.heads == []
