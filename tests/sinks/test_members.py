from __future__ import annotations

import io
import tracemalloc

import pytest

from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.compression import METHODS, load_zstd, make_encoder
from nsqtools.sinks.members import plain_chunks

COMPRESSED = ["gzip", "zstd"]
PLAIN = b"".join(b"%d\n" % (n * 7919) for n in range(100_000))
PIECE = 1 << 20


def archive(name: str, *members: bytes) -> bytes:
    encoder = make_encoder(name)
    return b"".join(encoder.write(member) + encoder.finish() for member in members)


def read(data: bytes, name: str) -> bytes:
    return b"".join(plain_chunks(io.BytesIO(data), name))


@pytest.mark.parametrize("name", METHODS)
def test_the_plain_bytes_of_all_members_come_in_order(name: str) -> None:
    data = archive(name, PLAIN, b"one\n", PLAIN) + make_encoder(name).empty()
    assert read(data, name) == PLAIN + b"one\n" + PLAIN
    assert read(b"", name) == b""


@pytest.mark.parametrize("name", METHODS)
def test_no_piece_is_empty_or_large_however_well_it_was_packed(name: str) -> None:
    data = archive(name, bytes(8 * PIECE), b"\n")
    tracemalloc.start()
    try:
        sizes = [len(piece) for piece in plain_chunks(io.BytesIO(data), name)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) == 8 * PIECE + 1
    assert 0 < min(sizes) <= max(sizes) <= PIECE
    assert peak < 6 * PIECE


@pytest.mark.parametrize("name", METHODS)
def test_reading_begins_where_the_file_stands(name: str) -> None:
    first = archive(name, b"one\n")
    file = io.BytesIO(first + archive(name, b"two\n"))
    file.seek(len(first))
    assert b"".join(plain_chunks(file, name)) == b"two\n"


@pytest.mark.parametrize(
    ("name", "place"),
    [("gzip", "gzip member 2"), ("zstd", "zstd frame 2")],
)
def test_a_torn_file_gives_what_is_whole_before_the_error(name: str, place: str) -> None:
    first = archive(name, b"one\n")
    chunks = plain_chunks(io.BytesIO(first + archive(name, b"two\n")[:-1]), name)
    assert next(chunks) == b"one\n"
    with pytest.raises(RecordError) as caught:
        list(chunks)
    assert str(caught.value) == f"{place} at byte {len(first)}: the file ends in it"


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_damaged_member_is_an_error_that_names_it(name: str) -> None:
    first = archive(name, b"one\n")
    with pytest.raises(RecordError, match=rf" at byte {len(first)}: "):
        read(first + b"garbage of more than a few bytes", name)


def test_frames_without_a_checksum_are_read_for_others_write_them() -> None:
    assert read(load_zstd().compress(b"one\n"), "zstd") == b"one\n"


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown compression 'lzma'"):
        read(b"", "lzma")
