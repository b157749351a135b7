"""Commands from bytes in any pieces, and frames to bytes."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ProtocolError, ServerError
from nsqtools.proto.frames import FrameParser
from nsqtools.sandbox import wire
from nsqtools.sandbox.consumer import Message
from nsqtools.sandbox.wire import WITH_BODY, Command, CommandParser, split_bodies
from tests.support.raw import mpub, sized

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMITS = {"max_msg_size": 100, "max_body_size": 500}

SCRIPT = (
    b"IDENTIFY\n"
    + sized(b"{}")
    + b"SUB t c\nRDY 5\r\nNOP\n"
    + b"PUB t\n"
    + sized(b"a\nb")
    + b"MPUB t\n"
    + sized(mpub(b"x", b"PUB\n", b"z" * 90))
    + b"DPUB t 70\n"
    + sized(b"late")
    + b"FIN 0123456789abcdef\nAUTH\n"
    + sized(b"secret")
    + b"REQ 0123456789abcdef 10\n\nCLS\n"
)


def show(command: Command) -> tuple[bytes, tuple[bytes, ...], int]:
    return b" ".join(command.words), tuple(command.bodies), command.delay


SAID = [
    (b"IDENTIFY", (b"{}",), 0),
    (b"SUB t c", (), 0),
    (b"RDY 5", (), 0),
    (b"NOP", (), 0),
    (b"PUB t", (b"a\nb",), 0),
    (b"MPUB t", (b"x", b"PUB\n", b"z" * 90), 0),
    (b"DPUB t 70", (b"late",), 70),
    (b"FIN 0123456789abcdef", (), 0),
    (b"AUTH", (b"secret",), 0),
    (b"REQ 0123456789abcdef 10", (), 0),
    (b"", (), 0),
    (b"CLS", (), 0),
]


def make_parser() -> CommandParser:
    return CommandParser(**LIMITS)


def parse(parser: CommandParser, pieces: Iterable[bytes]) -> list[Command]:
    """Whole commands, as an owner has them who lets everything pass that is right."""
    found = []
    for piece in pieces:
        parser.feed(piece)
        while command := parser.next():
            if command.name in WITH_BODY and not command.bodies:
                if command.name in wire.PUBLISHING:
                    wire.check_publish(command, 3600.0)
                parser.expect(command)
            else:
                found.append(command)
    return found


def refusal(data: bytes) -> str:
    with pytest.raises(ServerError) as caught:
        parse(make_parser(), [data])
    assert caught.value.fatal
    return caught.value.text


def test_commands_are_the_same_however_the_bytes_are_split() -> None:
    for at in range(len(SCRIPT) + 1):
        assert list(map(show, parse(make_parser(), [SCRIPT[:at], SCRIPT[at:]]))) == SAID


def test_commands_are_the_same_when_bytes_come_one_by_one() -> None:
    assert list(map(show, parse(make_parser(), struct.unpack(f"{len(SCRIPT)}c", SCRIPT)))) == SAID


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=12))
def test_commands_are_the_same_in_any_number_of_pieces(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(SCRIPT)]
    pieces = [SCRIPT[start:end] for start, end in pairwise(ends)]
    assert list(map(show, parse(make_parser(), pieces))) == SAID


def test_a_line_is_given_before_its_body_has_come_and_once_more_with_it() -> None:
    parser = make_parser()
    parser.feed(b"NOP\nPUB t\n")
    assert parser.next()
    line = parser.next()
    assert line
    assert (line.words, line.bodies) == ([b"PUB", b"t"], ())
    parser.expect(line)
    for piece in (b"\0\0\0", b"\x01"):
        parser.feed(piece)
        assert parser.next() is None
    parser.feed(b"xNOP\n")
    assert parser.next() is line
    assert line.bodies == (b"x",)
    assert (after := parser.next())
    assert after.name == b"NOP"


def test_the_bodies_of_an_mpub_may_come_without_their_size() -> None:
    assert split_bodies(mpub(b"a", b"bb") + b"rest", **LIMITS) == [b"a", b"bb"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "E_BAD_BODY"),
        (b"\0\0\0", "E_BAD_BODY"),
        (b"\0\0\0\0", "E_BAD_BODY"),
        (b"\0\0\0\x64", "E_BAD_BODY"),
        (b"\0\0\0\x01", "E_BAD_MESSAGE"),
        (mpub(b"a", b"bb")[:-1], "E_BAD_MESSAGE"),
        (mpub(b"a", b""), "E_BAD_MESSAGE"),
        (mpub(b"a" * 101), "E_BAD_MESSAGE"),
    ],
    ids=repr,
)
def test_what_is_no_body_of_an_mpub_is_refused_with_a_code(body: bytes, code: str) -> None:
    with pytest.raises(ServerError) as caught:
        split_bodies(body, **LIMITS)
    assert caught.value.code == code


SIZE = struct.Struct(">i").pack

REFUSALS = {
    b"PUB\n": "E_INVALID PUB insufficient number of parameters",
    b"PUB a! \n": 'E_BAD_TOPIC PUB topic name "a!" is not valid',
    b"PUB t\n" + SIZE(0): "E_BAD_MESSAGE PUB invalid message body size 0",
    b"PUB t\n" + SIZE(-1): "E_BAD_MESSAGE PUB invalid message body size -1",
    b"PUB t\n" + SIZE(101): "E_BAD_MESSAGE PUB message too big 101 > 100",
    b"MPUB\n": "E_INVALID MPUB insufficient number of parameters",
    b"MPUB ?\n": 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "?" is not valid',
    b"MPUB t\n" + SIZE(0): "E_BAD_BODY MPUB invalid body size 0",
    b"MPUB t\n" + SIZE(501): "E_BAD_BODY MPUB body too big 501 > 500",
    b"MPUB t\n" + SIZE(4) + SIZE(0): "E_BAD_BODY MPUB invalid message count 0",
    b"MPUB t\n" + SIZE(4) + SIZE(100): "E_BAD_BODY MPUB invalid message count 100",
    b"MPUB t\n" + SIZE(9) + SIZE(2) + sized(b"x") + SIZE(0): (
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0"
    ),
    b"MPUB t\n" + SIZE(9) + SIZE(1) + SIZE(101): "E_BAD_MESSAGE MPUB message too big 101 > 100",
    b"DPUB t\n": "E_INVALID DPUB insufficient number of parameters",
    b"DPUB t! 1\n": 'E_BAD_TOPIC DPUB topic name "t!" is not valid',
    b"DPUB t -1\n": "E_INVALID DPUB could not parse timeout -1",
    b"DPUB t 3600001\n": "E_INVALID DPUB timeout 3600001 out of range 0-3600000",
    b"DPUB t 18446744073709551615\n": (
        "E_INVALID DPUB timeout 18446744073709551615 out of range 0-3600000"
    ),
    b"DPUB t 1\n" + SIZE(0): "E_BAD_MESSAGE DPUB invalid message body size 0",
    b"DPUB t 1\n" + SIZE(101): "E_BAD_MESSAGE DPUB message too big 101 > 100",
    b"IDENTIFY\n" + SIZE(0): "E_BAD_BODY IDENTIFY invalid body size 0",
    b"IDENTIFY\n" + SIZE(501): "E_BAD_BODY IDENTIFY body too big 501 > 500",
    b"AUTH\n" + SIZE(-7): "E_BAD_BODY AUTH invalid body size -7",
    b"AUTH\n" + SIZE(501): "E_BAD_BODY AUTH body too big 501 > 500",
}


@pytest.mark.parametrize(("data", "text"), REFUSALS.items(), ids=map(repr, REFUSALS))
def test_a_command_is_refused_in_the_words_of_nsqd(data: bytes, text: str) -> None:
    assert refusal(data) == text


def test_an_mpub_is_refused_as_soon_as_its_fault_has_come() -> None:
    parser = make_parser()
    assert parse(parser, [b"MPUB t\n" + SIZE(400) + SIZE(3), sized(b"x")]) == []
    with pytest.raises(ServerError, match=r"invalid message\(1\) body size 0"):
        parse(parser, [SIZE(0)])


def test_an_mpub_ends_with_its_last_message_whatever_size_it_gave() -> None:
    data = b"MPUB t\n" + SIZE(5) + mpub(b"a", b"bb") + b"NOP\n"
    assert [command.name for command in parse(make_parser(), [data])] == [b"MPUB", b"NOP"]


def test_a_line_longer_than_the_buffer_of_nsqd_ends_the_stream() -> None:
    longest = b"X" * (16 * 1024 - 1)
    assert len(parse(make_parser(), [longest + b"\n"])) == 1
    for data in (longest + b"X", longest + b"X\n"):
        with pytest.raises(ProtocolError):
            parse(make_parser(), [data])


ENDS = {
    b"": "",
    b"NO": "",
    b"PUB t\n\0\0\0": "E_BAD_MESSAGE PUB failed to read message body size",
    b"PUB t\n" + SIZE(3) + b"xx": "E_BAD_MESSAGE PUB failed to read message body",
    b"DPUB t 1\n": "E_BAD_MESSAGE DPUB failed to read message body size",
    b"IDENTIFY\n": "E_BAD_BODY IDENTIFY failed to read body size",
    b"AUTH\n" + SIZE(3): "E_BAD_BODY AUTH failed to read body",
    b"MPUB t\n\0": "E_BAD_BODY MPUB failed to read body size",
    b"MPUB t\n" + SIZE(9): "E_BAD_BODY MPUB failed to read message count",
    b"MPUB t\n" + SIZE(99) + SIZE(2) + sized(b"x"): (
        "E_BAD_MESSAGE MPUB failed to read message(1) body size"
    ),
    b"MPUB t\n" + SIZE(99) + SIZE(2) + SIZE(2) + b"x": (
        "E_BAD_MESSAGE MPUB failed to read message body"
    ),
}


@pytest.mark.parametrize(("data", "text"), ENDS.items(), ids=map(repr, ENDS))
def test_a_stream_that_ends_within_a_body_is_told_so(data: bytes, text: str) -> None:
    parser = make_parser()
    assert parse(parser, [b"NOP\n", data])[1:] == []
    assert parser.end() == text


def test_bytes_that_came_before_another_layer_are_forgotten() -> None:
    parser = make_parser()
    assert len(parse(parser, [b"NOP\nSU"])) == 1
    parser.clear()
    assert [command.name for command in parse(parser, [b"CLS\n"])] == [b"CLS"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"", 0),
        (b"0", 0),
        (b"2500", 2500),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551617", 1),
        (b"9" * 5000, (10**5000 - 1) % 2**64),
        (b"-1", None),
        (b"1x", None),
        (b" 1", None),
        ("٣".encode(), None),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_numbers_are_read_modulo_2_to_the_64(text: bytes, number: int | None) -> None:
    assert wire.to_number(text) == number


def test_numbers_of_64_bits_have_a_sign() -> None:
    assert [wire.to_signed(each) for each in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [
        0,
        2**63 - 1,
        -(2**63),
        -1,
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", '"plain"'),
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"\a\b\f\n\r\t\v\0\x7f", r'"\a\b\f\n\r\t\v\x00\x7f"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
        ("é☃😀".encode(), '"é☃😀"'),
        ("\u00a0\u200b\U000e0001".encode(), r'"\u00a0\u200b\U000e0001"'),
    ],
)
def test_names_are_quoted_as_go_does(data: bytes, text: str) -> None:
    assert wire.quote(data) == text


def test_an_error_gives_back_the_bytes_it_quotes() -> None:
    frame = wire.error("E_INVALID invalid command " + wire.show(b"a\xff\0"))
    assert frame[8:] == b"E_INVALID invalid command a\xff\0"


def test_an_id_must_have_16_characters() -> None:
    assert wire.message_id([b"FIN", b"0123456789abcdef"], 2) == b"0123456789abcdef"
    with pytest.raises(ServerError, match="E_INVALID invalid message ID"):
        wire.message_id([b"FIN", b"0123"], 2)
    with pytest.raises(ServerError, match="E_INVALID TOUCH insufficient number of params"):
        wire.message_id([b"TOUCH"], 2)


def test_frames_are_what_the_clients_parser_reads() -> None:
    batch = [
        Message(b"%016x" % number, b"body" * number, timestamp=number, attempts=number)
        for number in range(1, 4)
    ]
    data = wire.response(b"OK") + wire.messages(batch) + wire.error("E_FIN_FAILED x")
    found: list[Any] = []
    replies: list[Any] = []
    FrameParser().parse(data, found, replies)
    assert [(each.id, each.body, each.timestamp, each.attempts) for each in found] == [
        (each.id, each.body, each.timestamp, each.attempts) for each in batch
    ]
    assert replies == [(0, b"OK"), (1, b"E_FIN_FAILED x")]
