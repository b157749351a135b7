"""Codecs: any cut, any size, any damage."""

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsqtools.errors import ProtocolError
from nsqtools.proto.codecs import Codec, Deflate, Snappy
from tests.support.sessions import cut

KIB, MIB = 1 << 10, 1 << 20
PIECE = MIB

both = pytest.mark.parametrize("make", [Deflate, Snappy])
CodecFactory = type[Deflate] | type[Snappy]


def noise(size: int) -> bytes:
    """Bytes that do not compress, the same ones each time."""
    return random.Random(size).randbytes(size)


def decode(codec: Codec, reads: Iterable[bytes]) -> bytes:
    return b"".join(piece for read in reads for piece in codec.decode(read))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


SNAPPY_ID = b"\xff\x06\x00\x00sNaPpY"


def snappy_chunk(kind: int, payload: bytes, plain: bytes) -> bytes:
    """A chunk of the snappy framing format (google/snappy, framing_format.txt)."""
    crc = crc32c(plain)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    data = struct.pack("<I", masked) + payload
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


@both
@settings(max_examples=60)
@example([b"a", b"x" * 70_000, b"FIN 0123456789abcdef\n" * 100, b"\0"], [0, 9, 9])
@given(st.lists(st.binary(max_size=400), max_size=6), st.lists(st.integers(0, 60), max_size=12))
def test_every_write_can_be_read_at_once_whatever_the_cuts(
    make: CodecFactory, writes: list[bytes], offsets: list[int]
) -> None:
    writer, reader = make(), make()
    for write in writes:
        data = writer.encode(write)
        assert decode(reader, cut(data, [min(each, len(data)) for each in offsets])) == write


@both
@pytest.mark.parametrize("fill", [noise, lambda size: b"x" * size], ids=["noise", "runs"])
@pytest.mark.parametrize("size", [65537, 2 * MIB + 7])
def test_bodies_of_any_size_pass(
    make: CodecFactory, fill: Callable[[int], bytes], size: int
) -> None:
    body = fill(size)
    encoded = make().encode(body)
    for read in (1009, 64 * KIB, len(encoded)):
        assert decode(make(), cut(encoded, range(0, len(encoded), read))) == body


LONG = b"x" * 65537
CORRUPT = {
    "deflate, reserved block type": (Deflate, b"\x07"),
    "deflate, the stream ended": (Deflate, zlib.compress(b"hello", wbits=-15)),
    "snappy, a wrong checksum": (Snappy, SNAPPY_ID + b"\x01\x09\x00\x00\0\0\0\0hello"),
    "snappy, a reserved chunk": (Snappy, SNAPPY_ID + b"\x02\x01\x00\x00x"),
    "snappy, no block inside": (Snappy, SNAPPY_ID + snappy_chunk(0, b"\xff\xff", b"")),
    "snappy, a chunk of more than 64 KiB": (
        Snappy,
        SNAPPY_ID + snappy_chunk(1, b"x" * 65537, b"x" * 65537),
    ),
}


@pytest.mark.parametrize(("make", "data"), CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_stream_is_refused(make: CodecFactory, data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(make(), [data])
    assert "\n" not in str(caught.value)
    with pytest.raises(ProtocolError):
        decode(make(), cut(data, range(0, len(data), 1 + len(data) // 1000)))


def test_snappy_reads_every_kind_of_chunk_of_the_framing_format() -> None:
    stream = (
        SNAPPY_ID
        + snappy_chunk(1, b"plain ", b"plain ")
        + b"\xfe\x03\x00\x00\0\0\0"  # padding
        + snappy_chunk(0, b"\x04\x0cpack", b"pack")  # one literal
        + b"\x80\x02\x00\x00??"  # skippable
        + SNAPPY_ID
        + snappy_chunk(1, b"!", b"!")
    )
    for width in (1, 3, 5, len(stream)):
        assert decode(Snappy(), cut(stream, range(0, len(stream), width))) == b"plain pack!"


def test_deflate_is_raw_and_flushed_as_go_writes_it() -> None:
    assert Deflate().encode(b"hello").endswith(b"\x00\x00\xff\xff")
    assert zlib.decompressobj(-15).decompress(Deflate().encode(b"hello")) == b"hello"
    text = b"".join(b"%d," % n for n in range(9999))
    assert Deflate(1).encode(text) != Deflate(9).encode(text)
    codec = Deflate()
    assert len(codec.encode(text)) > 100 * len(codec.encode(text[-9000:]))  # one window for all


def deflated_zeros(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(size)) + packer.flush(zlib.Z_SYNC_FLUSH)


def test_a_deflate_bomb_comes_in_bounded_pieces_and_only_as_they_are_asked_for() -> None:
    bomb = deflated_zeros(64 * MIB)
    assert len(bomb) < 300 * KIB
    tracemalloc.start()
    try:
        pieces = Deflate().decode(bomb)
        for _ in range(3):
            assert len(next(pieces)) == PIECE
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_nothing_stays_behind_when_a_piece_is_exactly_full(size: int) -> None:
    bomb = deflated_zeros(size)
    pieces = list(Deflate().decode(bomb))
    assert b"".join(pieces) == bytes(size)
    assert max(map(len, pieces)) <= PIECE
    # What zlib keeps at a cut comes with the rest of the flush marker, so nothing can stall.
    for offset in range(len(bomb) - 6, len(bomb)):
        assert decode(Deflate(), [bomb[:offset], bomb[offset:]]) == bytes(size)
