import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nsqtools.records.compression import make_encoder, method_of
from nsqtools.records.layout import Layout
from nsqtools.records.manifest import CompletedFile
from nsqtools.records.verification import Verification, check
from nsqtools.sinks.files.aftercare import Manifest
from tests.support.archiving import completed
from tests.support.damage import cut, flipped

RAW = Layout()


def packed(name: str, *members: bytes) -> bytes:
    encoder = make_encoder(method_of(name))
    return b"".join(encoder.write(member) + encoder.finish() for member in members)


def envelope(body: str) -> bytes:
    return json.dumps({"topic": "t", "id": "0" * 16, "timestamp": 1, "body": body}).encode() + b"\n"


class Shelf:
    """A folder of completed files with their manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "manifest"

    def complete(self, name: str, *members: bytes, topic: str = "events", **facts: Any) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = packed(name, *members)
        path.write_bytes(data)
        known = {
            "records": b"".join(members).count(b"\n"),
            "sha256": hashlib.sha256(data).hexdigest(),
            "compression": method_of(name),
        }
        told = completed(path, name=name, topic=topic, size=len(data), **{**known, **facts})
        Manifest(str(self.manifest)).append(told)
        return path

    def edit(self, number: int, **keys: Any) -> int:
        """Change keys of a line, from 1, and remove those with ...; where the line begins.

        The line is then as version 0.3 wrote it, without a checksum.
        """
        lines = self.manifest.read_bytes().splitlines(keepends=True)
        changed = {**json.loads(lines[number - 1]), "crc32": ..., **keys}
        kept = {key: value for key, value in changed.items() if value is not ...}
        lines[number - 1] = json.dumps(kept).encode() + b"\n"
        self.manifest.write_bytes(b"".join(lines))
        return sum(map(len, lines[: number - 1]))

    def check(self) -> list[Verification]:
        return list(check(str(self.manifest), RAW))

    def places(self) -> list[str]:
        """Of problems: the line, and the name or byte."""
        return [":".join(report.problem.split(":")[:2]) for report in self.check()]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def one(path: Path, layout: Layout = RAW, **bound: Any) -> Verification:
    """What is said of an archive."""
    (report,) = check(str(path), layout, **bound)
    return report


class TestManifests:
    def test_all_files_and_records_are_counted_together(
        self, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = [
            shelf.complete("dt=1/a.log", b"one\n", b"two\n"),
            shelf.complete("dt=2/a.log.gz", b"three\n"),
            shelf.complete("b.json.zst", envelope("1"), format="json", delimiter=""),
            shelf.complete("c.log", b"1--2--", records=2, delimiter="--"),
            shelf.complete("d.log", b"\0\0\0\1x", records=1, format="length-prefixed"),
            shelf.complete("e.log", b"x\n", records=None),
        ]
        report = Verification(8, sum(path.stat().st_size for path in paths), files=6, deleted=0)
        assert shelf.check() == [report]
        monkeypatch.chdir(shelf.folder)  # the files are looked for beside the manifest
        assert list(check("manifest", RAW)) == [report]

    @pytest.mark.parametrize("name", ["{}/a.log", "../out/a.log", "in/../../out/a.log"])
    def test_a_name_that_leads_out_of_the_directory_is_followed_only_where_the_user_says(
        self, name: str, tmp_path: Path
    ) -> None:
        out, link = tmp_path / "out", tmp_path / "link"
        link.symlink_to(out)
        shelf = Shelf(tmp_path / "logs")
        (shelf.folder / "in").mkdir(parents=True)
        shelf.complete("../out/a.log", b"one\n")
        shelf.edit(1, name=name.format(out))
        (report,) = shelf.check()
        assert (report.records, bool(report.problem)) == (0, True)
        assert shelf.places() == [f"line 1: {name.format(out)}"]
        for below, records in ((out, 1), (link, 1), (tmp_path, 1), (tmp_path / "ou", 0)):
            (report,) = check(str(shelf.manifest), RAW, below=str(below))
            assert report.records == records
        copies = check(str(shelf.manifest), RAW, below=str(out), uploaded=lambda _: out.open("rb"))
        assert [report.records for report in copies] == [0]

    def test_each_bad_file_is_told_with_its_line(self, shelf: Shelf) -> None:
        shelf.complete("a.log", b"one\n")
        torn = shelf.complete("b.log.gz", b"two\n", b"three\n")
        shelf.complete("c.log", b"four\n")
        shelf.complete("d.log", b"five\n").write_bytes(b"five\nsix\n")
        shelf.complete("e.log", b"one\n").write_bytes(b"two\n")  # of the same size
        first = len(packed("x.gz", b"two\n"))
        os.truncate(torn, torn.stat().st_size - 1)
        found = [(report.records, report.size) for report in shelf.check()]
        assert found == [(1, first), (2, 9), (1, 4)]
        assert shelf.places() == ["line 2: b.log.gz", "line 4: d.log", "line 5: e.log"]
        assert f" at byte {first}: " in shelf.check()[0].problem

    @pytest.mark.parametrize(
        ("form", "records", "is_bad"),
        [
            *(("raw", 3, True), ("raw", 2, False), ("raw", 1, False), ("raw", None, False)),
            *(("json", 3, True), ("json", 2, False), ("json", 1, True)),
        ],
    )
    def test_raw_records_may_be_more_than_messages_others_are_exactly_as_many(
        self, shelf: Shelf, form: str, records: int | None, is_bad: bool
    ) -> None:
        shelf.complete("a.log", envelope("1") + envelope("2"), records=records, format=form)
        assert shelf.places() == (["line 1: a.log"] if is_bad else [""])

    @pytest.mark.parametrize(
        ("files", "places"),
        [
            ("a0- b0- a1- b1 a2- b2 a3 b3", []),
            ("a0- a1 a2- a3 b0- b1-", ["line 3: a2", "line 6: b1"]),
        ],
    )
    def test_only_the_oldest_files_of_a_topic_may_have_been_deleted(
        self, shelf: Shelf, files: str, places: list[str]
    ) -> None:
        for file in files.split():
            path = shelf.complete(file.strip("-"), b"one\n", topic=file[0])
            if file.endswith("-"):
                path.unlink()
        assert shelf.places() == (places or [""])
        if not places:
            assert shelf.check() == [Verification(4, 16, files=4, deleted=4)]

    def test_the_last_line_of_a_name_counts(self, shelf: Shelf) -> None:
        shelf.complete("m.log", b"one\n")
        shelf.complete("n.log", b"two\n")
        again = shelf.complete("m.log", b"one\nthree\n")
        shelf.complete("o.log", b"four\n", topic="other").unlink()
        shelf.complete("o.log", b"five\n", topic="other")
        assert shelf.check() == [Verification(4, 19, files=3, deleted=0)]
        again.write_bytes(b"one\n")
        assert shelf.places() == ["line 3: m.log"]
        again.unlink()
        assert shelf.places() == ["line 3: m.log"]

    @pytest.mark.parametrize(
        ("keys", "key"),
        [
            ({"name": 7}, "name"),
            ({"name": "a\0b"}, "name"),
            ({"name": "\ud800"}, "name"),
            ({"topic": ...}, "topic"),
            ({"records": "one"}, "records"),
            ({"bytes": True}, "bytes"),
            ({"sha256": None}, "sha256"),
            ({"format": "csv"}, "format"),
            ({"compression": "xz"}, "compression"),
            ({"delimiter": ""}, "delimiter"),
        ],
    )
    def test_a_line_that_is_none_of_ours_is_bad_and_the_one_before_counts(
        self, shelf: Shelf, keys: dict[str, Any], key: str
    ) -> None:
        shelf.complete("m.log", b"one\n")
        shelf.complete("m.log", b"two\n")
        second = shelf.edit(2, **keys)
        of_the_file, of_the_line = (report.problem for report in shelf.check())
        assert of_the_file.startswith("line 1: m.log: ")
        assert of_the_line.startswith(f"line 2 at byte {second}: {key} is ")

    def test_what_a_file_with_a_record_over_the_bound_holds_is_not_known(
        self, shelf: Shelf
    ) -> None:
        path = shelf.complete("a.log", envelope("x" * 80_000), format="json", delimiter="")
        for place, layout in ((path, Layout("json")), (shelf.manifest, RAW)):
            report = one(place, layout, max_msg_size=99)
            assert report.unreadable
            assert "--max-msg-size" in report.problem
            report = one(place, layout, max_msg_size=80_000)
            assert (report.problem, report.records) == ("", 1)


class TestDamagedManifests:
    """Whatever is damaged is named, and the files of the other lines are checked all the same."""

    @pytest.fixture
    def shelf(self, shelf: Shelf) -> Shelf:
        """Two files, of which the second is bad."""
        shelf.complete("a", b"1\n")
        shelf.complete("b", b"1\n").write_bytes(b"2\n")
        return shelf

    @pytest.fixture
    def whole(self, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> bytes:
        assert shelf.places() == ["line 2: b"]
        monkeypatch.setattr(os, "fsync", bool)  # thousands of them
        return shelf.manifest.read_bytes()

    def test_a_flipped_bit_anywhere(self, shelf: Shelf, whole: bytes) -> None:
        for at, data in flipped(whole):
            shelf.manifest.write_bytes(data)
            line = whole.count(b"\n", 0, at) + 1
            begin = whole.rfind(b"\n", 0, at) + 1
            first, *others = shelf.places()
            assert first.startswith(f"line {line} at byte {begin}: "), at
            is_line = line == 1 and data.count(b"\n") == 2
            assert others == (["line 2: b"] if is_line else []), at

    def test_a_cut_anywhere(self, shelf: Shelf, whole: bytes) -> None:
        for at, data in cut(whole):
            shelf.manifest.write_bytes(data)
            is_between = data.endswith(b"\n") or not data
            assert shelf.places() == [""] if is_between else all(shelf.places()), at
            Manifest(str(shelf.manifest)).check()

    def test_a_lost_block_at_its_beginning(self, shelf: Shelf, whole: bytes) -> None:
        shelf.manifest.write_bytes(bytes(100) + whole[100:])
        Manifest(str(shelf.manifest)).check()
        assert shelf.places() == ["line 1 at byte 0: not JSON", "line 2: b"]

    def test_the_next_line_leaves_all_others_in_place(self, shelf: Shelf, whole: bytes) -> None:
        told = completed(shelf.folder / "c", records=1, size=2)
        first = whole.index(b"\n")
        for at, data in [*flipped(whole)][first:] + [*cut(whole)][first:]:
            shelf.manifest.write_bytes(data)
            Manifest(str(shelf.manifest)).append(told)
            kept = data if len(data) == len(whole) else data[: data.rfind(b"\n") + 1]
            found = shelf.manifest.read_bytes()
            assert found.startswith(kept), at
            assert CompletedFile.parse(found[found.rfind(b"\n", 0, -1) + 1 :], "").name == "c"


class TestUploadedFiles:
    """The copies in another directory are checked, and not the files beside the manifest."""

    def check(self, shelf: Shelf, remote: Path, **more: Any) -> list[Verification]:
        def copy(name: str) -> Any:
            return (remote / name).open("rb")

        return list(check(str(shelf.manifest), RAW, uploaded=copy, **more))

    def test_one_that_is_missing_or_differs_is_bad_unless_its_file_waits(
        self, tmp_path: Path
    ) -> None:
        shelf = Shelf(tmp_path / "here")
        first = shelf.complete("a.log", b"1\n")
        second = shelf.complete("x/b.log.gz", b"2\n")
        (tmp_path / "x").mkdir()
        (tmp_path / "x/b.log.gz").write_bytes(packed("b.log.gz", b"3\n"))
        reports = self.check(shelf, tmp_path)
        assert ["a.log" in reports[0].problem, "sha256" in reports[1].problem] == [True, True]
        second.rename(tmp_path / "x/b.log.gz")
        waiting = {str(first)}
        (report,) = self.check(shelf, tmp_path, waiting_near=lambda _: waiting)
        assert (report.problem, report.files, report.waiting) == ("", 1, 1)
        first.rename(tmp_path / "a.log")
        (report,) = self.check(shelf, tmp_path)
        assert (report.problem, report.records, report.files) == ("", 2, 2)

    def test_the_first_that_cannot_be_read_ends_it(self, tmp_path: Path) -> None:
        shelf = Shelf(tmp_path / "here")
        for name in ("a.log", "b.log"):
            shelf.complete(name, b"1\n")
            (tmp_path / name).mkdir()
        (report,) = self.check(shelf, tmp_path)
        assert report.unreadable

    def test_an_archive_lists_no_files(self, tmp_path: Path) -> None:
        path = Shelf(tmp_path).complete("a.log", b"1\n")
        report = one(path, uploaded=lambda _: path.open("rb"))
        assert report.problem
        assert not report.unreadable
