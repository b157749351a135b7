import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import pytest

from nsqtools.names import Address
from tests.support.eventually import eventually_async
from tests.support.proxy import Faults, Proxy


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[Address]:
    """A server that returns what it gets, and ends when its client does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield Address(*server.sockets[0].getsockname())
    server.close()


@contextlib.asynccontextmanager
async def dial(
    proxy: Proxy,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*proxy.address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bytes_arrive_unchanged_in_random_pieces_and_the_end_is_passed_on() -> None:
    data = Random(1).randbytes(20_000)
    faults = Faults(splits=Random(2), delay=0.001)
    async with echo() as server, Proxy(server, [faults]) as proxy, dial(proxy) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data
        assert proxy.connections == 1
        await eventually_async(lambda: proxy.open_connections == 0)


async def test_an_abrupt_cut_lets_exactly_so_many_bytes_through_and_then_resets() -> None:
    async with echo() as server, Proxy(server, [Faults(cut_down_after=5)]) as proxy:
        async with dial(proxy) as (reader, writer):
            writer.write(b"0123456789")
            assert await reader.readexactly(5) == b"01234"
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        async with dial(proxy) as (reader, writer):  # only the first connection was to be cut
            writer.write(b"0123456789")
            assert await reader.readexactly(10) == b"0123456789"
        assert proxy.connections == 2


async def test_a_regular_cut_is_an_end_of_stream() -> None:
    faults = Faults(cut_up_after=5, cut="fin")
    async with echo() as server, Proxy(server, [faults]) as proxy, dial(proxy) as (reader, writer):
        writer.write(b"0123456789")
        assert await reader.read(-1) in (b"01234", b"")  # its echo may come after the cut
        writer.close()
        await eventually_async(lambda: proxy.open_connections == 0)


async def test_silence_keeps_connections_open_and_resuming_loses_nothing() -> None:
    async with echo() as server, Proxy(server) as proxy, dial(proxy) as (reader, writer):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.silence()
        writer.write(b"during")
        read = asyncio.create_task(reader.readexactly(6))
        done, _ = await asyncio.wait([read], timeout=0.05)
        assert not done
        proxy.resume()
        assert await read == b"during"


@pytest.mark.parametrize("silent", [False, True])
async def test_cut_now_ends_all_connections_even_silent_ones(silent: bool) -> None:
    async with echo() as server, Proxy(server) as proxy, dial(proxy) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        if silent:
            proxy.silence()
            writer.write(b"y")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_refuse_leaves_open_connections_alone_and_listen_accepts_again() -> None:
    async with echo() as server, Proxy(server) as proxy, dial(proxy) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*proxy.address)
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        await proxy.listen()
        async with dial(proxy) as (reader, writer):
            writer.write(b"z")
            assert await reader.readexactly(1) == b"z"


async def test_a_server_that_is_away_resets_the_client() -> None:
    async with echo() as server:
        pass
    async with Proxy(server) as proxy, dial(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
