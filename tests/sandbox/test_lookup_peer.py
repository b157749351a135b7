"""How the embedded nsqd keeps nsqlookupds told that hang, misbehave or are not there yet."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nsqtools.names import Address
from nsqtools.net.tcp import close
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd, lookup_peer
from nsqtools.sandbox.nsqd.lookup_peer import LookupPeer
from tests.support.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

IDENTITY = {
    "version": "1.3.0",
    "tcp_port": 4150,
    "http_port": 4151,
    "hostname": "h",
    "broadcast_address": "1.2.3.4",
}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_peer, "RETRY_DELAYS", (0.01,))


@asynccontextmanager
async def running(*lookupds: Nsqlookupd) -> AsyncIterator[Nsqd]:
    """An nsqd that knows the nsqlookupds, and those; all are stopped."""
    nsqd = Nsqd()
    for each in lookupds:
        await each.start("127.0.0.1", 0, 0)
    addresses = [each.tcp for each in lookupds]
    await nsqd.start("127.0.0.1", 0, 0, lookupd_tcp_addresses=addresses)
    try:
        yield nsqd
    finally:
        await nsqd.stop()
        for each in lookupds:
            await each.stop()


async def test_one_nsqlookupd_that_hangs_does_not_keep_the_other_from_knowing() -> None:
    good = Nsqlookupd()
    await good.start("127.0.0.1", 0, 0)
    async with scripted(lambda _: asyncio.get_running_loop().create_future()) as hung:
        nsqd = Nsqd()
        await nsqd.start("127.0.0.1", 0, 0, lookupd_tcp_addresses=[hung.address, good.tcp])
        nsqd.broker.topic("t").channel("c")
        await eventually_async(lambda: good.registry.channels("t") == ["c"])
        good.registry.create("u", "d")
        nsqd.broker.topic("u")
        await nsqd.looked_up("u")
        assert list(nsqd.broker.topics["u"].channels) == ["d"]
        await nsqd.stop()
    await good.stop()


async def test_a_topic_deleted_while_its_channels_are_looked_up_stays_deleted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Nsqlookupd()) as nsqd:
        await nsqd.settled()
        nsqd.publish("t", [b"x"])
        nsqd.broker.delete_topic("t")
        nsqd.publish("u", [b"x"])
        assert nsqd.broker.topics["u"].held
        await nsqd.settled()
        await eventually_async(lambda: not nsqd.broker.topics["u"].held)
        assert list(nsqd.broker.topics) == ["u"]
        gc.collect()
        assert not caplog.records


class Scripted:
    """An nsqlookupd of the test: ``commands`` are those it got, over all connections."""

    def __init__(self) -> None:
        self.address = Address("", 0)
        self.connections = 0
        self.commands: list[bytes] = []


@asynccontextmanager
async def scripted(answer: Callable[[bytes], Awaitable[bytes | None]]) -> AsyncIterator[Scripted]:
    """``answer`` gives the reply to a line, or None to hang up."""
    state = Scripted()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        try:
            assert await reader.readexactly(4) == b"  V1"
            while line := await reader.readline():
                if line == b"IDENTIFY\n":
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    line += await reader.readexactly(size)
                state.commands.append(line)
                if (reply := await answer(line)) is None:
                    break
                writer.write(struct.pack(">i", len(reply)) + reply)
        except (EOFError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    state.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield state
    finally:
        await close(server)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        serving = [task for task in others if "serve" in repr(task.get_coro())]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def agreeable(line: bytes) -> bytes | None:
    info = b'{"broadcast_address":"127.0.0.1","http_port":1,"tcp_port":2,"version":"1.3.0"}'
    return info if line.startswith(b"IDENTIFY") else b"OK"


async def test_a_quiet_connection_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_peer, "PING_INTERVAL", 0.001)
    async with scripted(agreeable) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, list[tuple[str, str]])
        peer.start()
        await eventually_async(lambda: server.commands.count(b"PING\n") > 3)
        assert server.connections == 1
        await peer.stop()


async def test_what_changes_while_a_change_is_told_is_told_too() -> None:
    gate = asyncio.Event()

    async def slow(line: bytes) -> bytes | None:
        if line == b"REGISTER a\n":
            await gate.wait()
        return await agreeable(line)

    async with scripted(slow) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, list[tuple[str, str]])
        peer.start()
        await asyncio.wait_for(peer.settled(), 60)
        peer.tell("REGISTER", "a", "")
        await eventually_async(lambda: b"REGISTER a\n" in server.commands)
        peer.tell("REGISTER", "b", "c")
        peer.tell("UNREGISTER", "a", "")
        waiting = asyncio.create_task(peer.settled())
        gate.set()
        await asyncio.wait_for(waiting, 60)
        await peer.stop()
        told = [line for line in server.commands if line.split()[0].endswith(b"REGISTER")]
        assert told == [b"REGISTER a\n", b"REGISTER b c\n", b"UNREGISTER a\n"]


@pytest.mark.parametrize(
    ("to", "reply"),
    [
        (b"IDENTIFY", None),
        (b"IDENTIFY", b"OK"),
        (b"IDENTIFY", b"[]"),
        (b"IDENTIFY", b'{"http_port":"x"}'),
        (b"IDENTIFY", b"E_INVALID"),
        (b"REGISTER", b"E_BAD_TOPIC REGISTER no"),
        (b"REGISTER", None),
    ],
)
async def test_a_bad_answer_is_one_warning_and_another_try(
    to: bytes, reply: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad(line: bytes) -> bytes | None:
        return reply if line.startswith(to) else await agreeable(line)

    async with scripted(bad) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, lambda: [("t", "")])
        peer.start()
        await eventually_async(lambda: server.connections > 3)
        await peer.stop()
    (line,) = (each.message for each in caplog.records if each.levelno >= logging.WARNING)
    assert str(server.address) in line
    if reply and reply.startswith(b"E_"):
        assert reply.decode() in line
