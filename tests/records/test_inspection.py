"""What of a file is whole: members and records before the first fault, and none of it held."""

import errno
import gzip
import io
import itertools
import json
import tracemalloc
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.records.compression import load_zstd, make_encoder
from nsqtools.records.inspection import Inspection, inspect
from nsqtools.records.layout import Layout
from tests.support.raw import prefixed

COMPRESSED = ["gzip", "zstd"]
NOUN = {"gzip": "gzip member", "zstd": "zstd frame"}
EMPTY = {"gzip": gzip.compress(b""), "zstd": b"\x28\xb5\x2f\xfd\x24\0\1\0\0\x99\xe9\xd8\x51"}
UNCHECKED = {"gzip": 6 * 8 + 1 + 7, "zstd": 8 + 2}
"""Bits of a member that no checksum covers and no reader needs: time, system, window, padding."""
LOST_POWER = b"\0" * 5000
MIB = 1 << 20
RAW, JSON, PREFIXED, NULL = (
    Layout(),
    Layout("json"),
    Layout("length-prefixed"),
    Layout("raw", b"\0"),
)


class Dribble(io.BytesIO):
    """A file that gives ``step`` bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._step)


class Endless(io.RawIOBase):
    """The given bytes, then as many of ``filler`` as are wanted, without holding them."""

    def __init__(self, data: bytes, filler: bytes, size: int) -> None:
        self._data, self._filler, self.left = data, filler, size

    def read(self, size: int = -1, /) -> bytes:
        if self._data:
            data, self._data = self._data, b""
            return data
        size = min(size, self.left)
        self.left -= size
        return self._filler * size


MEMBERS = [b"one\ntwo\n", b"x" * 300 + b"\nfour\n", b"five\n" * 100]


def packed(name: str, members: Sequence[bytes] = MEMBERS) -> list[bytes]:
    encoder = make_encoder(name)
    return [encoder.write(member) + encoder.finish() for member in members]


def kept(name: str, count: int) -> Inspection:
    """What is found in so many of the members."""
    plain = b"".join(MEMBERS[:count])
    return Inspection(sum(map(len, packed(name)[:count])), plain.count(b"\n"), len(plain), "")


def look(data: bytes, **options: Any) -> Inspection:
    """The result, the same however the file is read."""
    found = inspect(io.BytesIO(data), **options)
    for step in (1, 3):
        assert inspect(Dribble(data, step), **options) == found
    return found


def without_problem(found: Inspection) -> Inspection:
    return Inspection(found.good, found.records, found.plain, "")


def good(found: Inspection) -> tuple[int, int]:
    return found.good, found.records


def measured(file: Any, **options: Any) -> tuple[Inspection, int]:
    """What was found, and the most memory that Python had allocated for it."""
    tracemalloc.start()
    try:
        found = inspect(file, **options)
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def envelope(body: str) -> bytes:
    return json.dumps({"topic": "t", "id": "0" * 16, "body": body}).encode() + b"\n"


@pytest.mark.parametrize("name", COMPRESSED)
class TestMembers:
    def test_a_file_cut_anywhere_keeps_the_members_before_the_cut(self, name: str) -> None:
        ends = [kept(name, count).good for count in range(4)]
        whole = b"".join(packed(name))
        for cut in range(len(whole) + 1):
            found = look(whole[:cut], compression=name)
            count = bisect_right(ends, cut) - 1
            assert without_problem(found) == kept(name, count), cut
            torn = f"{NOUN[name]} {count + 1} at byte {found.good}: "
            assert found.problem.startswith("" if found.good == cut else torn)
            assert bool(found.problem) == (found.good != cut)

    def test_a_flipped_bit_costs_no_member_before_it_and_never_changes_one(self, name: str) -> None:
        decompress = gzip.decompress if name == "gzip" else load_zstd().decompress
        ends = [kept(name, count).good for count in range(4)]
        whole = b"".join(packed(name))
        harmless = 0
        for position, bit in itertools.product(range(len(whole)), range(8)):
            data = bytearray(whole)
            data[position] ^= 1 << bit
            found = inspect(io.BytesIO(data), compression=name)
            count = bisect_right(ends, position) - 1
            if without_problem(found) == kept(name, count):
                assert found.problem
                continue
            harmless += 1
            assert found.plain >= kept(name, count + 1).plain
            assert decompress(bytes(data[: found.good])) == b"".join(MEMBERS)[: found.plain]
        assert harmless <= 3 * UNCHECKED[name]

    @pytest.mark.parametrize(
        "tail", [LOST_POWER, b"\0", b"garbage\n", b"\xff" * 100, b"\x1f\x8b", b"\x28\xb5\x2f\xfd"]
    )
    def test_what_is_no_member_ends_the_good_part(self, name: str, tail: bytes) -> None:
        whole = b"".join(packed(name))
        found = look(whole + tail + whole, compression=name)
        assert without_problem(found) == kept(name, 3)
        assert f"4 at byte {found.good}: " in found.problem

    @pytest.mark.parametrize(
        ("members", "layout", "records", "problem"),
        [
            ([b"one\n"], RAW, 1, ""),
            ([b"one\ntwo"], RAW, 1, "record 2 at byte 4: "),
            ([envelope("1"), b"no JSON\n", envelope("3")], JSON, 1, "line 2: "),
            ([b"one\0\0\0"], NULL, 3, ""),  # empty ones that the writer wrote
        ],
    )
    def test_a_fault_in_the_records_of_a_whole_member_does_not_cut_it_away(
        self, name: str, members: list[bytes], layout: Layout, records: int, problem: str
    ) -> None:
        """Nor does an empty member, as nsq_to_file writes it."""
        data = EMPTY[name] + b"".join(packed(name, members)) + EMPTY[name]
        found = look(data, compression=name, layout=layout)
        plain = sum(map(len, members))
        assert without_problem(found) == Inspection(len(data), records, plain, "")
        assert found.problem.startswith(problem)
        assert bool(found.problem) == bool(problem)

    def test_what_unpacks_to_very_much_is_never_held(self, name: str) -> None:
        encoder = make_encoder(name, 1)
        pieces = [encoder.write(bytes(MIB)) for _ in range(64)]
        data = b"".join(pieces) + encoder.write(b"\n") + encoder.finish()
        found, peak = measured(io.BytesIO(data), compression=name)
        assert (*good(found), found.problem) == (len(data), 1, "")
        assert peak < 16 * MIB


class TestDelimited:
    @given(
        records=st.lists(st.text("ab\n", max_size=6).map(str.encode), max_size=8),
        delimiter=st.text("ab\n", min_size=1, max_size=4).map(str.encode),
        tail=st.text("ab\n", max_size=4).map(str.encode),
        step=st.integers(1, 9),
    )
    def test_a_file_is_good_up_to_its_last_delimiter(
        self, records: list[bytes], delimiter: bytes, tail: bytes, step: int
    ) -> None:
        data = b"".join(record + delimiter for record in records) + tail
        *whole, rest = data.split(delimiter)
        found = inspect(Dribble(data, step), layout=Layout("raw", delimiter))
        assert good(found) == (len(data) - len(rest), len(whole))
        assert found.plain == found.good
        assert bool(found.problem) == bool(rest)


class TestLengthPrefixed:
    @given(
        records=st.lists(st.binary(min_size=1, max_size=20), max_size=6),
        cut=st.integers(0),
        step=st.integers(1, 9),
    )
    def test_a_file_cut_anywhere_keeps_its_whole_records(
        self, records: list[bytes], cut: int, step: int
    ) -> None:
        data = prefixed(records)
        cut %= len(data) + 1
        ends = [0, *itertools.accumulate(4 + len(record) for record in records)]
        count = sum(end <= cut for end in ends) - 1
        found = inspect(Dribble(data[:cut], step), layout=PREFIXED)
        assert without_problem(found) == Inspection(ends[count], count, ends[count], "")
        assert bool(found.problem) == (cut != found.good)

    def test_zeros_are_no_records(self) -> None:
        data = prefixed([b"one", b"two\0\0\0\0"])
        found = look(data + LOST_POWER, layout=PREFIXED)
        assert without_problem(found) == Inspection(len(data), 2, len(data), "")
        assert found.problem.startswith(f"record 3 at byte {len(data)}: its size is 0")


class TestJson:
    @pytest.mark.parametrize(
        "bad",
        [
            *(b"{}\n", b"garbage\n", envelope("torn")[:20] + envelope("glued"), b"\xff\xfe\n"),
            *(LOST_POWER + b"{}\n", envelope("4")[:9], LOST_POWER),
        ],
    )
    def test_a_line_that_is_no_envelope_ends_the_good_part(self, bad: bytes) -> None:
        whole = envelope("1") + b"\n" + envelope("2")
        for rest, step in itertools.product((b"", envelope("4")), (1, 3, 9999)):
            found = inspect(Dribble(whole + bad + rest, step), layout=JSON)
            assert good(found) == (len(whole), 2)
            assert found.problem.startswith("line 4: ")

    @pytest.mark.parametrize("name", ["none", *COMPRESSED])
    @pytest.mark.parametrize("over", [0, 1])
    def test_a_line_over_the_bound_is_an_error_that_names_the_option(
        self, over: int, name: str
    ) -> None:
        limit = 30_000
        longest = limit * 4 // 3 + 65536
        line = b'{"body":"'.ljust(longest + over - 2, b"x") + b'"}\n'
        data = b"".join(packed(name, [envelope("1"), line]))
        for step in (len(data), 1009):
            file = Dribble(data, step)
            if over:
                with pytest.raises(OSError, match=r"line 2 is over 105536 .*--max-msg-size") as e:
                    inspect(file, compression=name, layout=JSON, max_msg_size=limit)
                assert e.value.errno == errno.EFBIG
            else:
                found = inspect(file, compression=name, layout=JSON, max_msg_size=limit)
                assert (*good(found), found.problem) == (len(data), 2, "")


def test_a_zstd_frame_without_a_checksum_is_not_good() -> None:
    whole = b"".join(packed("zstd"))
    found = look(whole + load_zstd().compress(b"six\n"), compression="zstd")
    assert without_problem(found) == kept("zstd", 3)
    assert found.problem.startswith(f"zstd frame 4 at byte {found.good}: ")


@pytest.mark.parametrize(
    ("head", "filler", "size", "options", "expected"),
    [
        (b"one--end--", b"\0", 32 * MIB, {"layout": Layout("raw", b"--end--")}, (10, 1)),
        (b"one\0", b"\0", 32 * MIB, {"layout": NULL}, (4, 1)),
        (b'{"body":"', b"\0", 32 * MIB, {"layout": JSON}, (0, 0)),
        (
            *(prefixed([b"one"]) + (64 * MIB).to_bytes(4, "big"), b"x", 64 * MIB),
            *({"layout": PREFIXED}, (11 + 64 * MIB, 2)),
        ),
    ],
)
def test_what_is_very_long_is_never_held(
    head: bytes, filler: bytes, size: int, options: dict[str, Any], expected: tuple[int, int]
) -> None:
    found, peak = measured(Endless(head, filler, size), **options)
    assert good(found) == expected
    assert peak < 16 * MIB


def test_a_line_without_an_end_is_read_no_further_than_the_bound() -> None:
    file = Endless(b'{"body":"', b"x", 64 * MIB)
    with pytest.raises(OSError, match="--max-msg-size"):
        inspect(file, layout=JSON, max_msg_size=MIB)  # type: ignore[arg-type]
    assert file.left > 60 * MIB
