"""Connections to endpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.sinks.http.transport import Transport
from tests.support.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with what ``script`` says: bytes, or None to hang up."""

    def __init__(self) -> None:
        self.script: list[bytes | None] = []
        self.connections = 0
        self.requests: list[bytes] = []
        self.closes_after_answer = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(head)
                answer = self.script.pop(0) if self.script else OK
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if self.closes_after_answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
def endpoint() -> Server:
    return Server()


@pytest.fixture
async def url(endpoint: Server) -> AsyncIterator[str]:
    listening = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    yield f"http://{host}:{port}/"
    listening.close()


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(None, connect_timeout=5.0)
    yield transport
    await transport.aclose()


async def post(transport: Transport, url: str) -> httpx.Response:
    async with asyncio.timeout(10):
        response = await transport.handle_async_request(httpx.Request("GET", url))
        await response.aread()
        return response


async def test_one_connection_serves_requests_one_after_another(
    endpoint: Server, url: str, transport: Transport
) -> None:
    for _ in range(3):
        response = await post(transport, url)
        assert (response.status_code, response.content) == (200, b"ok")
    assert (endpoint.connections, len(endpoint.requests)) == (1, 3)


async def test_requests_at_the_same_time_have_connections_of_their_own(
    endpoint: Server, url: str, transport: Transport
) -> None:
    await asyncio.gather(*(post(transport, url) for _ in range(5)))
    assert endpoint.connections == 5


async def test_a_response_that_ends_the_connection_is_followed_by_another_connection(
    endpoint: Server, url: str, transport: Transport
) -> None:
    endpoint.script = [b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]
    assert (await post(transport, url)).status_code == 503
    assert (await post(transport, url)).status_code == 200
    assert endpoint.connections == 2


async def test_a_kept_connection_that_was_closed_costs_nothing(
    endpoint: Server, url: str, transport: Transport
) -> None:
    endpoint.closes_after_answer = True
    for _ in range(3):
        assert (await post(transport, url)).status_code == 200
    assert len(endpoint.requests) == 3


async def test_a_kept_connection_that_closes_on_the_request_makes_it_go_out_again(
    endpoint: Server, url: str, transport: Transport
) -> None:
    await post(transport, url)
    endpoint.script = [None, OK]
    assert (await post(transport, url)).status_code == 200
    assert (endpoint.connections, len(endpoint.requests)) == (2, 3)


async def test_a_request_goes_out_twice_at_most(
    endpoint: Server, url: str, transport: Transport
) -> None:
    await asyncio.gather(*(post(transport, url) for _ in range(3)))
    endpoint.script = [None] * 9
    with pytest.raises(httpx.ReadError, match="without a response"):
        await post(transport, url)
    assert len(endpoint.requests) == 3 + 2


async def test_a_fresh_connection_that_closes_on_the_request_is_an_error(
    endpoint: Server, url: str, transport: Transport
) -> None:
    endpoint.script = [None]
    with pytest.raises(httpx.ReadError, match="without a response"):
        await post(transport, url)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("answer", [b"SMTP ready\r\n\r\n", OK[:-1] + b""])
async def test_a_malformed_or_broken_response_is_an_error(
    endpoint: Server, url: str, transport: Transport, answer: bytes
) -> None:
    endpoint.script = [answer]
    endpoint.closes_after_answer = True
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        await post(transport, url)


async def test_bytes_that_nobody_asked_for_end_the_connection(
    endpoint: Server, url: str, transport: Transport
) -> None:
    endpoint.script = [OK + OK]
    await post(transport, url)
    await post(transport, url)
    assert endpoint.connections == 2


async def test_a_request_that_is_given_up_gives_up_its_connection(
    endpoint: Server, url: str, transport: Transport
) -> None:
    endpoint.script = [b"HTTP/1.1 200 OK\r\n"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await transport.handle_async_request(httpx.Request("GET", url))
    assert (await post(transport, url)).content == b"ok"
    assert endpoint.connections == 2


async def test_a_refused_connection_is_a_connect_error(
    transport: Transport, unused_tcp_port: int
) -> None:
    with pytest.raises(httpx.ConnectError):
        await post(transport, f"http://127.0.0.1:{unused_tcp_port}/")


async def test_a_name_that_is_not_known_is_a_connect_error(transport: Transport) -> None:
    with pytest.raises(httpx.ConnectError):
        await post(transport, "http://no-such-host.invalid/")


async def test_closing_ends_what_is_under_way(
    endpoint: Server, url: str, transport: Transport
) -> None:
    endpoint.script = [b"HTTP/1.1 200 OK\r\n"]
    call = asyncio.ensure_future(post(transport, url))
    await eventually_async(lambda: endpoint.requests)
    await transport.aclose()
    with pytest.raises(httpx.TransportError):
        await call
