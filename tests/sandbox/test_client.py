"""One client of the embedded nsqd, in memory and in virtual time."""

from __future__ import annotations

import zlib

import snappy

from tests.support.clock import elapse, virtual
from tests.support.peer import Peer, make_nsqd, turn
from tests.support.raw import mpub


@virtual
async def test_the_magic_may_come_in_pieces() -> None:
    peer = Peer(make_nsqd(), b"  ")
    peer.transport.deliver(b"V")
    assert not peer.nsqd.clients
    peer.transport.deliver(b"2CLS\n")
    assert peer.texts() == ["E_INVALID cannot CLS in current state"]


@virtual
async def test_another_magic_is_refused() -> None:
    peer = Peer(make_nsqd(), b"GET / HTTP/1.1\r\n\r\n")
    assert (peer.texts(), peer.closed) == (["E_BAD_PROTOCOL"], True)
    assert not peer.nsqd.clients


@virtual
async def test_a_read_is_answered_in_one_write() -> None:
    peer = Peer(make_nsqd())
    peer.transport.deliver(b"PUB t\n\0\0\0\x01xPUB t\n\0\0\0\x01yNOP\nSUB t c\nRDY 9\n")
    assert len(peer.transport.writes) == 1
    await turn()
    assert len(peer.transport.writes) == 2
    assert peer.texts() == ["OK", "OK", "OK", "msg x", "msg y"]


@virtual
async def test_the_commands_before_a_fatal_one_are_carried_out_and_none_behind_it() -> None:
    peer = Peer(make_nsqd())
    peer.transport.deliver(b"PUB t\n\0\0\0\x01xWHAT\nPUB t\n\0\0\0\x01y")
    await turn()
    assert peer.texts() == ["OK", "E_INVALID invalid command WHAT"]
    assert (peer.closed, peer.nsqd.broker.topics["t"].message_count) == (True, 1)
    assert not peer.nsqd.clients


@virtual
async def test_a_line_that_may_not_be_said_is_refused_before_its_body_has_come() -> None:
    peer = Peer(make_nsqd())
    peer.send("SUB t c", "AUTH")
    assert peer.texts() == ["OK", "E_INVALID cannot AUTH in current state"]


@virtual
async def test_an_mpub_makes_its_topic_before_its_body_has_come_and_a_pub_does_not() -> None:
    peer = Peer(make_nsqd())
    peer.send("MPUB one")
    assert list(peer.nsqd.broker.topics) == ["one"]
    other = Peer(make_nsqd())
    other.send("PUB two")
    assert not other.nsqd.broker.topics


@virtual
async def test_errors_of_fin_req_and_touch_do_not_end_the_connection() -> None:
    peer = Peer(make_nsqd())
    id_ = "0123456789abcdef"
    peer.send("SUB t c", f"FIN {id_}", f"REQ {id_} 0", f"TOUCH {id_}", "NOP")
    assert peer.texts() == ["OK"] + [
        f"E_{verb}_FAILED {verb} {id_} failed ID not in flight" for verb in ("FIN", "REQ", "TOUCH")
    ]
    assert not peer.closed


@virtual
async def test_messages_time_out_by_the_clients_own_setting() -> None:
    peer = Peer(make_nsqd())
    peer.identify(msg_timeout=2000)
    peer.send("SUB t c", "RDY 1")
    peer.nsqd.publish("t", [b"x"])
    await elapse(1.9)
    assert peer.texts() == ["OK", "OK", "msg x"]
    await elapse(0.2)
    assert peer.texts() == ["msg x"]
    assert peer.channel.timeout_count == 1


@virtual
async def test_a_requeue_is_cut_to_the_longest_delay() -> None:
    peer = Peer(make_nsqd(max_req_timeout=5.0))
    peer.send("SUB t c", "RDY 1")
    peer.nsqd.publish("t", [b"x"])
    await turn()
    (id_,) = peer.ids()
    peer.send(f"REQ {id_} 99999999")
    await elapse(4.9)
    assert peer.texts() == []
    await elapse(0.2)
    assert peer.texts() == ["msg x"]


@virtual
async def test_a_huge_requeue_delay_wraps_to_none_as_in_64_bits() -> None:
    peer = Peer(make_nsqd())
    peer.send("SUB t c", "RDY 1")
    peer.nsqd.publish("t", [b"x"])
    await turn()
    (id_,) = peer.ids()
    peer.send(f"REQ {id_} {2**63 - 1}")
    await turn()
    assert peer.texts() == ["msg x"]


@virtual
async def test_nothing_is_delivered_after_cls_and_what_is_in_flight_may_be_settled() -> None:
    peer = Peer(make_nsqd())
    peer.send("SUB t c", "RDY 2")
    peer.nsqd.publish("t", [b"1", b"2", b"3"])
    await turn()
    one, two = peer.ids()
    peer.send("CLS", f"FIN {one}", f"REQ {two} 0", "RDY 5")
    await turn()
    assert peer.texts() == ["CLOSE_WAIT"]
    assert (peer.channel.depth, peer.channel.in_flight_count) == (2, 0)
    assert peer.client.stats("")["state"] == 4
    peer.send("CLS")
    assert (peer.texts(), peer.closed) == (["E_INVALID cannot CLS in current state"], True)


@virtual
async def test_a_subscriber_over_the_limit_is_refused() -> None:
    nsqd = make_nsqd(max_channel_consumers=1)
    first, second = Peer(nsqd), Peer(nsqd)
    first.send("SUB t c")
    second.send("SUB t c")
    assert second.texts() == ["E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"]
    first.transport.lose()
    await turn()
    third = Peer(nsqd)
    third.send("SUB t c")
    assert third.texts() == ["OK"]


