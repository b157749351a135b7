from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    START,
    Archiving,
    Notes,
    batch,
    below,
    message,
    plain,
)

if TYPE_CHECKING:
    from nsqtools.sinks.files.journal import Entry
    from nsqtools.sinks.files.manifest import Published

NAME = "events.host-000000.2026-11-20_19.log"


class TestWriting:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_records_are_safe_after_their_step_and_published_at_the_end(
        self, compression: str, form: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compression=compression, format=form)
        archiving.step(batch(b"one", b"two"), batch(b"three"))
        assert archiving.safe == [b"one", b"two", b"three"]
        (work,) = archiving.work()
        under_way = plain(Path(archiving.rules.work_dir, work))
        archiving.write(b"four")
        archiving.close()
        (name, data), *others = archiving.published().items()
        assert (name, others) == (work.removesuffix(".part"), [])
        assert data.startswith(under_way)
        assert data.count(b"four") == 1
        assert archiving.names() == [name]

    def test_raw_records_are_bodies_and_the_delimiter(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, delimiter=b"\0\0")
        archiving.write(b"one", b"two\n")
        archiving.close()
        assert archiving.published() == {NAME: b"one\0\0two\n\0\0"}

    def test_json_records_carry_the_envelope(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, format="json")
        archiving.write(b"one", b"\xff")
        archiving.close()
        first, second = map(json.loads, archiving.published()[NAME].splitlines())
        assert first["body"] == "one"
        assert first["timestamp"] == START
        assert first["channel"] == "archive"
        assert "body_b64" in second

    def test_a_member_is_written_per_step(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compression="gzip")
        archiving.step(batch(b"one"), batch(b"two"))
        archiving.write(b"three")
        (work,) = archiving.work()
        assert Path(archiving.rules.work_dir, work).read_bytes().count(b"\x1f\x8b\x08") == 2

    def test_a_work_directory_keeps_what_is_under_way_apart(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, work_dir=str(tmp_path / "work"))
        archiving.write(b"one")
        assert below(str(tmp_path)) == [f"work/{NAME}.part"]
        archiving.close()
        assert below(str(tmp_path)) == [f"out/{NAME}"]

    def test_names_may_have_directories(self, tmp_path: Path) -> None:
        archiving = Archiving(
            tmp_path,
            filename_format="<TOPIC>/<DATETIME><REV>.log",
            datetime_format="dt=%Y-%m-%d/hour=%H",
            work_dir=str(tmp_path / "work"),
        )
        archiving.write(b"one")
        archiving.close()
        assert archiving.published() == {"events/dt=2026-11-20/hour=19-000000.log": b"one\n"}

    def test_a_body_with_the_delimiter_is_counted_and_warned_of_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one", b"two")
        assert caplog.records == []
        archiving.write(b"a\nb", b"c\n", b"d")
        archiving.write(b"e\nf")
        assert archiving.archive.delimiters == 3
        (record,) = caplog.records
        assert "topic events: a body contains the delimiter" in record.message
        assert "--format json" in record.message

    @pytest.mark.parametrize("form", ["json", "length-prefixed"])
    def test_other_formats_have_no_delimiter_to_warn_of(
        self, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path, format=form)
        archiving.write(b"a\nb")
        assert caplog.records == []
        assert archiving.archive.delimiters == 0


