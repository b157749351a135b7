"""Commands, byte by byte as in tcp_protocol_spec."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.proto import commands
from tests.support import wire

ID, OTHER = b"0123456789abcdef", b"fedcba9876543210"

EXACT = {
    "magic": (commands.MAGIC, b"  V2"),
    "NOP": (commands.NOP, b"NOP\n"),
    "CLS": (commands.CLS, b"CLS\n"),
    "IDENTIFY": (
        commands.identify({"client_id": "x", "snappy": True}),
        b'IDENTIFY\n\x00\x00\x00\x1f{"client_id":"x","snappy":true}',
    ),
    "IDENTIFY of bytes": (
        commands.identify({"client_id": "\u00fc"}),
        b'IDENTIFY\n\x00\x00\x00\x16{"client_id":"\\u00fc"}',
    ),
    "AUTH": (commands.auth(b"s\n\xff"), b"AUTH\n\x00\x00\x00\x03s\n\xff"),
    "SUB": (commands.subscribe("t", "c#ephemeral"), b"SUB t c#ephemeral\n"),
    "RDY": (commands.ready(2500), b"RDY 2500\n"),
    "FIN": (commands.finish([ID, OTHER]), b"FIN 0123456789abcdef\nFIN fedcba9876543210\n"),
    "TOUCH": (commands.touch([ID, OTHER]), b"TOUCH 0123456789abcdef\nTOUCH fedcba9876543210\n"),
    "REQ": (
        commands.requeue([(ID, 90000), (OTHER, 1)]),
        b"REQ 0123456789abcdef 90000\nREQ fedcba9876543210 1\n",
    ),
    "PUB": (commands.publish("t.x", b"a\nb"), b"PUB t.x\n\x00\x00\x00\x03a\nb"),
    "PUB of nothing": (commands.publish("t", b""), b"PUB t\n\x00\x00\x00\x00"),
    "DPUB": (commands.publish("t", b"ab", defer_ms=1500), b"DPUB t 1500\n\x00\x00\x00\x02ab"),
    "DPUB 0": (commands.publish("t", b"ab", defer_ms=0), b"DPUB t 0\n\x00\x00\x00\x02ab"),
    "MPUB": (
        commands.publish_many("t", [b"a", b"", b"bcd"]),
        b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x03"
        b"\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x03bcd",
    ),
}


@pytest.mark.parametrize(("made", "bytes_"), EXACT.values(), ids=EXACT)
def test_a_command_is_these_bytes(made: bytes, bytes_: bytes) -> None:
    assert made == bytes_


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
def test_mpub_holds_the_bodies_and_its_size_is_as_foretold(bodies: list[bytes]) -> None:
    data = commands.publish_many("t", bodies)
    assert wire.commands(data) == [f"MPUB t {bodies!r}"]
    foretold = commands.publish_many_size(len(bodies), sum(map(len, bodies)))
    assert len(data) == len(b"MPUB t\n") + 4 + foretold
