from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sinks.compression import METHODS, make_encoder, method_of
from nsqtools.sinks.files.manifest import Manifest, Published
from nsqtools.sinks.verification import Layout, Report, check

if TYPE_CHECKING:
    from pathlib import Path

RAW = Layout()


def packed(name: str, *members: bytes) -> bytes:
    encoder = make_encoder(method_of(name))
    return b"".join(encoder.write(member) + encoder.finish() for member in members)


def envelope(body: str) -> bytes:
    return json.dumps({"topic": "t", "id": "0" * 16, "timestamp": 1, "body": body}).encode() + b"\n"


class Shelf:
    """A folder of published files with their manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "manifest"

    def publish(self, name: str, *members: bytes, topic: str = "events", **facts: Any) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = packed(name, *members)
        path.write_bytes(data)
        told = {
            "records": b"".join(members).count(b"\n"),
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "format": "raw",
            "delimiter": "\\n",
            "compression": method_of(name),
        }
        published = Published(path=str(path), name=name, topic=topic, **{**told, **facts})
        Manifest(str(self.manifest)).append(published)
        return path

    def edit(self, number: int, **keys: Any) -> None:
        """Change keys of a line, from 1; those with ... are removed."""
        lines = self.manifest.read_bytes().splitlines()
        changed = {**json.loads(lines[number - 1]), **keys}
        kept = {key: value for key, value in changed.items() if value is not ...}
        lines[number - 1] = json.dumps(kept).encode()
        self.manifest.write_bytes(b"".join(line + b"\n" for line in lines))

    def check(self) -> list[Report]:
        return list(check(str(self.manifest), RAW))

    def problems(self) -> list[str]:
        return [report.problem for report in self.check()]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


class TestArchives:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_whole_archive_is_good_whatever_packed_it(self, tmp_path: Path, method: str) -> None:
        path = tmp_path / f"events.log{METHODS[method].suffix}"
        path.write_bytes(packed(path.name, b"one\ntwo\n", b"three\n"))
        assert list(check(str(path), RAW)) == [Report(3, path.stat().st_size)]

    @pytest.mark.parametrize("method", METHODS)
    def test_a_torn_archive_is_bad_from_its_last_whole_member_or_record_on(
        self, tmp_path: Path, method: str
    ) -> None:
        path = tmp_path / f"events.log{METHODS[method].suffix}"
        first = packed(path.name, b"one\ntwo\n")
        path.write_bytes(first + packed(path.name, b"three\n")[:-1])
        (report,) = check(str(path), RAW)
        assert report.records == 2
        assert report.size >= len(first)
        assert f" at byte {report.size}: " in report.problem

    def test_records_are_read_as_the_layout_says(self, tmp_path: Path) -> None:
        path = tmp_path / "events.log"
        path.write_bytes(envelope("1") + envelope("2") + b"three\n")
        assert list(check(str(path), RAW)) == [Report(3, path.stat().st_size)]
        (report,) = check(str(path), Layout("json"))
        assert report.problem.startswith(f"record 3 at byte {report.size}: not JSON")
        path.write_bytes(b"\0\0\0\3one\0\0\0\3two")
        assert list(check(str(path), Layout("length-prefixed"))) == [Report(2, 14)]
        path.write_bytes(b"one--two--")
        assert list(check(str(path), Layout("raw", b"--"))) == [Report(2, 10)]

    def test_an_empty_archive_is_good(self, tmp_path: Path) -> None:
        for method, each in METHODS.items():
            path = tmp_path / f"events{each.suffix}"
            path.write_bytes(make_encoder(method).empty())
            assert list(check(str(path), RAW)) == [Report(0, path.stat().st_size)]

    @pytest.mark.parametrize(
        ("suffix", "member"),
        [(".gz", "gzip member"), (".zst", "zstd frame")],
    )
    def test_a_compressed_archive_without_a_member_is_bad_and_an_empty_plain_one_good(
        self, tmp_path: Path, suffix: str, member: str
    ) -> None:
        path = tmp_path / f"events.log{suffix}"
        path.touch()
        assert list(check(str(path), RAW)) == [Report(problem=f"empty: not even one {member}")]
        (tmp_path / "events.log").touch()
        assert list(check(str(tmp_path / "events.log"), RAW)) == [Report()]

    def test_an_archive_of_bodies_in_json_is_no_manifest(self, tmp_path: Path) -> None:
        path = tmp_path / "events.log"
        path.write_bytes(b'{"name":"x","records":1,"bytes":2}\n' * 3)
        assert list(check(str(path), RAW)) == [Report(3, path.stat().st_size)]

    def test_what_cannot_be_read_is_not_called_bad(self, tmp_path: Path) -> None:
        missing = Report(problem="No such file or directory", unreadable=True)
        assert list(check(str(tmp_path / "missing"), RAW)) == [missing]
        folder = Report(problem="Is a directory", unreadable=True)
        assert list(check(str(tmp_path), RAW)) == [folder]


class TestManifests:
    def test_all_files_and_records_are_counted_together(self, shelf: Shelf) -> None:
        paths = [
            shelf.publish("dt=1/a.log", b"one\n", b"two\n"),
            shelf.publish("dt=2/a.log.gz", b"three\n"),
            shelf.publish("b.json.zst", envelope("1"), format="json", delimiter=""),
            shelf.publish("c.log", b"1--2--", records=2, delimiter="--"),
            shelf.publish("d.log", b"\0\0\0\1x", records=1, format="length-prefixed"),
            shelf.publish("e.log", b"x\n", records=None),
        ]
        size = sum(path.stat().st_size for path in paths)
        assert shelf.check() == [Report(8, size, files=6, deleted=0)]

    def test_the_files_are_looked_for_beside_the_manifest(
        self, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shelf.publish("a.log", b"one\n")
        monkeypatch.chdir(shelf.folder)
        assert list(check("manifest", RAW)) == [Report(1, 4, files=1, deleted=0)]
        monkeypatch.chdir("/")
        assert shelf.problems() == [""]

    def test_each_bad_file_is_told_with_its_line(self, shelf: Shelf) -> None:
        shelf.publish("a.log", b"one\n")
        torn = shelf.publish("b.log.gz", b"two\n", b"three\n")
        shelf.publish("c.log", b"four\n")
        grown = shelf.publish("d.log", b"five\n")
        first = len(packed("x.gz", b"two\n"))
        os.truncate(torn, torn.stat().st_size - 1)
        grown.write_bytes(b"five\nsix\n")
        assert shelf.check() == [
            Report(
                1, first, f"line 2: b.log.gz: gzip member 2 at byte {first}: the file ends in it"
            ),
            Report(2, 9, "line 4: d.log: 9 bytes, expected 5"),
        ]

    def test_a_file_of_the_same_size_with_other_content_is_bad(self, shelf: Shelf) -> None:
        shelf.publish("a.log", b"one\n").write_bytes(b"two\n")
        old, new = (hashlib.sha256(data).hexdigest() for data in (b"one\n", b"two\n"))
        assert shelf.problems() == [f"line 1: a.log: its sha256 is {new}, expected {old}"]

    @pytest.mark.parametrize(
        ("records", "problem"), [(3, "2 records, expected 3"), (2, ""), (1, ""), (None, "")]
    )
    def test_raw_records_may_be_more_than_messages_but_never_fewer(
        self, shelf: Shelf, records: int | None, problem: str
    ) -> None:
        shelf.publish("a.log", b"one\ntwo\n", records=records)
        assert shelf.problems() == [f"line 1: a.log: {problem}" if problem else ""]

    def test_records_of_other_formats_are_exactly_as_many(self, shelf: Shelf) -> None:
        shelf.publish("a.log", envelope("1") + envelope("2"), records=1, format="json")
        assert shelf.problems() == ["line 1: a.log: 2 records, expected 1"]

    def test_the_oldest_files_of_a_topic_may_have_been_deleted(self, shelf: Shelf) -> None:
        for number in range(4):
            for topic in "ab":
                path = shelf.publish(f"{topic}.{number}.log", b"one\n", topic=topic)
                if number < {"a": 3, "b": 1}[topic]:
                    path.unlink()
        assert shelf.check() == [Report(4, 16, files=4, deleted=4)]

    def test_a_file_gone_from_the_middle_is_bad(self, shelf: Shelf) -> None:
        paths = [shelf.publish(f"{number}.log", b"one\n") for number in range(4)]
        paths[0].unlink()
        paths[2].unlink()
        assert shelf.problems() == [
            "line 3: 2.log: gone, though an older file of its topic is there"
        ]

    def test_the_newest_file_of_a_topic_is_never_deleted(self, shelf: Shelf) -> None:
        shelf.publish("a.log", b"one\n", topic="a")
        for number in range(3):
            shelf.publish(f"b.{number}.log", b"one\n", topic="b").unlink()
        assert shelf.problems() == ["line 4: b.2.log: gone, though the newest file of its topic"]

    def test_a_listed_file_that_cannot_be_read_is_not_called_bad(self, shelf: Shelf) -> None:
        path = shelf.publish("a.log", b"one\n")
        path.unlink()
        path.mkdir()
        assert shelf.check() == [Report(problem="line 1: a.log: Is a directory", unreadable=True)]

    def test_a_compressed_file_without_a_member_is_bad_whatever_its_line_says(
        self, shelf: Shelf
    ) -> None:
        shelf.publish("a.log.gz")
        assert shelf.problems() == ["line 1: a.log.gz: empty: not even one gzip member"]

    def test_the_last_line_of_a_name_counts(self, shelf: Shelf) -> None:
        shelf.publish("m.log", b"one\n")
        shelf.publish("n.log", b"two\n")
        shelf.publish("m.log", b"one\nthree\n")
        assert shelf.check() == [Report(3, 14, files=2, deleted=0)]
        (shelf.folder / "m.log").write_bytes(b"one\n")
        assert shelf.problems() == ["line 3: m.log: 4 bytes, expected 10"]
        (shelf.folder / "m.log").unlink()
        assert shelf.problems() == [
            "line 3: m.log: gone, though an older file of its topic is there"
        ]

    def test_earlier_lines_of_a_name_are_no_deleted_files(self, shelf: Shelf) -> None:
        shelf.publish("m.log", b"one\n")
        shelf.publish("m.log", b"two\n").unlink()
        shelf.publish("n.log", b"three\n")
        assert shelf.check() == [Report(1, 6, files=1, deleted=1)]

    def test_a_last_line_that_is_none_of_ours_is_bad_and_the_one_before_counts(
        self, shelf: Shelf
    ) -> None:
        shelf.publish("m.log", b"one\n")
        shelf.publish("m.log", b"two\n")
        first = len(shelf.manifest.read_bytes().splitlines(keepends=True)[0])
        shelf.edit(2, sha256=...)
        one, two = (hashlib.sha256(data).hexdigest() for data in (b"one\n", b"two\n"))
        assert shelf.problems() == [
            f"line 1: m.log: its sha256 is {two}, expected {one}",
            f"line 2 at byte {first}: sha256 is missing",
        ]

    @pytest.mark.parametrize(
        ("keys", "problem"),
        [
            ({"name": 7}, "name is not a string"),
            ({"name": "a\0b"}, "name is 'a\\x00b', which no file can have"),
            ({"name": "\ud800"}, "name is '\\ud800', which no file can have"),
            ({"topic": ...}, "topic is missing"),
            ({"records": "one"}, "records is not a whole number"),
            ({"bytes": True}, "bytes is not a whole number"),
            ({"sha256": None}, "sha256 is missing"),
            ({"format": "csv"}, "format is 'csv', expected raw, json, length-prefixed"),
            ({"compression": "xz"}, "compression is 'xz', expected none, gzip, zstd"),
            ({"delimiter": ""}, "delimiter is empty"),
        ],
    )
    def test_a_line_that_is_none_of_ours_is_bad(
        self, shelf: Shelf, keys: dict[str, Any], problem: str
    ) -> None:
        shelf.publish("a.log", b"one\n")
        shelf.publish("b.log", b"two\n")
        second = len(shelf.manifest.read_bytes().splitlines(keepends=True)[0])
        shelf.edit(2, **keys)
        assert shelf.problems() == [f"line 2 at byte {second}: {problem}"]

    def test_what_comes_after_a_bad_line_is_checked_too(self, shelf: Shelf) -> None:
        for name in "abc":
            shelf.publish(f"{name}.log", b"one\n")
        lines = shelf.manifest.read_bytes().splitlines(keepends=True)
        shelf.manifest.write_bytes(lines[0] + b"[]\n" + b"rubbish\n" + lines[1] + lines[2])
        (shelf.folder / "c.log").write_bytes(b"on\n")
        place = len(lines[0])
        assert shelf.problems() == [
            f"line 2 at byte {place}: not an object",
            f"line 3 at byte {place + 3}: not JSON",
            "line 5: c.log: 3 bytes, expected 4",
        ]

    @pytest.mark.parametrize("tail", [b'{"name": "b.l', b'{"name": "b"}'])
    def test_a_torn_last_line_is_bad(self, shelf: Shelf, tail: bytes) -> None:
        shelf.publish("a.log", b"one\n")
        size = shelf.manifest.stat().st_size
        with open(shelf.manifest, "ab") as file:
            file.write(tail)
        assert shelf.problems() == [f"line 2 at byte {size}: it is torn"]

    def test_what_a_file_with_a_record_over_the_bound_holds_is_not_known(
        self, shelf: Shelf
    ) -> None:
        path = shelf.publish("a.log", envelope("x" * 80_000), format="json", delimiter="")
        for place, layout in ((path, Layout("json", max_msg_size=99)), (shelf.manifest, RAW)):
            (report,) = check(str(place), replace(layout, max_msg_size=99))
            assert report.unreadable
            assert "--max-msg-size 99" in report.problem
            (report,) = check(str(place), replace(layout, max_msg_size=80_000))
            assert (report.problem, report.records) == ("", 1)

    def test_a_line_without_an_end_is_never_held(self, shelf: Shelf) -> None:
        shelf.publish("a.log", b"one\n")
        size = shelf.manifest.stat().st_size
        os.truncate(shelf.manifest, 256 << 20)
        tracemalloc.start()
        try:
            problems = shelf.problems()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert problems == [f"line 2 at byte {size}: too long for a line of a manifest"]
        assert peak < 8 << 20
