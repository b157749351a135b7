"""TLS below the HTTP server: what is carried, and what a client is told that cannot come in."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from random import Random
from typing import TYPE_CHECKING

import pytest

from nsqtools.sandbox import https
from nsqtools.sandbox.http import Request, Response, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsqtools.sandbox.server import StreamServer
    from tests.support.tls import Certificates


async def echo(request: Request) -> Response:
    return Response(200, request.body)


@contextlib.asynccontextmanager
async def serving(certificates: Certificates, *, demanding: bool) -> AsyncIterator[StreamServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates.ca))
    context.load_cert_chain(certificates.server.cert, certificates.server.key)
    if demanding:
        context.verify_mode = ssl.CERT_REQUIRED
    server = await serve(echo, "127.0.0.1", 0, context)
    try:
        yield server
    finally:
        await server.stop()


def client_context(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


async def test_bodies_pass_both_ways_and_the_connection_is_kept(certificates: Certificates) -> None:
    context = client_context(certificates)
    async with serving(certificates, demanding=False) as server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(
            *server.address, ssl=context, server_hostname="localhost"
        )
        for size in (0, 1, 65_536, 1_000_000):
            body = Random(size).randbytes(size)
            head = f"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode()
            writer.write(head + body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(size) == body
        writer.transport.abort()


async def test_a_client_without_the_certificate_it_needs_is_told_so(
    certificates: Certificates,
) -> None:
    context = client_context(certificates)
    async with serving(certificates, demanding=True) as server, asyncio.timeout(20):
        reader, _ = await asyncio.open_connection(
            *server.address, ssl=context, server_hostname="localhost"
        )
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await reader.read()


@pytest.mark.parametrize("greeting", [b"\x16\x03\x01\x00\x04oops", b"  V2", b""])
async def test_a_client_that_speaks_nothing_known_is_hung_up_on(
    greeting: bytes, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "HANDSHAKE_TIMEOUT", 0.05)
    async with serving(certificates, demanding=False) as server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(greeting)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await reader.read()
        writer.transport.abort()
