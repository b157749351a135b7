"""Clients of the embedded nsqd, in memory and in virtual time: those that wait or do not read."""

import asyncio
import json
from random import Random
from typing import Any

from nsqtools.config.sandbox import NsqdOptions
from nsqtools.sandbox.nsqd import Nsqd
from nsqtools.sandbox.nsqd.channel import Channel
from nsqtools.sandbox.nsqd.protocol import Client
from tests.support import wire
from tests.support.clock import elapse, virtual
from tests.support.raw import sized
from tests.support.transport import FakeTransport

BIG = b"x" * (70 << 10)  # above what a transport buffers


async def turn() -> None:
    """Let everything happen that is due now."""
    for _ in range(6):
        await asyncio.sleep(0)


class Peer:
    """A connection that has sent the magic; the test is its socket."""

    def __init__(self, nsqd: Nsqd | None = None) -> None:
        self.nsqd = nsqd or Nsqd(rng=Random(1))
        self.client = Client(self.nsqd)
        self.transport = FakeTransport(self.client.link)
        self.transport.connect()
        self.transport.deliver(wire.MAGIC)

    @property
    def channel(self) -> Channel:
        assert self.client.channel
        return self.client.channel

    def send(self, *lines: str) -> None:
        """In one read."""
        self.transport.deliver("".join(f"{line}\n" for line in lines).encode())

    def identify(self, **wishes: Any) -> None:
        self.transport.deliver(b"IDENTIFY\n" + sized(json.dumps(wishes).encode()))


def hasty() -> Peer:
    """A subscriber whose heartbeats come every second."""
    peer = Peer()
    peer.identify(heartbeat_interval=1000)
    peer.send("SUB t c", "RDY 100")
    return peer


@virtual
async def test_a_read_is_answered_in_one_write() -> None:
    peer = Peer()
    peer.transport.deliver(b"PUB t\n\0\0\0\x01xPUB t\n\0\0\0\x01yNOP\nSUB t c\nRDY 9\n")
    assert peer.transport.writes == [3 * wire.OK]
    await turn()
    _, messages = peer.transport.writes
    assert len(messages) == 2 * len(wire.message(1, b"x"))


@virtual
async def test_what_was_sent_before_the_layer_changed_is_not_heard() -> None:
    peer = Peer()
    body = b'{"feature_negotiation": true, "snappy": true}'
    peer.transport.deliver(b"IDENTIFY\n" + sized(body) + b"SUB t c\n")
    assert (peer.client.channel, peer.transport.is_closing()) == (None, False)
    peer.transport.deliver(b"\x02\x01\0\0x")  # a reserved chunk
    assert peer.transport.is_closing()


@virtual
async def test_heartbeats_come_every_thirty_seconds_unless_told() -> None:
    peer = Peer()
    await elapse(31)
    assert peer.transport.take() == wire.HEARTBEAT
    await elapse(30)
    assert peer.transport.is_closing()


@virtual
async def test_a_delay_over_max_req_timeout_is_cut_to_it() -> None:
    peer = Peer(Nsqd(NsqdOptions(max_req_timeout=2.0), rng=Random(1)))
    peer.send("SUB t c", "RDY 1")
    peer.nsqd.publish("t", [b"x"])
    await turn()
    (message,) = peer.channel.in_flight.values()
    peer.send(f"REQ {message.id.decode()} 99999999999")
    await elapse(1.9)
    assert not peer.channel.in_flight
    await elapse(0.2)
    assert peer.channel.in_flight


@virtual
async def test_a_peer_that_reads_slowly_gets_no_more_messages_until_it_has_read() -> None:
    peer = hasty()
    peer.transport.stall()
    for _ in range(40):
        peer.nsqd.publish("t", [BIG])
    await turn()
    assert 1 <= len(peer.channel.in_flight) <= 5
    for _ in range(10):
        await elapse(0.9)
        peer.transport.drain(5 << 10)
        peer.send("NOP")
    peer.transport.unstall()
    await turn()
    assert len(peer.channel.in_flight) == 40


@virtual
async def test_the_commands_of_a_peer_that_does_not_read_its_answers_wait() -> None:
    peer = hasty()
    peer.transport.stall()
    pub = b"PUB other\n\0\0\0\x01x"
    for _ in range(20):
        peer.transport.deliver(pub * 1000)
    topic = peer.nsqd.broker.topics["other"]
    assert topic.message_count < 20_000
    await elapse(0.5)
    peer.transport.unstall()
    await turn()
    assert topic.message_count == 20_000
    peer.transport.stall()
    for _ in range(10):
        peer.transport.deliver(pub * 1000)
    await elapse(2.1)
    assert peer.transport.is_closing()
