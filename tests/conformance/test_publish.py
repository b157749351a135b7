"""PUB, MPUB, DPUB, and commands that are none."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.raw import mpub, sized

if TYPE_CHECKING:
    from tests.support.raw import Connect, Raw
    from tests.support.servers import Nsqd


def test_the_largest_message_passes(client: Raw, topic: str) -> None:
    body = b"x" * (1 << 20)
    assert client.ask(f"PUB {topic}", body) == b"OK"
    assert client.ask(f"MPUB {topic}", mpub(body, body)) == b"OK"
    client.subscribe(topic, ready=3)
    assert [client.message().body for _ in range(3)] == [body] * 3


def test_a_refused_mpub_publishes_nothing_but_creates_its_topic(
    client: Raw, nsqd: Nsqd, topic: str
) -> None:
    client.fatal(f"MPUB {topic}", mpub(b"one", b"two", b""))
    assert nsqd.topic(topic)["message_count"] == 0


def test_mpub_is_answered_once_and_publishes_all(client: Raw, nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(100)]
    assert client.ask(f"MPUB {topic}", mpub(*bodies)) == b"OK"
    assert nsqd.topic(topic)["message_count"] == 100
    client.subscribe(topic, ready=100)
    assert sorted(client.message().body for _ in bodies) == sorted(bodies)


def test_messages_of_one_connection_are_delivered_in_order(client: Raw, topic: str) -> None:
    for number in range(10):
        assert client.ask(f"PUB {topic}", b"%d" % number) == b"OK"
    client.subscribe(topic, ready=10)
    assert [client.message().body for _ in range(10)] == [b"%d" % n for n in range(10)]


def test_commands_sent_at_once_are_answered_in_order(client: Raw, topic: str) -> None:
    pub = f"PUB {topic}\n".encode() + sized(b"x")
    client.write(pub * 50 + b"NOP\n" + f"SUB {topic} c\n".encode() + b"CLS\n")
    assert [client.response() for _ in range(52)] == [b"OK"] * 51 + [b"CLOSE_WAIT"]


def test_commands_may_arrive_in_pieces(client: Raw, topic: str) -> None:
    for byte in f"PUB {topic}\n".encode() + sized(b"body"):
        client.write(bytes([byte]))
    assert client.response() == b"OK"


def test_a_command_line_that_fills_the_read_buffer_closes_the_connection(client: Raw) -> None:
    client.write(b"x" * 20000)
    assert client.ended()


def test_what_follows_a_fatal_error_is_not_done(client: Raw, nsqd: Nsqd, topic: str) -> None:
    pub = f"PUB {topic}\n".encode() + sized(b"x")
    client.write(pub + b"nonsense\n" + pub)
    assert client.response() == b"OK"
    assert client.failure() == "E_INVALID invalid command nonsense"
    assert client.ended()
    assert nsqd.topic(topic)["message_count"] == 1


def test_a_client_that_ends_its_stream_is_hung_up_on(client: Raw, nsqd: Nsqd, topic: str) -> None:
    client.subscribe(topic)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.ended()
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 0)


def test_an_unfinished_command_at_the_end_of_the_stream_is_dropped(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    client = connect()
    client.write(f"PUB {topic}\n".encode() + sized(b"whole") + f"PUB {topic}".encode())
    assert client.response() == b"OK"
    client.close()
    assert connect().ask(f"PUB {topic}", b"x") == b"OK"
    assert nsqd.topic(topic)["message_count"] == 2


def test_a_message_has_a_hex_id_the_time_of_publication_and_its_first_attempt(
    client: Raw, topic: str
) -> None:
    before = time.time_ns()
    client.ask(f"MPUB {topic}", mpub(b"one", b"two"))
    after = time.time_ns()
    client.subscribe(topic, ready=2)
    one, two = client.message(), client.message()
    assert (one.attempts, two.attempts) == (1, 1)
    assert before <= one.timestamp <= two.timestamp <= after
    assert one.id != two.id
    for message in (one, two):
        assert len(message.id) == 16
        int(message.id, 16)
        assert message.id == message.id.lower()


def test_dpub_defers_up_to_an_hour_in_each_channel(client: Raw, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "a")
    nsqd.create(topic, "b")
    assert client.ask(f"DPUB {topic} 3600000", b"x") == b"OK"
    eventually(lambda: all(nsqd.channel(topic, name)["deferred_count"] == 1 for name in "ab"))
    for name in "ab":
        found = nsqd.channel(topic, name)
        assert (found["depth"], found["message_count"]) == (0, 1)


def test_publishing_and_subscribing_may_share_a_connection(client: Raw, topic: str) -> None:
    client.subscribe(topic, ready=1)
    client.send(f"PUB {topic}", b"to myself")
    frames = {client.next()[0] for _ in range(2)}
    assert frames == {0, 2}
