"""Connections that are kept alive."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nsqtools.net.http.client import Connections, DialError
from nsqtools.net.http.wire import ClosedError, Reply, ReplyError, render
from tests.support.clock import real_loops
from tests.support.eventually import eventually_async
from tests.support.scripted_http import OneReply, serving

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\n"
REQUEST = render("GET", b"/", b"Host: h\r\n")


class Peer:
    """A client, and a server that answers requests with what ``script`` has, and then with OK."""

    def __init__(self, server: OneReply) -> None:
        self.server = server
        self.script: list[bytes] = []
        self.origin = ("http", *server.address)
        self.client = Connections(None, connect_timeout=30.0, max_body=1000)
        server.answer = self._next

    async def _next(self) -> bytes:
        return self.script.pop(0) if self.script else OK

    async def ask(self) -> Reply:
        async with asyncio.timeout(60):
            return await self.client.exchange(self.origin, "GET", REQUEST)

    async def answers(self, times: int = 1) -> None:
        for _ in range(times):
            reply = await self.ask()
            assert (reply.status, reply.body) == (200, b"ok")

    @property
    def seen(self) -> tuple[int, int]:
        """Connections and requests."""
        return self.server.connections, len(self.server.heads)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving(OK, keep=True) as server:
        peer = Peer(server)
        yield peer
        peer.client.close()


async def test_requests_in_turn_share_a_connection_and_those_at_once_have_their_own(
    peer: Peer,
) -> None:
    await peer.answers(3)
    assert peer.seen == (1, 3)
    await asyncio.gather(*(peer.ask() for _ in range(5)))
    assert peer.seen == (5, 8)


async def test_one_that_was_kept_and_closed_costs_nothing(peer: Peer) -> None:
    peer.server.keep = False
    await peer.answers(3)
    assert peer.seen == (3, 3)


async def test_one_that_cannot_be_used_again_is_replaced(peer: Peer) -> None:
    peer.script = [OK + OK]  # bytes that nobody asked for
    await peer.answers(2)
    assert peer.seen == (2, 2)
    peer.script = [b"", OK]  # it closes on the request, which goes out again
    await peer.answers()
    assert peer.seen == (3, 4)
    peer.script = [HALF]
    call = asyncio.ensure_future(peer.ask())
    await eventually_async(lambda: peer.seen == (3, 5))
    call.cancel()
    await asyncio.wait([call])
    await peer.answers()
    assert peer.seen == (4, 6)


@pytest.mark.parametrize("kept", [0, 3])
async def test_a_request_goes_out_twice_at_most_and_once_on_a_fresh_connection(
    kept: int, peer: Peer
) -> None:
    await asyncio.gather(*(peer.ask() for _ in range(kept)))
    peer.script = [b""] * 9
    with pytest.raises(ClosedError):
        await peer.ask()
    assert len(peer.server.heads) == kept + (2 if kept else 1)


@pytest.mark.parametrize(("answer", "status"), [(HALF[:-1], 0), (HALF, 200), (OK[:-1], 200)])
async def test_a_response_that_breaks_off_says_what_came_of_it(
    answer: bytes, status: int, peer: Peer
) -> None:
    peer.server.keep = False
    peer.script = [answer]
    with pytest.raises(ReplyError) as raised:
        await peer.ask()
    part = raised.value.part
    assert (part.status if part else 0) == status
    assert peer.seen == (1, 1)


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
    host: str, cause: type[Exception], peer: Peer, unused_tcp_port: int
) -> None:
    peer.origin = ("http", host, unused_tcp_port)
    with pytest.raises(DialError) as raised:
        await peer.ask()
    assert isinstance(raised.value.__cause__, cause)


@pytest.mark.parametrize("new_loop", real_loops())
@pytest.mark.parametrize("hosts", ["127.0.0.1", "::1 127.0.0.1", "192.0.2.1 127.0.0.1"])
def test_the_addresses_of_a_host_are_dialled_until_one_answers(
    hosts: str, new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens on ::1, and 192.0.2.1 is silent."""

    found = [(0, 0, 0, "", (host, 0)) for host in hosts.split()]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def dial(factory: Any, host: str, *args: Any, **options: Any) -> object:
            if host == "192.0.2.1":
                await asyncio.Event().wait()
            return await connect(factory, host, *args, **options)

        monkeypatch.setattr(loop, "create_connection", dial)
        async with serving(OK, keep=True) as server:
            client = Connections(None, connect_timeout=30.0, max_body=1000)
            origin = ("http", "somewhere.test", server.address.port)
            reply = await client.exchange(origin, "GET", REQUEST)
            assert reply.body == b"ok"
            client.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())
