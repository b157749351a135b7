"""How the embedded nsqd keeps nsqlookupds told that hang, misbehave or are not there yet."""

import asyncio
import gc
import logging
import struct
from collections.abc import AsyncIterator

import pytest

from nsqtools.names import Address
from nsqtools.net.tcp import StreamServer
from nsqtools.sandbox import Sandbox
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd, lookup_peer
from nsqtools.sandbox.nsqd.lookup_peer import LookupPeer
from tests.support.eventually import eventually_async
from tests.support.servers import server_socket

IDENTITY = {
    "version": "1.3.0",
    "tcp_port": 4150,
    "http_port": 4151,
    "hostname": "h",
    "broadcast_address": "1.2.3.4",
}
INFO = b'{"broadcast_address":"127.0.0.1","http_port":1,"tcp_port":2,"version":"1.3.0"}'


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_peer, "RETRY_DELAYS", (0.01,))


@pytest.fixture
async def lookupd() -> AsyncIterator[Nsqlookupd]:
    running = Nsqlookupd()
    await running.start("127.0.0.1", 0, 0)
    yield running
    await running.stop()


async def test_one_nsqlookupd_that_hangs_does_not_keep_the_other_from_knowing(
    lookupd: Nsqlookupd,
) -> None:
    nsqd = Nsqd()
    with server_socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        addresses = [Address(*hung.getsockname()), lookupd.tcp]
        await nsqd.start("127.0.0.1", 0, 0, lookupd_tcp_addresses=addresses)
        nsqd.broker.topic("t").channel("c")
        await eventually_async(lambda: lookupd.registry.channels("t") == ["c"])
        lookupd.registry.create("u", "d")
        nsqd.broker.topic("u")
        await nsqd.looked_up("u")
        assert list(nsqd.broker.topics["u"].channels) == ["d"]
        await nsqd.stop()


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


@pytest.mark.parametrize("turns", range(6))
async def test_what_changes_while_a_change_is_told_is_told_too_and_then_pings(
    turns: int, lookupd: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = LookupPeer(lookupd.tcp, lambda: IDENTITY, list[tuple[str, str]])
    peer.start()
    await asyncio.wait_for(peer.settled(), 60)
    peer.tell("REGISTER", "a", "")
    for _ in range(turns):
        await asyncio.sleep(0)
    peer.tell("REGISTER", "b", "c")
    peer.tell("UNREGISTER", "a", "")
    monkeypatch.setattr(lookup_peer, "PING_INTERVAL", 0.001)
    await asyncio.wait_for(peer.settled(), 60)
    ((known, topics),) = lookupd.registry.nodes(lookupd.now)
    assert (list(topics), lookupd.registry.channels("b")) == (["b"], ["c"])
    registered = known.last_update
    await eventually_async(lambda: known.last_update > registered)
    await peer.stop()


@pytest.mark.parametrize(
    ("identified", "registered", "said"),
    [
        *((bad, b"OK", "") for bad in (b"", b"OK", b"[]", b'{"http_port":"x"}')),
        (b"E_INVALID no", b"OK", "E_INVALID no"),
        (INFO, b"", ""),
        (INFO, b"E_BAD_TOPIC REGISTER no", "E_BAD_TOPIC REGISTER no"),
    ],
)
async def test_a_bad_answer_is_one_warning_and_another_try(
    identified: bytes, registered: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for end, reply in ((b"}", identified), (b"REGISTER t\n", registered)):
            await reader.readuntil(end)
            if not reply:
                return  # and hang up
            writer.write(struct.pack(">i", len(reply)) + reply)
        await reader.read()

    server = StreamServer(serve)
    await server.start("127.0.0.1", 0)
    peer = LookupPeer(server.address, lambda: IDENTITY, lambda: [("t", "")])
    peer.start()
    await eventually_async(lambda: connections > 3)
    await peer.stop()
    await server.stop()
    (line,) = (each.message for each in caplog.records if each.levelno >= logging.WARNING)
    assert str(server.address) in line
    assert said in line
