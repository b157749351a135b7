"""What of a file is whole: members and records before the first fault, and none of it held."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import struct
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.records.compression import load_zstd, make_encoder
from nsqtools.records.inspection import Inspection, inspect
from nsqtools.records.layout import Layout
from tests.support.raw import prefixed

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPRESSED = ["gzip", "zstd"]
NOUN = {"gzip": "gzip member", "zstd": "zstd frame"}
EMPTY = {"gzip": gzip.compress(b""), "zstd": b"\x28\xb5\x2f\xfd\x24\0\1\0\0\x99\xe9\xd8\x51"}
UNCHECKED = {"gzip": 6 * 8 + 1 + 7, "zstd": 8 + 2}
"""Bits of a member that no checksum covers and no reader needs: time, system, window, padding."""
LOST_POWER = b"\0" * 5000
MIB = 1 << 20
JSON, PREFIXED, NULL = Layout("json"), Layout("length-prefixed"), Layout("raw", b"\0")


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


@dataclass
class Archive:
    """A compressed file and what is known of it: where members end, and their records."""

    data: bytes
    ends: list[int]
    plain: list[bytes]

    def whole_until(self, position: int) -> int:
        """How many members end at or before this byte."""
        return sum(end <= position for end in self.ends)

    def kept(self, count: int) -> Inspection:
        plain = b"".join(self.plain[:count])
        return Inspection([0, *self.ends][count], plain.count(b"\n"), len(plain), "")


def archive(name: str, members: Sequence[bytes]) -> Archive:
    encoder = make_encoder(name)
    pieces = [encoder.write(member) + encoder.finish() for member in members]
    ends = list(itertools.accumulate(map(len, pieces)))
    return Archive(b"".join(pieces), ends, list(members))


def three(name: str) -> Archive:
    return archive(name, [b"one\ntwo\n", b"x" * 300 + b"\nfour\n", b"five\n" * 100])


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


def decoded(name: str, data: bytes) -> bytes:
    decompress = gzip.decompress if name == "gzip" else load_zstd().decompress
    return decompress(data) if data else b""


def envelope(body: str) -> bytes:
    return json.dumps({"topic": "t", "id": "0" * 16, "body": body}).encode() + b"\n"


@pytest.mark.parametrize("name", COMPRESSED)
class TestMembers:
    def test_a_file_cut_anywhere_keeps_the_members_before_the_cut(self, name: str) -> None:
        whole = three(name)
        for cut in range(len(whole.data) + 1):
            found = look(whole.data[:cut], compression=name)
            count = whole.whole_until(cut)
            assert without_problem(found) == whole.kept(count), cut
            torn = f"{NOUN[name]} {count + 1} at byte {found.good}: "
            assert found.problem.startswith("" if found.good == cut else torn)
            assert bool(found.problem) == (found.good != cut)

    def test_a_flipped_bit_costs_no_member_before_it_and_never_changes_one(self, name: str) -> None:
        whole = three(name)
        harmless = 0
        for position, bit in itertools.product(range(len(whole.data)), range(8)):
            data = bytearray(whole.data)
            data[position] ^= 1 << bit
            found = inspect(io.BytesIO(data), compression=name)
            count = whole.whole_until(position)
            if without_problem(found) == whole.kept(count):
                assert found.problem
                continue
            harmless += 1
            plain = b"".join(whole.plain)[: found.plain]
            assert found.plain >= whole.kept(count + 1).plain
            assert decoded(name, bytes(data[: found.good])) == plain
        assert harmless <= 3 * UNCHECKED[name]

    @pytest.mark.parametrize(
        "tail", [LOST_POWER, b"\0", b"garbage\n", b"\xff" * 100, b"\x1f\x8b", b"\x28\xb5\x2f\xfd"]
    )
    def test_what_is_no_member_ends_the_good_part(self, name: str, tail: bytes) -> None:
        whole = three(name)
        found = look(whole.data + tail + whole.data, compression=name)
        assert without_problem(found) == whole.kept(3)
        assert f"4 at byte {found.good}: " in found.problem

    def test_an_empty_member_as_nsq_to_file_writes_is_good(self, name: str) -> None:
        empty = EMPTY[name]
        data = empty + archive(name, [b"one\n"]).data + empty
        assert look(data, compression=name) == Inspection(len(data), 1, 4, "")

    def test_a_fault_in_the_records_of_a_whole_member_does_not_cut_it_away(self, name: str) -> None:
        whole = archive(name, [envelope("1"), b"no JSON\n", envelope("3")])
        found = look(whole.data, compression=name, layout=JSON)
        assert good(found) == (len(whole.data), 1)
        assert found.problem.startswith("line 2: ")
        whole = archive(name, [b"one\ntwo"])
        found = look(whole.data, compression=name)
        assert without_problem(found) == Inspection(len(whole.data), 1, 7, "")
        assert found.problem.startswith("record 2 at byte 4: ")

    def test_empty_records_of_a_nul_delimiter_are_the_writers(self, name: str) -> None:
        whole = archive(name, [b"one\0\0\0"])
        found = look(whole.data, compression=name, layout=NULL)
        assert found == Inspection(len(whole.data), 3, 6, "")

    def test_what_unpacks_to_very_much_is_never_held(self, name: str) -> None:
        encoder = make_encoder(name, 1)
        packed = [encoder.write(bytes(MIB)) for _ in range(64)]
        data = b"".join(packed) + encoder.write(b"\n") + encoder.finish()
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

    def test_an_empty_delimiter_is_refused(self) -> None:
        with pytest.raises(ConfigError):
            look(b"one", layout=Layout("raw", b""))


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
        data = archive(name, [envelope("1"), line]).data
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
    whole = three("zstd")
    found = look(whole.data + load_zstd().compress(b"six\n"), compression="zstd")
    assert without_problem(found) == whole.kept(3)
    assert found.problem.startswith(f"zstd frame 4 at byte {found.good}: ")


@pytest.mark.parametrize(
    ("head", "filler", "size", "options", "expected"),
    [
        (b"one--end--", b"\0", 32 * MIB, {"layout": Layout("raw", b"--end--")}, (10, 1)),
        (b"one\0", b"\0", 32 * MIB, {"layout": NULL}, (4, 1)),
        (b'{"body":"', b"\0", 32 * MIB, {"layout": JSON}, (0, 0)),
        (
            prefixed([b"one"]) + struct.pack(">I", 64 * MIB),
            b"x",
            64 * MIB,
            {"layout": PREFIXED},
            (11 + 64 * MIB, 2),
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
