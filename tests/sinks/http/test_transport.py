"""Connections to endpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.sinks.http.transport import Transport
from tests.support.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\n"


class Endpoint:
    """Answers each request with what ``script`` says: bytes, or None to hang up."""

    def __init__(self) -> None:
        self.url = ""
        self.script: list[bytes | None] = []
        self.connections = 0
        self.requests: list[bytes] = []
        self.closes_after_answer = False
        self.transport = Transport(None, connect_timeout=30.0)

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

    async def post(self, url: str = "") -> httpx.Response:
        request = httpx.Request("GET", url or self.url)
        async with asyncio.timeout(60):
            response = await self.transport.handle_async_request(request)
            await response.aread()
            return response

    async def delivers(self, times: int = 1) -> None:
        for _ in range(times):
            response = await self.post()
            assert (response.status_code, response.content) == (200, b"ok")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    listening = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    endpoint.url = f"http://{host}:{port}/"
    yield endpoint
    await endpoint.transport.aclose()
    listening.close()


class TestConnections:
    async def test_requests_at_the_same_time_have_their_own(self, endpoint: Endpoint) -> None:
        await asyncio.gather(*(endpoint.post() for _ in range(5)))
        assert endpoint.connections == 5

    async def test_one_that_was_kept_and_closed_costs_nothing(self, endpoint: Endpoint) -> None:
        endpoint.closes_after_answer = True
        await endpoint.delivers(3)
        assert len(endpoint.requests) == 3

    async def test_one_that_was_kept_and_closes_on_the_request_makes_it_go_out_again(
        self, endpoint: Endpoint
    ) -> None:
        await endpoint.delivers()
        endpoint.script = [None, OK]
        await endpoint.delivers()
        assert (endpoint.connections, len(endpoint.requests)) == (2, 3)

    async def test_bytes_that_nobody_asked_for_end_it(self, endpoint: Endpoint) -> None:
        endpoint.script = [OK + OK]
        await endpoint.delivers(2)
        assert endpoint.connections == 2

    async def test_a_request_that_is_given_up_gives_it_up(self, endpoint: Endpoint) -> None:
        endpoint.script = [HALF]
        call = asyncio.ensure_future(endpoint.post())
        await eventually_async(lambda: endpoint.requests)
        call.cancel()
        await asyncio.wait([call])
        await endpoint.delivers()
        assert endpoint.connections == 2


class TestErrors:
    @pytest.mark.parametrize("kept", [0, 3])
    async def test_a_request_goes_out_twice_at_most_and_once_on_a_fresh_connection(
        self, kept: int, endpoint: Endpoint
    ) -> None:
        await asyncio.gather(*(endpoint.post() for _ in range(kept)))
        endpoint.script = [None] * 9
        with pytest.raises(httpx.ReadError, match="without a response"):
            await endpoint.post()
        assert len(endpoint.requests) == kept + (2 if kept else 1)

    async def test_a_refused_connection_is_a_connect_error(
        self, endpoint: Endpoint, unused_tcp_port: int
    ) -> None:
        with pytest.raises(httpx.ConnectError):
            await endpoint.post(f"http://127.0.0.1:{unused_tcp_port}/")