class TestWhatIsTold:
    def test_a_published_file_is_described(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compression="gzip", digest=True)
        archiving.write(message(b"one", timestamp=5, number=7), message(b"two", timestamp=3))
        archiving.write(message(b"three", timestamp=9, number=8))
        archiving.close()
        (told,) = archiving.notes.recorded
        assert archiving.notes.followed == [told]
        name = f"{NAME}.gz"
        data = (tmp_path / "out" / name).read_bytes()
        assert (told.name, told.path) == (name, str(tmp_path / "out" / name))
        assert (told.topic, told.records, told.size) == ("events", 3, len(data))
        assert told.sha256 == hashlib.sha256(data).hexdigest()
        assert (told.first_timestamp, told.last_timestamp) == (5, 9)
        assert (told.first_id, told.last_id) == ("0000000000000007", "0000000000000008")
        assert (told.format, told.delimiter, told.compression) == ("raw", "\\n", "gzip")

    def test_the_sum_is_counted_only_for_those_who_ask(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, format="json")
        archiving.write(b"one")
        archiving.close()
        (told,) = archiving.notes.recorded
        assert (told.sha256, told.delimiter) == ("", "")

    def test_it_is_told_when_the_name_is_there_and_followed_when_it_is_final(
        self, tmp_path: Path
    ) -> None:
        seen: list[list[str]] = []

        class Looking(Notes):
            def record(self, published: Published) -> None:
                seen.append(below(str(tmp_path / "out")))

            def follow(self, entry: Entry) -> None:
                seen.append(below(str(tmp_path / "out")))

        archiving = Archiving(tmp_path, notes=Looking())
        archiving.write(b"one")
        archiving.close()
        assert seen == [[NAME, f"{NAME}.part"], [NAME]]

    def test_a_file_that_cannot_be_recorded_is_so_at_the_next_step_and_published_once(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, notes=Notes(error=OSError(28, "No space left")))
        archiving.write(b"one")
        with pytest.raises(OSError, match="No space"):
            archiving.close()
        assert archiving.safe == [b"one"]
        assert archiving.notes.recorded == []
        assert archiving.next_due() == 0
        archiving.step()
        assert len(archiving.notes.recorded) == len(archiving.notes.followed) == 1
        assert archiving.names() == [NAME]

    def test_so_it_is_when_another_file_had_the_name(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, notes=Notes(error=OSError(28, "No space left")))
        archiving.write(b"one")
        (tmp_path / "out" / NAME).write_bytes(b"theirs\n")
        with pytest.raises(OSError, match="No space"):
            archiving.close()
        archiving.step()
        other = NAME.replace("000000", "000001")
        assert archiving.published() == {NAME: b"theirs\n", other: b"one\n"}
        assert [told.name for told in archiving.notes.recorded] == [other]
        assert archiving.work() == []


class TestSizes:
    def test_a_file_is_split_where_a_record_ends(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_size=10)
        archiving.write(b"1234", b"1234", b"5", b"abcdefghijkl", b"6")
        archiving.write(b"7")
        archiving.close()
        assert list(archiving.published().values()) == [
            b"1234\n1234\n5\n",  # at 10 bytes the next record may still begin
            b"abcdefghijkl\n",
            b"6\n7\n",
        ]
        assert archiving.safe == [b"1234", b"1234", b"5", b"abcdefghijkl", b"6", b"7"]

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_no_record_is_lost_doubled_or_torn_by_many_splits(
        self, compression: str, form: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compression=compression, format=form, rotate_size=300)
        numbers = [b"n%04d." % n for n in range(600)]
        for start in range(0, 600, 60):
            archiving.write(*numbers[start : start + 60])
        archiving.close()
        files = archiving.published().values()
        assert len(files) > 5
        text = b"".join(files)
        places = [text.index(number) for number in numbers]
        assert places == sorted(places)
        assert archiving.safe == numbers
        assert sum(told.records or 0 for told in archiving.notes.recorded) == 600

    def test_a_rotated_file_is_published_in_the_step_that_filled_it(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_size=3)
        archiving.write(b"one")
        assert list(archiving.published().values()) == [b"one\n"]
        assert archiving.work() == []

    def test_a_size_after_compression_is_looked_at_step_by_step(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compression="gzip", rotate_compressed_size=60)
        for number in range(6):
            archiving.write(b"%d" % number)
        archiving.close()
        files = list(archiving.published())
        assert len(files) == 2
        sizes = [(tmp_path / "out" / name).stat().st_size for name in files]
        assert sizes[0] > 60
        assert b"".join(archiving.published().values()) == b"0\n1\n2\n3\n4\n5\n"


def test_a_published_file_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    archiving = Archiving(tmp_path)
    archiving.write(b"one", b"two")
    archiving.close()
    assert caplog.messages == [f"published {NAME}: 2 records"]
