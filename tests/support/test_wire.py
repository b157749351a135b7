import pytest

from tests.support import wire

STREAM = (
    b"  V2"
    b'IDENTIFY\n\x00\x00\x00\x10{"b":1,"a":"\\n"}'
    b"AUTH\n\x00\x00\x00\x06secret"
    b"SUB topic channel\n"
    b"RDY 5\n"
    b"PUB topic\n\x00\x00\x00\x03a\nb"
    b"MPUB topic\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x01x\x00\x00\x00\x02yz"
    b"DPUB topic 100\n\x00\x00\x00\x00"
    b"FIN 0000000000000001\n"
    b"NOP\n"
)


def test_a_command_stream_reads_as_text() -> None:
    assert wire.commands(STREAM) == [
        "  V2",
        'IDENTIFY {"a": "\\n", "b": 1}',
        "AUTH secret",
        "SUB topic channel",
        "RDY 5",
        "PUB topic b'a\\nb'",
        "MPUB topic [b'x', b'yz']",
        "DPUB topic 100 b''",
        "FIN 0000000000000001",
        "NOP",
    ]


def test_a_stream_cut_anywhere_reads_the_same_in_two_parts() -> None:
    for cut in range(4, len(STREAM)):
        first, rest = wire.split_commands(STREAM[:cut])
        second, left = wire.split_commands(rest + STREAM[cut:])
        assert first + second == wire.commands(STREAM)
        assert left == b""


@pytest.mark.parametrize("stream", [b"RDY 5", b"PUB t\n\x00\x00", b"PUB t\n\x00\x00\x00\x02x"])
def test_an_incomplete_command_is_an_error(stream: bytes) -> None:
    with pytest.raises(ValueError, match="incomplete"):
        wire.commands(stream)


def test_an_mpub_whose_sizes_disagree_is_an_error() -> None:
    with pytest.raises(ValueError, match="MPUB"):
        wire.commands(b"MPUB t\n\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x01xy")


def test_frames_are_those_of_the_specification() -> None:
    assert wire.OK == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert wire.error("E_INVALID no") == b"\x00\x00\x00\x10\x00\x00\x00\x01E_INVALID no"
    assert wire.message(0xAB, b"hi", timestamp=3, attempts=2) == (
        b"\x00\x00\x00\x20\x00\x00\x00\x02"
        b"\x00\x00\x00\x00\x00\x00\x00\x03\x00\x0200000000000000abhi"
    )
