"""Frames: the same whatever the reads, and refused as soon as they can be."""

import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import MessageSizeError, ProtocolError
from nsqtools.names import Address
from nsqtools.proto.frames import FrameParser, FrameType
from tests.support import wire
from tests.support.sessions import cut

if TYPE_CHECKING:
    from nsqtools.proto.messages import Message

ADDRESS = Address("nsqd.example", 4150)
MIB = 1 << 20
UNLIMITED = 2**31

Delivery = tuple[bytes, bytes, int, int]
Parsed = tuple[list[Delivery], list[tuple[int, bytes]]]

FRAMES: list[tuple[bytes, Delivery | tuple[int, bytes]]] = [
    (wire.OK, (0, b"OK")),
    (wire.message(1, b""), (wire.message_id(1), b"", 1, 1)),
    (wire.response(b""), (0, b"")),
    (wire.HEARTBEAT, (0, b"_heartbeat_")),
    (
        wire.message(2, b"\0\0\0\x06\0\0\0\0OK" * 5, timestamp=2**63 - 1, attempts=65535),
        (wire.message_id(2), b"\0\0\0\x06\0\0\0\0OK" * 5, 2**63 - 1, 65535),
    ),
    (wire.message(3, b"x"), (wire.message_id(3), b"x", 1, 1)),
    (wire.error("E_FIN_FAILED FIN 1 failed"), (1, b"E_FIN_FAILED FIN 1 failed")),
    (wire.message(4, b"HTTP"), (wire.message_id(4), b"HTTP", 1, 1)),
]
STREAM = b"".join(data for data, _ in FRAMES)


def expected(frames: Iterable[Delivery | tuple[int, bytes]]) -> Parsed:
    found = list(frames)
    return [f for f in found if len(f) == 4], [f for f in found if len(f) == 2]


def parse(parser: FrameParser, pieces: Iterable[bytes | memoryview]) -> Parsed:
    messages: list[Message] = []
    replies: list[tuple[FrameType, bytes]] = []
    for piece in pieces:
        parser.parse(piece, messages, replies)
    assert {type(message.body) for message in messages} <= {bytes}
    return (
        [(m.id, m.body, m.timestamp, m.attempts) for m in messages],
        [(int(kind), data) for kind, data in replies],
    )


WHOLE = expected(frame for _, frame in FRAMES)


def test_reads_into_memory_that_is_used_again_give_the_same_frames() -> None:
    """Large bodies come straight out of it; none is of it."""
    large = bytes(range(256)) * 80
    frames = [*FRAMES, (wire.message(5, large), (wire.message_id(5), large, 1, 1))]
    frames += [*frames, frames[-1], *FRAMES[:1]]
    stream = b"".join(data for data, _ in frames)
    memory = memoryview(bytearray(len(stream)))

    def reads(width: int) -> Iterator[memoryview]:
        for piece in cut(stream, range(0, len(stream), width)):
            memory[: len(piece)] = piece
            yield memory[: len(piece)]
            memory[: len(piece)] = bytes(len(piece))

    for width in (*range(1, 40), 1000, 20_000, 20_479, 20_514, 20_515, 40_000, len(stream)):
        parser = FrameParser(len(large), ADDRESS)
        assert parse(parser, reads(width)) == expected(frame for _, frame in frames)
        assert parser.take_rest() == b""


def header(size: int, kind: int | None = None) -> bytes:
    return struct.pack(">I", size) + (b"" if kind is None else struct.pack(">I", kind))


# name: the shortest beginning that can be refused, the limit, the error
MALFORMED = {
    "an unknown type": (header(30, 3), UNLIMITED, ProtocolError),
    "a negative type": (header(30, 2**32 - 1), UNLIMITED, ProtocolError),
    "a message too short": (header(29, 2), UNLIMITED, ProtocolError),
    "size 3": (header(3), UNLIMITED, ProtocolError),
    "size -1": (header(2**32 - 1), UNLIMITED, ProtocolError),
    "the lowest size": (header(2**31), UNLIMITED, ProtocolError),
    "HTTP": (b"HTTP", UNLIMITED, ProtocolError),
    "HTTP under a limit": (b"HTTP", 100, ProtocolError),
    "a message over the limit": (header(131, 2), 100, MessageSizeError),
    "the largest size": (header(2**31 - 1, 2), MIB, MessageSizeError),
    "a response over 1 MiB": (header(MIB + 1, 0), UNLIMITED, ProtocolError),
    "an error over 1 MiB": (header(MIB + 1, 1), UNLIMITED, ProtocolError),
    "a message where none is due": (header(30, 2), 0, ProtocolError),
    "a huge message where none is due": (header(2**31 - 1, 2), 0, ProtocolError),
}


@pytest.mark.parametrize(("data", "limit", "kind"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_frame_is_refused_at_its_first_telling_byte(
    data: bytes, limit: int, kind: type[ProtocolError]
) -> None:
    for before in (b"", wire.OK, *([STREAM] if limit == UNLIMITED else [])):
        parser = FrameParser(limit, ADDRESS)
        parse(parser, [before, data[:-1]])
        with pytest.raises(kind) as caught:
            parser.parse(data[-1:], [], [])
        assert type(caught.value) is kind
        assert str(caught.value).startswith("nsqd.example:4150: ")
        assert "\n" not in str(caught.value)
        assert caught.value.address == ADDRESS
        with pytest.raises(kind):
            parse(FrameParser(limit, ADDRESS), [before + data + bytes(200)])
    parser = FrameParser(limit, ADDRESS)
    assert parser.parse_reply(data[:-1]) is None
    with pytest.raises(kind):
        parser.parse_reply(data[-1:])


@contextmanager
def counting(name: str) -> Iterator[list[str]]:
    """Calls of a C method, as the profiler sees them."""
    calls: list[str] = []

    def profile(_frame: object, event: str, arg: object) -> None:
        if event == "c_call" and getattr(arg, "__name__", "") == name:
            calls.append(name)

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def test_a_frame_of_20_mib_in_reads_of_1_kib_costs_one_join() -> None:
    body = bytes(range(256)) * (20 * MIB // 256)
    stream = wire.message(1, body) + wire.message(2, b"next")[:-1]
    parser = FrameParser()
    messages: list[Message] = []
    with counting("join") as joins:
        for start in range(0, len(stream), 1024):
            parser.parse(stream[start : start + 1024], messages, [])
    assert joins == ["join"]
    assert [m.body for m in messages] == [body]
    assert parser.take_rest() == wire.message(2, b"next")[:-1]
    reply = wire.response(b"x" * (MIB - 4))
    with counting("join") as joins:
        found = [parser.parse_reply(reply[n : n + 256]) for n in range(0, len(reply), 256)]
    assert found[-1] == (FrameType.RESPONSE, reply[8:])
    assert joins == ["join"]


def test_parse_reply_waits_for_the_whole_reply_and_parse_goes_on_behind_it() -> None:
    for offset in range(len(wire.OK)):
        parser = FrameParser()
        assert parser.parse_reply(wire.OK[:offset]) is None
        assert parser.parse_reply(wire.OK[offset:] + STREAM[:-1]) == (FrameType.RESPONSE, b"OK")
        assert parse(parser, [STREAM[-1:]]) == WHOLE