@virtual
async def test_a_lost_client_leaves_what_it_had_in_flight_until_its_timeout() -> None:
    nsqd = make_nsqd()
    lost, other = Peer(nsqd), Peer(nsqd)
    lost.identify(msg_timeout=5000)
    lost.send("SUB t c", "RDY 1")
    nsqd.publish("t", [b"x"])
    await turn()
    other.send("SUB t c", "RDY 1")
    lost.transport.lose()
    await elapse(4.9)
    assert other.texts() == ["OK"]
    await elapse(0.2)
    assert other.texts() == ["msg x"]


@virtual
async def test_a_deleted_channel_ends_the_connections_of_its_clients() -> None:
    peer = Peer(make_nsqd())
    peer.send("SUB t c")
    peer.nsqd.broker.topics["t"].delete_channel("c")
    assert (peer.texts(), peer.closed) == (["OK"], True)
    await turn()
    assert not peer.nsqd.clients


@virtual
async def test_an_ephemeral_channel_goes_with_its_last_client() -> None:
    peer = Peer(make_nsqd())
    peer.send("SUB t#ephemeral c#ephemeral")
    assert "t#ephemeral" in peer.nsqd.broker.topics
    peer.transport.lose()
    await turn()
    assert not peer.nsqd.broker.topics


@virtual
async def test_an_end_of_the_stream_closes_and_a_half_command_is_named() -> None:
    for data, texts in (
        (b"NOP\n", []),
        (b"PUB t\n\0\0\0\x05abc", ["E_BAD_MESSAGE PUB failed to read message body"]),
    ):
        peer = Peer(make_nsqd())
        peer.transport.deliver(data)
        peer.transport.deliver_eof()
        assert (peer.texts(), peer.closed) == (texts, True)


@virtual
async def test_snappy_begins_behind_the_negotiation_with_an_ok_of_its_own() -> None:
    peer = Peer(make_nsqd())
    peer.identify(feature_negotiation=True, snappy=True)
    plain, compressed = peer.transport.writes
    assert b'"snappy":true' in plain
    decoder, encoder = snappy.StreamDecompressor(), snappy.StreamCompressor()
    assert decoder.decompress(compressed).endswith(b"OK")
    peer.transport.take()
    peer.transport.deliver(encoder.add_chunk(b"SUB t c\nRDY 1\n"))
    peer.nsqd.publish("t", [b"abc" * 1000])
    await turn()
    assert decoder.decompress(peer.transport.take()).endswith(b"abc" * 1000)
    assert peer.client.stats("")["snappy"] is True
    peer.transport.deliver(b"\x02\x01\0\0x")  # a reserved chunk
    assert peer.closed


@virtual
async def test_deflate_begins_behind_the_negotiation_with_an_ok_of_its_own() -> None:
    peer = Peer(make_nsqd())
    peer.identify(feature_negotiation=True, deflate=True, deflate_level=3)
    plain, compressed = peer.transport.writes
    assert b'"deflate_level":3' in plain
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    assert inflate.decompress(compressed).endswith(b"OK")
    peer.transport.take()
    peer.transport.deliver(deflate.compress(b"CLS\n") + deflate.flush(zlib.Z_SYNC_FLUSH))
    assert inflate.decompress(peer.transport.take()).endswith(b"cannot CLS in current state")
    assert peer.client.stats("")["deflate"] is True


@virtual
async def test_what_was_sent_before_the_layer_changed_is_not_heard() -> None:
    peer = Peer(make_nsqd())
    body = b'{"feature_negotiation": true, "snappy": true}'
    size = len(body).to_bytes(4, "big")
    peer.transport.deliver(b"IDENTIFY\n" + size + body + b"SUB t c\n")
    assert (peer.client.channel, peer.closed) == (None, False)


@virtual
async def test_stats_count_what_a_client_did() -> None:
    peer = Peer(make_nsqd())
    peer.identify(client_id="me", hostname="here", user_agent="x/1", sample_rate=99)
    peer.send("SUB t c", "RDY 3")
    peer.nsqd.publish("t", [b"1", b"2", b"3", b"4"])
    await turn()
    ids = peer.ids()
    peer.send(f"FIN {ids[0]}", f"REQ {ids[1]} 1000", "RDY 2")
    await turn()
    found = peer.client.stats("")
    assert found.pop("connect_ts") > 1.6e9
    assert list(found.items()) == [
        ("client_id", "me"),
        ("hostname", "here"),
        ("version", "V2"),
        ("remote_address", "127.0.0.1:5555"),
        ("state", 3),
        ("ready_count", 2),
        ("in_flight_count", 2),
        ("message_count", 4),
        ("finish_count", 1),
        ("requeue_count", 1),
        ("sample_rate", 99),
        ("deflate", False),
        ("snappy", False),
        ("user_agent", "x/1"),
        ("tls", False),
        ("tls_cipher_suite", ""),
        ("tls_version", ""),
        ("tls_negotiated_protocol", ""),
        ("tls_negotiated_protocol_is_mutual", False),
    ]


@virtual
async def test_whoever_published_is_a_producer_with_a_count_of_one_topic() -> None:
    nsqd = make_nsqd()
    peer, silent = Peer(nsqd), Peer(nsqd)
    peer.send("MPUB one", body=mpub(b"a", b"b"))
    peer.send("DPUB two 5", body=b"c")
    assert nsqd.producers == [peer.client]
    assert peer.client.stats("")["pub_counts"] == [{"topic": "one", "count": 2}]
    assert peer.client.stats("two")["pub_counts"] == [{"topic": "two", "count": 1}]
    assert "pub_counts" not in peer.client.stats("three")
    assert "pub_counts" not in silent.client.stats("")
