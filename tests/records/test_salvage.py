"""What is whole in a damaged file is found, wherever the damage is; a torn end is no damage."""

import io
import itertools
import json
import os
from bisect import bisect_right
from collections.abc import Sequence

import pytest

from nsqtools.records import compression
from nsqtools.records.compression import make_encoder
from nsqtools.records.layout import Layout
from nsqtools.records.salvage import Salvage, salvage
from tests.support.damage import cut, flipped
from tests.support.raw import prefixed

COMPRESSED = ["gzip", "zstd"]
JSON, PREFIXED = Layout("json"), Layout("length-prefixed")
BODIES = [b"one", b"two" * 9, b"3", b"four" * 5, b"fifth"]
POWER_FAILURE = bytes(5000)


def packed(name: str, members: Sequence[bytes]) -> list[bytes]:
    encoder = make_encoder(name)
    return [encoder.write(member) + encoder.finish() for member in members]


def envelopes(bodies: Sequence[bytes] = BODIES) -> list[bytes]:
    return [json.dumps({"id": "0", "body": body.decode()}).encode() + b"\n" for body in bodies]


def look(data: bytes, layout: Layout = JSON, compression: str = "none") -> Salvage:
    """The result, in which no byte of the file is missing or found twice."""
    found = salvage(io.BytesIO(data), layout, compression=compression, max_msg_size=1000)
    losses = [*found.damaged, *([found.torn] if found.torn else [])]
    parts = sorted([*found.kept, *((start, end) for start, end, _ in losses)])
    assert [0, *(end for _, end in parts)] == [*(start for start, _ in parts), len(data)]
    assert all(f" at byte {loss.start}: " in loss.reason for loss in losses)
    return found


def has(found: Salvage, start: int, end: int) -> bool:
    """Whether a range is kept as a whole."""
    return any(begin <= start and end <= stop for begin, stop in found.kept)


