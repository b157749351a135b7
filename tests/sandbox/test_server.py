"""Servers that are stopped at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from nsqtools.sandbox.nsqd import Nsqd
from nsqtools.sandbox.server import StreamServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.names import Address

TURNS = range(8)
"""Of the loop: a connection is accepted in the first, and served for good some turns later."""


async def cut(address: Address, turns: int, stop: Callable[[], Awaitable[None]]) -> None:
    """Dial, stop the server some turns later, and expect that the connection ends."""
    with socket.create_connection(address, timeout=10) as dialled:
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(stop(), 10)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(dialled.recv, 1) == b""


@pytest.mark.parametrize("turns", TURNS)
async def test_a_stopped_server_cuts_what_was_accepted_just_now(turns: int) -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    server = StreamServer(serve)
    await server.start("127.0.0.1", 0)
    await cut(server.address, turns, server.stop)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_stopped_nsqd_cuts_what_was_accepted_just_now(turns: int) -> None:
    nsqd = Nsqd()
    await nsqd.start(tcp_port=0)
    await cut(nsqd.tcp, turns, nsqd.stop)
    assert not nsqd.links
