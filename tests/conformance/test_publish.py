"""PUB, MPUB, DPUB, and commands that are none."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.raw import mpub, sized

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.support.raw import Raw
    from tests.support.servers import MakeNsqd, Nsqd

LONGEST = "n" * 64


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("nonsense", "E_INVALID invalid command nonsense"),
        ("", "E_INVALID invalid command "),
        ("pub t", "E_INVALID invalid command pub"),
        (" PUB t", "E_INVALID invalid command "),
        ("GET / HTTP/1.1", "E_INVALID invalid command GET"),
    ],
)
def test_an_unknown_command_is_refused(command: str, text: str, client: Raw) -> None:
    assert client.fatal(command) == text


@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB", "DPUB t"])
def test_a_publishing_command_without_its_parameters_is_refused(command: str, client: Raw) -> None:
    name = command.partition(" ")[0]
    assert client.fatal(command) == f"E_INVALID {name} insufficient number of parameters"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", '""'),
        ("bad!", '"bad!"'),
        ("b/d", '"b/d"'),
        ('q"q', r'"q\"q"'),
        ("käse", '"käse"'),
        ("\x01", r'"\x01"'),
        ("t#ephemera", '"t#ephemera"'),
        ("#ephemeral", '"#ephemeral"'),
        (f"{LONGEST}n", f'"{LONGEST}n"'),
    ],
)
def test_a_bad_topic_is_refused_with_its_name_quoted(
    name: str, shown: str, connect: Connect
) -> None:
    assert connect().fatal(f"PUB {name}") == f"E_BAD_TOPIC PUB topic name {shown} is not valid"
    text = f"E_BAD_TOPIC DPUB topic name {shown} is not valid"
    assert connect().fatal(f"DPUB {name} 0") == text


def test_the_code_is_doubled_for_a_bad_topic_of_mpub(client: Raw) -> None:
    text = 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad!" is not valid'
    assert client.fatal("MPUB bad!") == text


def test_a_topic_name_may_have_64_characters_and_end_in_ephemeral(client: Raw, nsqd: Nsqd) -> None:
    for name in (LONGEST, "Az09._-", f"{'e' * 54}#ephemeral"):
        assert client.ask(f"PUB {name}", b"x") == b"OK"
        assert nsqd.topic(name)["message_count"] == 1


@pytest.mark.parametrize("command", ["PUB {}", "DPUB {} 0"])
def test_a_message_size_out_of_range_is_refused(command: str, connect: Connect, topic: str) -> None:
    line, name = command.format(topic), command.partition(" ")[0]
    for size, text in (
        (0, "invalid message body size 0"),
        (-1, "invalid message body size -1"),
        (-(2**31), "invalid message body size -2147483648"),
        (1048577, "message too big 1048577 > 1048576"),
        (2**31 - 1, "message too big 2147483647 > 1048576"),
    ):
        client = connect()
        client.write(line.encode() + b"\n" + struct.pack(">i", size))
        assert client.failure() == f"E_BAD_MESSAGE {name} {text}"
        assert client.ended()


def test_the_largest_message_passes(client: Raw, topic: str) -> None:
    body = b"x" * (1 << 20)
    assert client.ask(f"PUB {topic}", body) == b"OK"
    assert client.ask(f"MPUB {topic}", mpub(body, body)) == b"OK"
    client.subscribe(topic, ready=3)
    assert [client.message().body for _ in range(3)] == [body] * 3


def test_max_msg_size_is_the_limit_of_one_message(
    make_nsqd: MakeNsqd, connect: Connect, topic: str
) -> None:
    nsqd = make_nsqd("-max-msg-size=100")
    assert connect(nsqd).ask(f"PUB {topic}", b"x" * 100) == b"OK"
    assert connect(nsqd).fatal(f"PUB {topic}", b"x" * 101).endswith("message too big 101 > 100")
    assert connect(nsqd).fatal(f"MPUB {topic}", mpub(b"x", b"x" * 101)) == (
        "E_BAD_MESSAGE MPUB message too big 101 > 100"
    )
    assert nsqd.topic(topic)["message_count"] == 1


def test_max_body_size_is_the_limit_of_mpub_and_identify(
    make_nsqd: MakeNsqd, connect: Connect, topic: str
) -> None:
    nsqd = make_nsqd("-max-body-size=100")
    assert connect(nsqd).ask(f"MPUB {topic}", mpub(b"x" * 92)) == b"OK"
    text = "E_BAD_BODY MPUB body too big 101 > 100"
    assert connect(nsqd).fatal(f"MPUB {topic}", mpub(b"x" * 93)) == text
    text = "E_BAD_BODY IDENTIFY body too big 101 > 100"
    assert connect(nsqd).fatal("IDENTIFY", b" " * 101) == text
    text = "E_BAD_BODY MPUB invalid message count 20"
    assert connect(nsqd).fatal(f"MPUB {topic}", b"\0\0\0\x14") == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (struct.pack(">i", 0), "E_BAD_BODY MPUB invalid body size 0"),
        (struct.pack(">i", -5), "E_BAD_BODY MPUB invalid body size -5"),
        (struct.pack(">i", 5242881), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
        (sized(struct.pack(">i", 0)), "E_BAD_BODY MPUB invalid message count 0"),
        (sized(struct.pack(">i", -1)), "E_BAD_BODY MPUB invalid message count -1"),
        (sized(struct.pack(">i", 1048577)), "E_BAD_BODY MPUB invalid message count 1048577"),
        (sized(mpub(b"")), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (sized(mpub(b"x", b"")), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (
            sized(struct.pack(">ii", 1, 1048577)),
            "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
        ),
    ],
)
def test_a_bad_body_of_mpub_is_refused(body: bytes, text: str, client: Raw, topic: str) -> None:
    client.write(f"MPUB {topic}\n".encode() + body)
    assert client.failure() == text
    assert client.ended()


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


def test_a_line_may_end_in_cr_lf(client: Raw, topic: str) -> None:
    client.write(f"NOP\r\nPUB {topic}\r\n".encode() + sized(b"x"))
    assert client.response() == b"OK"
    client.write(f"SUB {topic} c\r\nRDY 1\r\n".encode())
    assert client.response() == b"OK"
    assert client.message().body == b"x"


def test_additional_parameters_are_ignored(client: Raw, topic: str) -> None:
    assert client.ask(f"PUB {topic} more", b"x") == b"OK"
    assert client.ask(f"MPUB {topic} more", mpub(b"x")) == b"OK"
    assert client.ask(f"DPUB {topic} 0 more", b"x") == b"OK"
    assert client.ask(f"SUB {topic} c more") == b"OK"
    client.send("RDY 3 more")
    first = client.message()
    client.send(f"FIN {first.id} more")
    client.settle()


def test_nop_is_not_answered(client: Raw, topic: str) -> None:
    client.write(b"NOP\n" * 10)
    assert client.ask(f"PUB {topic}", b"x") == b"OK"


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


@pytest.mark.parametrize(
    ("defer", "text"),
    [
        ("-1", "DPUB could not parse timeout -1"),
        ("x", "DPUB could not parse timeout x"),
        ("1.5", "DPUB could not parse timeout 1.5"),
        ("3600001", "DPUB timeout 3600001 out of range 0-3600000"),
    ],
)
def test_a_bad_deferral_is_refused(defer: str, text: str, client: Raw, topic: str) -> None:
    assert client.fatal(f"DPUB {topic} {defer}") == f"E_INVALID {text}"


def test_dpub_defers_up_to_an_hour_in_each_channel(client: Raw, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "a")
    nsqd.create(topic, "b")
    assert client.ask(f"DPUB {topic} 3600000", b"x") == b"OK"
    eventually(lambda: all(nsqd.channel(topic, name)["deferred_count"] == 1 for name in "ab"))
    for name in "ab":
        found = nsqd.channel(topic, name)
        assert (found["depth"], found["message_count"]) == (0, 1)


@pytest.mark.parametrize("zero", ["0", "000", ""])
def test_dpub_of_0_is_a_pub_and_an_empty_number_is_0(zero: str, client: Raw, topic: str) -> None:
    assert client.ask(f"DPUB {topic} {zero}", b"now") == b"OK"
    assert client.subscribe(topic, ready=1).message().body == b"now"


def test_max_req_timeout_is_the_limit_of_dpub(
    make_nsqd: MakeNsqd, connect: Connect, topic: str
) -> None:
    nsqd = make_nsqd("-max-req-timeout=2s")
    assert connect(nsqd).ask(f"DPUB {topic} 2000", b"x") == b"OK"
    text = "E_INVALID DPUB timeout 2001 out of range 0-2000"
    assert connect(nsqd).fatal(f"DPUB {topic} 2001", b"x") == text


def test_publishing_and_subscribing_may_share_a_connection(client: Raw, topic: str) -> None:
    client.subscribe(topic, ready=1)
    client.send(f"PUB {topic}", b"to myself")
    frames = {client.next()[0] for _ in range(2)}
    assert frames == {0, 2}


def test_auth_is_refused_where_none_is_wanted(client: Raw) -> None:
    assert client.fatal("AUTH", b"secret") == "E_AUTH_DISABLED AUTH disabled"


@pytest.mark.parametrize(
    ("line", "body", "text"),
    [
        ("AUTH more", b"x", "E_INVALID AUTH invalid number of parameters"),
        ("AUTH", b"", "E_BAD_BODY AUTH invalid body size 0"),
    ],
)
def test_a_bad_auth_is_refused(line: str, body: bytes, text: str, client: Raw) -> None:
    assert client.fatal(line, body) == text
