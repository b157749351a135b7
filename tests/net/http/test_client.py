"""Connections that are kept alive."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from nsqtools.net.http.client import Connections, DialError
from nsqtools.net.http.wire import ClosedError, Reply, ReplyError, render
from tests.support.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.tls import Certificates

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\n"
REQUEST = render("GET", b"/", b"Host: h\r\n")


class Server:
    """Answers each request with what ``script`` says: bytes, or None to hang up."""

    def __init__(self) -> None:
        self.host, self.port = "127.0.0.1", 0
        self.script: list[bytes | None] = []
        self.connections = 0
        self.requests: list[bytes] = []
        self.closes_after_answer = False
        self.client = Connections(None, connect_timeout=30.0, max_body=1000)

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

    async def ask(self) -> Reply:
        async with asyncio.timeout(60):
            return await self.client.exchange(("http", self.host, self.port), "GET", REQUEST)

    async def answers(self, times: int = 1) -> None:
        for _ in range(times):
            reply = await self.ask()
            assert (reply.status, reply.body) == (200, b"ok")


@pytest.fixture
async def peer() -> AsyncIterator[Server]:
    peer = Server()
    listening = await asyncio.start_server(peer.serve, peer.host, 0)
    peer.port = listening.sockets[0].getsockname()[1]
    yield peer
    peer.client.close()
    listening.close()


async def test_requests_in_turn_share_a_connection_and_those_at_once_have_their_own(
    peer: Server,
) -> None:
    await peer.answers(3)
    assert peer.connections == 1
    await asyncio.gather(*(peer.ask() for _ in range(5)))
    assert peer.connections == 5


async def test_one_that_was_kept_and_closed_costs_nothing(peer: Server) -> None:
    peer.closes_after_answer = True
    await peer.answers(3)
    assert len(peer.requests) == 3


async def test_one_that_cannot_be_used_again_is_replaced(peer: Server) -> None:
    peer.script = [OK + OK]  # bytes that nobody asked for
    await peer.answers(2)
    assert (peer.connections, len(peer.requests)) == (2, 2)
    peer.script = [None, OK]  # it closes on the request, which goes out again
    await peer.answers()
    assert (peer.connections, len(peer.requests)) == (3, 4)
    peer.script = [HALF]
    call = asyncio.ensure_future(peer.ask())
    await eventually_async(lambda: len(peer.requests) == 5)
    call.cancel()
    await asyncio.wait([call])
    await peer.answers()
    assert peer.connections == 4


@pytest.mark.parametrize("kept", [0, 3])
async def test_a_request_goes_out_twice_at_most_and_once_on_a_fresh_connection(
    kept: int, peer: Server
) -> None:
    await asyncio.gather(*(peer.ask() for _ in range(kept)))
    peer.script = [None] * 9
    with pytest.raises(ClosedError):
        await peer.ask()
    assert len(peer.requests) == kept + (2 if kept else 1)


@pytest.mark.parametrize(("answer", "begun"), [(HALF, False), (OK[:-1], True)])
async def test_a_response_that_breaks_off_says_whether_its_head_came(
    answer: bytes, begun: bool, peer: Server
) -> None:
    peer.closes_after_answer = True
    peer.script = [answer]
    with pytest.raises(ReplyError) as raised:
        await peer.ask()
    assert raised.value.begun is begun
    assert len(peer.requests) == 1


@pytest.mark.usefixtures("no_such_name")
@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ("127.0.0.1", ConnectionRefusedError),
        ("a..b", UnicodeError),
        ("nowhere.test", socket.gaierror),
    ],
)
async def test_a_connection_that_cannot_be_made_says_why(
    host: str, cause: type[Exception], peer: Server, unused_tcp_port: int
) -> None:
    peer.host, peer.port = host, unused_tcp_port
    with pytest.raises(DialError) as raised:
        await peer.ask()
    assert isinstance(raised.value.__cause__, cause)


async def test_https_to_a_server_that_is_not_trusted_sends_nothing(
    certificates: Certificates, peer: Server
) -> None:
    context = certificates.server.context()
    secure = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=context)
    origin = ("https", *secure.sockets[0].getsockname())
    for trusted in (certificates.ca, certificates.other_ca):
        own = ssl.create_default_context(cafile=str(trusted))
        client = Connections(own, connect_timeout=30.0, max_body=1000)
        if trusted == certificates.ca:
            assert (await client.exchange(origin, "GET", REQUEST)).body
        else:
            with pytest.raises(DialError) as raised:
                await client.exchange(origin, "GET", REQUEST)
            assert isinstance(raised.value.__cause__, ssl.SSLCertVerificationError)
        client.close()
    assert len(peer.requests) == 1
    secure.close()
