"""Snappy's chunks tell no end of a member: what is kept ends with a chunk and with a record."""

from __future__ import annotations

import io
import itertools
import tracemalloc

import pytest
import snappy

from nsqtools.sinks.compression import SNAPPY_HEAD, make_encoder
from nsqtools.sinks.recovery import Inspection, inspect

CHUNK = 65536
MEMBERS = [
    b"one\ntwo\n",
    b"".join(b"%d %d\n" % (n, n * 7919 % 100003) for n in range(20000)),
    b"last\n",
]
"""The second fills several chunks, of which hardly one ends with a record."""


class Dribble(io.BytesIO):
    """A file that gives at most ``step`` bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._step if size is None else min(size, self._step))


def archive(*members: bytes) -> tuple[bytes, list[int]]:
    """A file, and where its members end."""
    encoder = make_encoder("snappy")
    pieces = [encoder.write(member) + encoder.finish() for member in members]
    return b"".join(pieces), list(itertools.accumulate(map(len, pieces)))


def chunk_ends(data: bytes) -> list[int]:
    ends = [0]
    while ends[-1] < len(data):
        start = ends[-1]
        ends.append(start + 4 + int.from_bytes(data[start + 1 : start + 4], "little"))
    return ends


def look(data: bytes, step: int = 1 << 20, *, json: bool = False) -> Inspection:
    return inspect(Dribble(data, step), compression="snappy", json=json)


def plain_of(data: bytes) -> bytes:
    plain: bytes = snappy.StreamDecompressor().decompress(data) if data else b""
    return plain


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_a_whole_file_is_all_good(step: int) -> None:
    data, _ = archive(*MEMBERS)
    plain = b"".join(MEMBERS)
    assert look(data, step) == Inspection(len(data), plain.count(b"\n"), len(plain), "")


def test_a_file_cut_anywhere_keeps_its_whole_members_and_no_torn_record() -> None:
    data, ends = archive(*MEMBERS)
    chunks = chunk_ends(data)
    near = {end + step for end in chunks for step in range(-12, 13)}
    for cut in sorted(near & set(range(len(data) + 1))):
        found = look(data[:cut])
        assert found.good in chunks
        assert max((end for end in ends if end <= cut), default=0) <= found.good <= cut
        kept = plain_of(data[: found.good])
        assert not kept or kept.endswith(b"\n")
        assert (found.records, found.plain) == (kept.count(b"\n"), len(kept))
        assert bool(found.problem) == (found.good < cut)


def test_a_cut_between_chunks_that_end_with_a_record_loses_nothing() -> None:
    records = b"x" * 63 + b"\n"
    data, _ = archive(records * (2 * CHUNK // 64))
    cut = chunk_ends(data)[2]
    assert look(data[:cut]) == Inspection(cut, CHUNK // 64, CHUNK, "")


def test_a_cut_between_chunks_inside_a_record_is_told() -> None:
    data, _ = archive(b"one\n", b"x" * (2 * CHUNK) + b"\n")
    ends = chunk_ends(data)  # of an identifier, a record, an identifier, half a record
    problem = "record 2 at byte 4: it is torn, uncompressed"
    assert look(data[: ends[4]]) == Inspection(ends[3], 1, 4, problem)


def test_a_flipped_bit_costs_no_member_before_it_and_never_changes_one() -> None:
    data, ends = archive(b"one\ntwo\n", b"x" * 300 + b"\nfour\n", b"five\n" * 100)
    harmless = 0
    for position, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        found = look(bytes(flipped))
        if not found.problem:  # a copy of an x from elsewhere is a copy of an x
            assert plain_of(bytes(flipped)) == plain_of(data)
            harmless += 1
            continue
        before = max((end for end in ends if end <= position), default=0)
        assert before <= found.good <= position
        assert found.problem.startswith("snappy chunk ")
    assert harmless < 40


@pytest.mark.parametrize(
    "tail", [bytes(5000), b"\0", b"garbage\n", b"\xff" * 100, SNAPPY_HEAD[:7], b"\xfe\0\0\0"]
)
def test_what_is_no_chunk_ends_the_good_part(tail: bytes) -> None:
    data, _ = archive(b"one\n", b"two\n")
    found = look(data + tail + data)
    assert (found.good, found.records) == (len(data), 2)
    assert found.problem.startswith(f"snappy chunk 5 at byte {len(data)}: ")


def test_the_place_of_damage_is_its_own_chunks() -> None:
    data, _ = archive(b"one\n", b"x" * (2 * CHUNK) + b"\n")
    damaged = chunk_ends(data)[4]
    found = look(data[:damaged] + bytes(100))
    assert found.problem == (
        f"snappy chunk 5 at byte {damaged}: type 0x00 with 0 bytes, which is never written"
    )


def test_a_file_without_its_stream_identifier_is_damaged() -> None:
    data, _ = archive(b"one\n")
    found = look(data[len(SNAPPY_HEAD) :])
    problem = "snappy chunk 1 at byte 0: the stream identifier is missing"
    assert found == Inspection(0, 0, 0, problem)


def test_streams_with_nothing_in_them_are_good() -> None:
    data = SNAPPY_HEAD + archive(b"one\n")[0] + SNAPPY_HEAD
    assert look(data) == Inspection(len(data), 1, 4, "")
    assert look(SNAPPY_HEAD) == Inspection(len(SNAPPY_HEAD), 0, 0, "")
    assert look(b"") == Inspection(0, 0, 0, "")


def test_a_fault_in_the_records_cuts_no_whole_chunk_away() -> None:
    good = b'{"body":"1"}\n'
    data, _ = archive(good, b"no JSON\n", good)
    problem = f"record 2 at byte {len(good)}: not JSON: Expecting value at column 1, uncompressed"
    found = look(data, json=True)
    assert (found.good, found.records, found.problem) == (len(data), 1, problem)


def test_what_unpacks_to_very_much_is_never_held() -> None:
    encoder = make_encoder("snappy")
    packed = [encoder.write(bytes(1 << 20)) for _ in range(64)]
    data = b"".join(packed) + encoder.write(b"\n") + encoder.finish()
    tracemalloc.start()
    try:
        found = look(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.good, found.records, found.problem) == (len(data), 1, "")
    assert peak < 16 << 20
