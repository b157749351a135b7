"""Commands from bytes in any pieces, and frames to bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from nsqtools.sandbox import wire
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


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=12))
def test_commands_are_the_same_in_any_number_of_pieces(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(SCRIPT)]
    assert parse(SCRIPT[start:end] for start, end in pairwise(ends)) == SAID
