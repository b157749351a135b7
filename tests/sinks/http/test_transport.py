"""What httpx's requests and errors are over our own connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.sinks.http.transport import Transport
from tests.support.webserver import Answer, WebServer, redirect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(None, connect_timeout=30.0)
    yield transport
    await transport.aclose()


async def get(transport: Transport, url: str, **headers: str) -> httpx.Response:
    async with asyncio.timeout(60):
        request = httpx.Request("GET", url, headers=headers)
        return await transport.handle_async_request(request)


async def test_a_refusal_has_its_headers(transport: Transport) -> None:
    with WebServer([Answer(body=b"yes"), redirect("/elsewhere")]) as web:
        fine = await get(transport, web.url())
        assert (fine.status_code, await fine.aread()) == (200, b"yes")
        moved = await get(transport, web.url())
        assert (moved.status_code, moved.headers["location"]) == (307, "/elsewhere")


async def test_a_refused_connection_is_a_connect_error(
    transport: Transport, unused_tcp_port: int
) -> None:
    with pytest.raises(httpx.ConnectError):
        await get(transport, f"http://127.0.0.1:{unused_tcp_port}/")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(cut="request", how="fin"), "without a response"),
        (Answer(cut="body"), "within the response"),
        (Answer(raw=b"\0\0\0\x0212", close=True), "illegal"),
    ],
)
async def test_what_is_no_whole_response_is_a_read_error(
    transport: Transport, answer: Answer, text: str
) -> None:
    with WebServer(answer) as web, pytest.raises(httpx.ReadError, match=text):
        await get(transport, web.url())


async def test_a_header_that_would_break_out_is_not_sent(transport: Transport) -> None:
    with WebServer() as web:
        with pytest.raises(httpx.LocalProtocolError):
            await get(transport, web.url(), X="a\nX-Evil: 1")
        assert web.requests == []
