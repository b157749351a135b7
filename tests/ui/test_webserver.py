"""The server below the pages: slow clients are cut, long answers are not."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from nsqtools.names import Address
from nsqtools.tasks import end
from nsqtools.ui import webserver
from nsqtools.ui.webserver import PageServer


async def test_a_head_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webserver, "_HEAD_TIMEOUT", 0.1)
    may_end = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def slowly() -> AsyncIterator[str]:
            yield "begun "
            await may_end.wait()
            yield "ended"

        slow = scope["path"] == "/slow"
        await (StreamingResponse(slowly()) if slow else PlainTextResponse("x"))(
            scope, receive, send
        )

    server = PageServer(Address("127.0.0.1", 0), app)
    serving = asyncio.ensure_future(server.serve())
    try:
        slow, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /slow HTTP/1.0\r\n\r\n")
        assert b"begun " in await slow.readuntil(b"begun ")
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /"):
            reader, other = await asyncio.open_connection(*server.address)
            other.write(sent)
            async with asyncio.timeout(30):
                answer = await reader.read()
            assert answer[:15] == (b"HTTP/1.1 200 OK" if b"Host" in sent else b"")
            other.close()
        may_end.set()
        assert b"ended" in await slow.read()
        writer.close()
    finally:
        await end([serving])
        server.close()


async def test_who_reads_nothing_and_connections_beyond_all_limits_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webserver, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(webserver, "_MAX_REFUSED", 0)
    cut = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def endless() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield bytes(1 << 20)
                    await asyncio.sleep(0)
            finally:
                cut.set()

        await StreamingResponse(endless())(scope, receive, send)

    server = PageServer(Address("127.0.0.1", 0), app)
    serving = asyncio.ensure_future(server.serve())
    try:
        async with asyncio.timeout(60):
            links = [await asyncio.open_connection(*server.address) for _ in range(3)]
            assert await links[2][0].read() == b""
            links[0][1].write(b"GET / HTTP/1.0\r\n\r\n")
            assert b" 503 " in await links[0][0].readline()
            for _, each in links:
                each.close()
            monkeypatch.setattr(webserver, "_HEAD_TIMEOUT", 0.1)
            while not cut.is_set():  # until the server has seen that the others are closed
                reader, writer = await asyncio.open_connection(*server.address)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                if b" 200 " in await reader.readline():
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    await cut.wait()
                writer.close()
    finally:
        await end([serving])
        server.close()
