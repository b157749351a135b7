"""Commands from bytes in any pieces, and frames to bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ProtocolError
from nsqtools.proto.frames import FrameParser
from nsqtools.sandbox import wire
from nsqtools.sandbox.consumer import Message
from nsqtools.sandbox.wire import WITH_BODY, Command, CommandParser
from tests.support.raw import mpub, sized

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    return CommandParser(max_msg_size=100, max_body_size=500)


def parse(pieces: Iterable[bytes]) -> list[tuple[bytes, tuple[bytes, ...], int]]:
    """Whole commands, as an owner has them who lets everything pass that is right."""
    parser = make_parser()
    found: list[Command] = []
    for piece in pieces:
        parser.feed(piece)
        while command := parser.next():
            if command.name in WITH_BODY and not command.bodies:
                if command.name in wire.PUBLISHING:
                    wire.check_publish(command, 3600.0)
                parser.expect(command)
            else:
                found.append(command)
    return [(b" ".join(each.words), tuple(each.bodies), each.delay) for each in found]


def test_commands_are_the_same_wherever_the_bytes_are_split() -> None:
    for at in range(len(SCRIPT) + 1):
        assert parse([SCRIPT[:at], SCRIPT[at:]]) == SAID
    assert parse(bytes([byte]) for byte in SCRIPT) == SAID


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=12))
def test_commands_are_the_same_in_any_number_of_pieces(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(SCRIPT)]
    assert parse(SCRIPT[start:end] for start, end in pairwise(ends)) == SAID


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


def test_a_line_as_long_as_the_buffer_of_nsqd_is_the_longest() -> None:
    longest = b"X" * (16 * 1024 - 1)
    assert len(parse([longest + b"\n"])) == 1
    for data in (longest + b"X", longest + b"X\n"):
        with pytest.raises(ProtocolError):
            parse([data])


@pytest.mark.parametrize(
    ("text", "number", "signed"),
    [
        (b"", 0, 0),
        (b"18446744073709551615", 2**64 - 1, -1),
        (b"18446744073709551617", 1, 1),
        (b"9223372036854775808", 2**63, -(2**63)),
        (b"9" * 5000, (10**5000 - 1) % 2**64, None),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_numbers_are_read_modulo_2_to_the_64_and_have_a_sign(
    text: bytes, number: int, signed: int | None
) -> None:
    assert wire.to_number(text) == number
    assert signed is None or wire.to_signed(number) == signed


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"\a\b\f\n\r\t\v\0\x7f", r'"\a\b\f\n\r\t\v\x00\x7f"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
        ("é☃😀".encode(), '"é☃😀"'),
        ("\u00a0\u200b\U000e0001".encode(), r'"\u00a0\u200b\U000e0001"'),
    ],
)
def test_names_are_quoted_as_go_does(data: bytes, text: str) -> None:
    assert wire.quote(data) == text


def test_frames_are_what_the_clients_parser_reads() -> None:
    batch = [
        Message(b"%016x" % number, b"body" * number, timestamp=number, attempts=number)
        for number in range(1, 4)
    ]
    refusal = wire.error("E_INVALID invalid command " + wire.show(b"a\xff\0"))
    found: list[Any] = []
    replies: list[Any] = []
    FrameParser().parse(wire.response(b"OK") + wire.messages(batch) + refusal, found, replies)
    assert [(each.id, each.body, each.timestamp, each.attempts) for each in found] == [
        (each.id, each.body, each.timestamp, each.attempts) for each in batch
    ]
    assert replies == [(0, b"OK"), (1, b"E_INVALID invalid command a\xff\0")]