class Parts:
    """Records or members that follow each other."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.data = b"".join(parts)
        self.ends = [0, *itertools.accumulate(map(len, parts))]

    def at(self, offset: int) -> int:
        """Which one has this byte."""
        return bisect_right(self.ends, offset) - 1

    def kept(self, found: Salvage) -> list[int]:
        """Those that are kept."""
        ranges = enumerate(itertools.pairwise(self.ends))
        return [number for number, (start, end) in ranges if has(found, start, end)]

    def others(self, *numbers: int) -> list[int]:
        return [number for number in range(len(self.ends) - 1) if number not in numbers]


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("layout", [Layout(), JSON, PREFIXED])
class TestMembers:
    @pytest.fixture
    def parts(self, layout: Layout, name: str) -> Parts:
        records = {"raw": [body + b"\n" for body in BODIES], "json": envelopes()}
        members = records.get(layout.format) or [prefixed([body]) for body in BODIES]
        return Parts(packed(name, members))

    def test_a_flipped_bit_costs_no_other_member(
        self, parts: Parts, layout: Layout, name: str
    ) -> None:
        last = len(BODIES) - 1
        taken_for_torn = 0
        for at, data in flipped(parts.data, every_bit=True):
            found = look(data, layout, name)
            hit = parts.at(at)
            if len(found.kept) == 1 and found.kept[0] == (0, len(data)):
                continue  # a bit that no checksum covers and no reader needs
            assert parts.kept(found) == parts.others(hit), at
            assert (found.records, len(found.damaged) + bool(found.torn)) == (last, 1)
            taken_for_torn += bool(found.torn)
            assert not found.torn or hit == last
        assert taken_for_torn <= 24  # of the size of the last block of zstd

    def test_a_cut_is_torn_and_costs_no_whole_member(
        self, parts: Parts, layout: Layout, name: str
    ) -> None:
        for at, data in cut(parts.data):
            for rest in (b"", POWER_FAILURE):
                found = look(data + rest, layout, name)
                whole = parts.at(at)
                # Zeros may complete a checksum and a size.
                assert found.records == whole or (rest and found.records == whole + 1), at
                assert not found.damaged, at
                assert bool(found.torn) == (data + rest != parts.data[: parts.ends[whole]])


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_whole_member_within_a_body_is_no_member_of_the_file(name: str) -> None:
    body = b"".join(packed(name, [b"a" * 20])) + os.urandom(500)
    parts = Parts(packed(name, [b"1\n", body + b"\n", b"3\n"]))
    where = parts.data.index(body)
    found = look(parts.data[: where - 1] + b"\xff" + parts.data[where:], Layout(), name)
    assert parts.kept(found) == [0, 2]


@pytest.mark.parametrize("name", COMPRESSED)
def test_several_damaged_places_are_found(name: str) -> None:
    parts = Parts(packed(name, [b"%d\n" % number for number in range(7)]))
    data = bytearray(parts.data)
    for number in (0, 3, 4):
        data[parts.ends[number + 1] - 6] ^= 1  # of a checksum
    found = look(bytes(data) + parts.data[:9], Layout(), name)
    assert parts.kept(found) == [1, 2, 5, 6]
    assert [loss[:2] for loss in found.damaged] == [
        (0, parts.ends[1]),
        (parts.ends[3], parts.ends[5]),
    ]
    assert found.torn


class TestJson:
    def test_a_flipped_bit_costs_no_other_line(self) -> None:
        parts = Parts(envelopes())
        for at, data in flipped(parts.data, every_bit=True):
            found = look(data)
            hit = parts.at(at)
            both = (hit, hit + 1) if at + 1 in parts.ends else (hit,)  # a line end
            if found.damaged:
                assert parts.kept(found) == parts.others(*both), at
            else:  # within a text, or a blank line more
                assert found.records >= len(BODIES) - 1, at
                assert found.kept == ((0, len(data)),)
            assert not found.torn, at

    def test_a_cut_is_torn_and_costs_no_whole_line(self) -> None:
        parts = Parts(envelopes())
        for at, data in cut(parts.data):
            for rest in (b"", POWER_FAILURE):
                found = look(data + rest)
                assert (parts.kept(found), found.damaged) == (list(range(parts.at(at))), ()), at

    def test_lost_blocks_are_one_loss(self) -> None:
        parts = Parts(envelopes())
        start, end = parts.ends[1] + 5, parts.ends[3] + 5
        data = parts.data[:start] + b"\n" * (end - start) + parts.data[end:]
        found = look(data)
        assert parts.kept(found) == [0, 4]


class TestLengthPrefixed:
    def test_a_flipped_bit_of_a_size_costs_no_record_behind(self) -> None:
        parts = Parts([prefixed([body]) for body in BODIES])
        last = len(BODIES) - 1
        for at, data in flipped(parts.data, every_bit=True):
            found = look(data, PREFIXED)
            hit = parts.at(at)
            if at - parts.ends[hit] >= 4:
                assert found.kept == ((0, len(data)),)  # within a body
                continue
            assert {*parts.kept(found)} >= {*parts.others(hit, hit - 1)}, at
            assert found.damaged or (found.torn and hit == last), at

    def test_a_cut_is_torn_and_costs_no_whole_record(self) -> None:
        parts = Parts([prefixed([body]) for body in BODIES])
        for at, data in cut(parts.data):
            for rest in (b"", POWER_FAILURE):
                found = look(data + rest, PREFIXED)
                assert not found.damaged, at
                assert parts.at(at) <= found.records <= parts.at(at) + bool(rest), at

    def test_records_within_a_torn_body_are_none(self) -> None:
        inner = prefixed([b"a", b"b", b"c"])
        for outer in ([b"1", inner], [inner, b"1"], [inner, inner]):
            data = prefixed(outer)
            found = look(data + prefixed([inner])[:-2], PREFIXED)
            assert (found.kept, found.damaged) == (((0, len(data)),), ())


def test_any_bytes_are_records_of_raw_but_for_the_end() -> None:
    found = look(b"one\n\0\xff\ntw", Layout())
    assert (found.kept, found.records, found.damaged) == (((0, 7),), 2, ())
    assert found.torn


def test_each_part_of_a_file_with_damage_everywhere_is_read_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            amounts.append(len(data := super().read(size)))
            return data

    for name in ("_READ", "_READ_COMPRESSED"):
        monkeypatch.setattr(compression, name, 1 << 12)
    amounts: list[int] = []
    members = packed("gzip", [os.urandom(20_000) for _ in range(80)])
    for number in range(0, len(members), 2):
        members[number] = members[number][:-5] + b"12345"  # its checksum and size
    whole = b"".join(members)
    found = salvage(Counted(whole), Layout(), compression="gzip", max_msg_size=0)
    assert len(found.damaged) == len(found.kept) == 40
    assert sum(amounts) < 3 * len(whole)


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_cut_member_of_an_empty_file_is_torn(name: str) -> None:
    whole = make_encoder(name).empty()
    assert look(whole, compression=name).kept == ((0, len(whole)),)
    for at, data in cut(whole):
        assert look(data, compression=name).damaged == (), at
