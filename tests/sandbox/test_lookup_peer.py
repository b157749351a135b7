"""How the embedded nsqd keeps nsqlookupds told: real ones, and scripted ones that misbehave."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.names import Address
from nsqtools.sandbox import lookup_peer, lookupd
from nsqtools.sandbox.http import get
from nsqtools.sandbox.lookup_peer import LookupPeer, LookupPeers
from nsqtools.sandbox.nsqd import Nsqd
from tests.support import servers
from tests.support.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Names = list[tuple[str, str]]

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


@pytest.fixture(params=["sandbox", "nsqlookupd"])
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """An nsqlookupd, with ``tcp`` and ``http``."""
    if request.param == "nsqlookupd":
        with servers.Nsqlookupd(tmp_path / "nsqlookupd") as real:
            yield real
    else:
        ours = lookupd.Nsqlookupd(broadcast_address="127.0.0.1")
        await ours.start("127.0.0.1", 0, 0)
        yield ours
        await ours.stop()


async def ask(home: Any, target: str) -> Any:
    return json.loads((await get(home.http, target, timeout=10))[1])


async def known(home: Any) -> dict[str, tuple[list[str], int]]:
    """Topics, each with its channels and the number of its producers."""
    found = {}
    for topic in (await ask(home, "/topics"))["topics"]:
        looked_up = await ask(home, f"/lookup?topic={topic}")
        found[topic] = sorted(looked_up["channels"]), len(looked_up["producers"])
    return found


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    predicate: Callable[[], object] = check
    await eventually_async(predicate)


@asynccontextmanager
async def nsqd_of(*lookupds: Any) -> AsyncIterator[Nsqd]:
    nsqd = Nsqd()
    addresses = [each.tcp for each in lookupds]
    await nsqd.start("127.0.0.1", 0, 0, lookupd_tcp_addresses=addresses)
    try:
        yield nsqd
    finally:
        await nsqd.stop()


async def settled(nsqd: Nsqd) -> None:
    await asyncio.wait_for(nsqd.lookupds.settled(), 10)


async def test_an_nsqd_announces_itself_and_what_it_has(home: Any) -> None:
    async with nsqd_of(home) as nsqd:
        await settled(nsqd)
        (node,) = (await ask(home, "/nodes"))["producers"]
        assert (node["broadcast_address"], node["tcp_port"]) == nsqd.tcp
        assert (node["http_port"], node["version"]) == (nsqd.http.port, "1.3.0")
        nsqd.publish("t", [b"x"])
        await settled(nsqd)
        assert await known(home) == {"t": ([], 1)}
        nsqd.broker.topic("t").channel("c")
        nsqd.broker.topic("u").channel("d#ephemeral")
        await settled(nsqd)
        assert await known(home) == {"t": (["c"], 1), "u": (["d#ephemeral"], 1)}
        nsqd.broker.topic("u").delete_channel("d#ephemeral")
        nsqd.broker.delete_topic("t")
        await settled(nsqd)
        assert await known(home) == {"t": (["c"], 0), "u": ([], 1)}

    async def withdrawn() -> bool:
        return (await known(home))["u"] == ([], 0)

    await until(withdrawn)


async def test_a_new_topic_gets_the_channels_that_nsqlookupd_knows(home: Any) -> None:
    async with nsqd_of(home) as first, nsqd_of(home) as second:
        await settled(first)
        await settled(second)
        first.broker.topic("t").channel("c")
        first.broker.topic("t").channel("d")
        first.broker.topic("t").channel("e#ephemeral")
        await settled(first)
        second.publish("t", [b"x"])
        topic = second.broker.topics["t"]

        def arrived() -> bool:
            return {name: each.depth for name, each in topic.channels.items()} == {"c": 1, "d": 1}

        await eventually_async(arrived)


async def test_everything_is_announced_again_after_nsqlookupd_was_away(tmp_path: Path) -> None:
    with servers.Nsqlookupd(tmp_path / "nsqlookupd") as home:
        async with nsqd_of(home) as nsqd:
            nsqd.broker.topic("t").channel("c")
            nsqd.broker.topic("gone")
            await settled(nsqd)
            home.stop()
            await eventually_async(lambda: not nsqd.lookupds.known_homes())
            nsqd.broker.delete_topic("gone")
            nsqd.broker.topic("made-meanwhile")
            home.start()
            await settled(nsqd)
            assert await known(home) == {"t": (["c"], 1), "made-meanwhile": ([], 1)}


async def test_an_nsqlookupd_that_is_not_there_yet_is_found_later() -> None:
    server = lookupd.Nsqlookupd()
    await server.start("127.0.0.1", 0, 0)
    await server.stop()
    async with nsqd_of(server) as nsqd:
        nsqd.publish("t", [b"x"])
        assert nsqd.broker.topics["t"].depth == 1
        later = lookupd.Nsqlookupd()
        await later.start("127.0.0.1", server.tcp.port, 0)
        await settled(nsqd)
        assert await known(later) == {"t": ([], 1)}
        await later.stop()


async def test_one_nsqlookupd_that_hangs_does_not_keep_the_other_from_knowing() -> None:
    async with scripted(lambda _: asyncio.get_running_loop().create_future()) as hung:
        good = lookupd.Nsqlookupd(broadcast_address="127.0.0.1")
        await good.start("127.0.0.1", 0, 0)
        peers = LookupPeers(lambda: IDENTITY, lambda: [("t", "c")])
        await peers.set_addresses([hung.address, good.tcp])

        async def told() -> bool:
            return await known(good) == {"t": (["c"], 1)}

        await until(told)
        assert await peers.channels("t") == ["c"]
        await peers.stop()
        await good.stop()


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
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        serving = [task for task in others if "serve" in repr(task.get_coro())]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def agreeable(line: bytes) -> bytes | None:
    info = b'{"broadcast_address":"127.0.0.1","http_port":1,"tcp_port":2,"version":"1.3.0"}'
    return info if line.startswith(b"IDENTIFY") else b"OK"


async def test_identify_has_nsqds_fields_in_its_order() -> None:
    async with scripted(agreeable) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, lambda: [("t", ""), ("u", "c")])
        peer.start()
        await asyncio.wait_for(peer.settled(), 10)
        await peer.stop()
        assert peer.http == Address("127.0.0.1", 1)
        assert server.commands[0] == (
            b'IDENTIFY\n{"broadcast_address":"1.2.3.4","hostname":"h","http_port":4151,'
            b'"tcp_port":4150,"version":"1.3.0"}'
        )
        assert server.commands[1:3] == [b"REGISTER t\n", b"REGISTER u c\n"]


async def test_a_quiet_connection_is_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lookup_peer.PING_INTERVAL == 15.0
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
        await asyncio.wait_for(peer.settled(), 10)
        peer.register("a")
        await eventually_async(lambda: b"REGISTER a\n" in server.commands)
        peer.register("b", "c")
        peer.unregister("a")
        waiting = asyncio.create_task(peer.settled())
        gate.set()
        await asyncio.wait_for(waiting, 10)
        await peer.stop()
        told = [line for line in server.commands if line.split()[0].endswith(b"REGISTER")]
        assert told == [b"REGISTER a\n", b"REGISTER b c\n", b"UNREGISTER a\n"]


@pytest.mark.parametrize(
    ("to", "reply", "says"),
    [
        (b"IDENTIFY", None, "it closed the connection"),
        (b"IDENTIFY", b"OK", "IDENTIFY was answered b'OK'"),
        (b"IDENTIFY", b"[]", "IDENTIFY was answered b'[]'"),
        (b"IDENTIFY", b'{"http_port":"x"}', "IDENTIFY was answered"),
        (b"IDENTIFY", b"E_INVALID", "E_INVALID"),
        (b"REGISTER", b"E_BAD_TOPIC REGISTER no", "E_BAD_TOPIC REGISTER no"),
        (b"REGISTER", None, "it closed the connection"),
    ],
)
async def test_a_bad_answer_is_one_warning_and_another_try(
    to: bytes, reply: bytes | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad(line: bytes) -> bytes | None:
        return reply if line.startswith(to) else await agreeable(line)

    async with scripted(bad) as server:
        peer = LookupPeer(server.address, lambda: IDENTITY, lambda: [("t", "")])
        peer.start()
        await eventually_async(lambda: server.connections > 3)
        await peer.stop()
    lines = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(lines) == 1, lines
    assert f"{server.address}: nsqlookupd: " in lines[0]
    assert says in lines[0]
