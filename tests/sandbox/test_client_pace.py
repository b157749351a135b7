"""Heartbeats and peers that do not read, in memory and in virtual time."""

from __future__ import annotations

from tests.support.clock import elapse, virtual
from tests.support.peer import Peer, make_nsqd, turn

BIG = b"x" * (70 << 10)  # above what a transport buffers


@virtual
async def test_heartbeats_come_every_interval_and_two_without_a_command_are_the_end() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=1000)
    await elapse(0.99)
    assert peer.texts() == ["OK"]
    await elapse(0.5)
    assert peer.texts() == ["_heartbeat_"]
    peer.send("NOP")
    await elapse(1.9)
    assert not peer.closed
    await elapse(0.2)
    assert (peer.texts(), peer.closed) == (["_heartbeat_"] * 2, True)


@virtual
async def test_a_client_that_says_nothing_of_heartbeats_has_thirty_seconds() -> None:
    peer = Peer(make_nsqd())
    await elapse(31)
    assert peer.texts() == ["_heartbeat_"]
    await elapse(30)
    assert peer.closed


@virtual
async def test_without_heartbeats_a_silent_client_stays_but_may_not_subscribe() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=-1)
    await elapse(3600)
    assert peer.texts() == ["OK"]
    peer.send("SUB t c")
    assert peer.texts() == ["E_INVALID cannot SUB with heartbeats disabled"]


@virtual
async def test_a_body_that_trickles_in_does_not_count_as_a_command() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=1000)
    peer.send("PUB t")
    for _ in range(5):
        await elapse(0.5)
        peer.transport.deliver(b"\0")
    assert peer.closed


@virtual
async def test_a_peer_that_reads_nothing_gets_no_more_messages() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=1000)
    peer.send("SUB t c", "RDY 100")
    peer.transport.stall()
    for _ in range(40):
        peer.nsqd.publish("t", [BIG])
    await turn()
    held = peer.channel.in_flight_count
    assert 1 <= held <= 5
    peer.transport.unstall()
    await turn()
    assert peer.channel.in_flight_count == 40


@virtual
async def test_a_peer_that_reads_nothing_for_an_interval_is_listed_but_never_served_again() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=1000)
    peer.send("SUB t c", "RDY 100")
    peer.transport.stall()
    peer.nsqd.publish("t", [BIG])
    await elapse(0.9)
    peer.send("NOP")
    await elapse(0.3)
    peer.transport.unstall()
    peer.nsqd.publish("t", [b"later"])
    peer.frames()
    for _ in range(10):
        await elapse(1)
        peer.send("NOP")
    assert (peer.texts(), peer.closed) == ([], False)
    assert peer.client in peer.nsqd.clients
    peer.send("FIN zzzzzzzzzzzzzzzz")
    assert peer.closed


@virtual
async def test_a_peer_that_reads_slowly_is_served_in_the_end() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=1000)
    peer.send("SUB t c", "RDY 100")
    peer.transport.stall()
    peer.nsqd.publish("t", [BIG])
    for _ in range(10):
        await elapse(0.9)
        peer.transport.drain(5 << 10)
        peer.send("NOP")
    peer.transport.unstall()
    peer.nsqd.publish("t", [b"later"])
    await turn()
    assert peer.texts()[-1] == "msg later"


@virtual
async def test_the_commands_of_a_peer_that_does_not_read_its_answers_wait() -> None:
    peer = Peer(make_nsqd())
    peer.identify(heartbeat_interval=1000)
    peer.transport.stall()
    pub = b"PUB t\n\0\0\0\x01x"
    for _ in range(20):
        peer.transport.deliver(pub * 1000)
    count = peer.nsqd.broker.topics["t"].message_count
    assert count < 20_000
    await elapse(0.5)
    peer.transport.unstall()
    await turn()
    assert peer.nsqd.broker.topics["t"].message_count == 20_000
    peer.transport.stall()
    for _ in range(10):
        peer.transport.deliver(pub * 1000)
    await elapse(1.1)
    assert peer.closed


@virtual
async def test_what_was_to_be_said_has_five_seconds_to_leave() -> None:
    peer = Peer(make_nsqd())
    peer.transport.stall()
    peer.send("WHAT")
    assert peer.closed
    await elapse(4.9)
    assert not peer.transport.aborted
    await elapse(0.2)
    assert peer.transport.aborted
