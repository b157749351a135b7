"""How the embedded nsqd keeps nsqlookupds told that hang, misbehave or are not there yet."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

from nsqtools.net.tcp import StreamServer
from nsqtools.sandbox import Sandbox
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd, lookup_peer
from nsqtools.sandbox.nsqd.lookup_peer import LookupPeer
from tests.support.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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


async def agreeable(line: bytes) -> bytes | None:
    info = b'{"broadcast_address":"127.0.0.1","http_port":1,"tcp_port":2,"version":"1.3.0"}'
    return info if line.startswith(b"IDENTIFY") else b"OK"


class Scripted:
    """An nsqlookupd whose replies to lines ``answer`` gives; None hangs up."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes | None]] = agreeable) -> None:
        self.connections = 0
        self.commands: list[bytes] = []
        self._answer = answer
        self._server = StreamServer(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(EOFError, OSError):
            assert await reader.readexactly(4) == b"  V1"
            while line := await reader.readline():
                if line == b"IDENTIFY\n":
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    line += await reader.readexactly(size)
                self.commands.append(line)
                if (reply := await self._answer(line)) is None:
                    break
                writer.write(struct.pack(">i", len(reply)) + reply)

    async def __aenter__(self) -> Self:
        await self._server.start("127.0.0.1", 0)
        self.address = self._server.address
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()


async def test_one_nsqlookupd_that_hangs_does_not_keep_the_other_from_knowing() -> None:
    good, nsqd = Nsqlookupd(), Nsqd()
    await good.start("127.0.0.1", 0, 0)
    async with Scripted(lambda _: asyncio.get_running_loop().create_future()) as hung:
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
    async with Sandbox() as sandbox:
        nsqd = sandbox.nsqd
        nsqd.publish("t", [b"x"])
        nsqd.broker.delete_topic("t")
        nsqd.publish("u", [b"x"])
        assert nsqd.broker.topics["u"].held
        await nsqd.settled()
        await eventually_async(lambda: not nsqd.broker.topics["u"].held)
        assert list(nsqd.broker.topics) == ["u"]
        gc.collect()
        assert not caplog.records


async def test_a_quiet_connection_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_peer, "PING_INTERVAL", 0.001)
    async with Scripted() as server:
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

    async with Scripted(slow) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, list[tuple[str, str]])
        peer.start()
        await asyncio.wait_for(peer.settled(), 60)
        peer.tell("REGISTER", "a", "")
        await eventually_async(lambda: b"REGISTER a\n" in server.commands)
        peer.tell("REGISTER", "b", "c")
        peer.tell("UNREGISTER", "a", "")
        gate.set()
        await asyncio.wait_for(peer.settled(), 60)
        await peer.stop()
    assert server.commands[1:] == [b"REGISTER a\n", b"REGISTER b c\n", b"UNREGISTER a\n"]


@pytest.mark.parametrize(
    ("to", "reply"),
    [
        *((b"IDENTIFY", bad) for bad in (None, b"OK", b"[]", b'{"http_port":"x"}', b"E_INVALID")),
        (b"REGISTER", b"E_BAD_TOPIC REGISTER no"),
        (b"REGISTER", None),
    ],
)
async def test_a_bad_answer_is_one_warning_and_another_try(
    to: bytes, reply: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad(line: bytes) -> bytes | None:
        return reply if line.startswith(to) else await agreeable(line)

    async with Scripted(bad) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, lambda: [("t", "")])
        peer.start()
        await eventually_async(lambda: server.connections > 3)
        await peer.stop()
    (line,) = (each.message for each in caplog.records if each.levelno >= logging.WARNING)
    assert str(server.address) in line
    if reply and reply.startswith(b"E_"):
        assert reply.decode() in line
