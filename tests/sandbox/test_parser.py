"""Commands from bytes in any pieces; what they are is told by the conformance dialogues."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from nsqtools.config.sandbox import NsqdOptions
from nsqtools.sandbox.nsqd.parser import ClientCommand, CommandParser
from tests.support.raw import mpub, sized
from tests.support.sessions import cut

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


def parse(pieces: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Commands, each admitted once, before its body is there."""
    admitted: list[ClientCommand] = []
    parser = CommandParser(admitted.append, NsqdOptions(max_msg_size=100, max_body_size=500))
    found: list[ClientCommand] = []
    for piece in pieces:
        parser.feed(piece)
        while command := parser.next():
            found.append(command)
    assert admitted == found
    return [(b" ".join(each.words), each.body) for each in found]


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=12))
def test_commands_are_the_same_in_any_number_of_pieces(offsets: list[int]) -> None:
    found = parse(cut(SCRIPT, offsets))
    assert found == parse([SCRIPT])
    assert len(found) == 12
