from __future__ import annotations

import errno
import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.archiving import COMPRESSIONS, FORMATS, Archiving, Notes, batch, message, plain
from tests.support.faults import broken

NAME = "events.host-000000.2026-11-20_19.log"


class TestWriting:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_records_are_safe_after_their_step_and_published_at_the_end(
        self, compression: str, form: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression, format=form)
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
        archiving = Archiving(tmp_path, delimiter=r"\0\0")
        archiving.write(b"one", b"two\n")
        archiving.close()
        assert archiving.published() == {NAME: b"one\0\0two\n\0\0"}

    def test_a_body_with_the_delimiter_is_warned_of_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one", b"two")
        assert caplog.records == []
        archiving.write(b"a\nb", b"c\n", b"d")
        archiving.write(b"e\nf")
        (warning,) = caplog.messages
        assert "topic events" in warning


class TestWhatIsTold:
    def test_a_published_file_is_described(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compress="gzip", manifest="manifest")
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

    @pytest.mark.parametrize("links", [True, False])
    @pytest.mark.parametrize("taken", [True, False])
    def test_a_file_that_cannot_be_recorded_is_so_at_the_next_step_and_published_once(
        self, taken: bool, links: bool, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, notes=Notes(error=OSError(28, "No space left")))
        archiving.write(b"one")
        theirs = {NAME: b"theirs\n"} if taken else {}
        for name, data in theirs.items():
            (tmp_path / "out" / name).write_bytes(data)
        fault = nullcontext() if links else broken("link", errno.EPERM)
        with fault, pytest.raises(OSError, match="No space"):
            archiving.close()
        assert archiving.safe == [b"one"]
        assert archiving.notes.recorded == []
        assert archiving.next_due() == 0
        archiving.step()
        own = NAME.replace("000000", "000001") if taken else NAME
        assert archiving.published() == {**theirs, own: b"one\n"}
        assert [told.name for told in archiving.notes.recorded] == [own]
        assert archiving.notes.followed == archiving.notes.recorded
        assert archiving.work() == []


class TestSizes:
    def test_a_file_is_split_where_a_record_ends(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_size=10)
        archiving.write(b"1234", b"1234", b"5", b"abcdefghijkl", b"6")
        assert len(archiving.published()) == 2  # in the step that filled them
        archiving.write(b"7")
        archiving.close()
        assert list(archiving.published().values()) == [
            b"1234\n1234\n5\n",  # at 10 bytes the next record may still begin
            b"abcdefghijkl\n",
            b"6\n7\n",
        ]
        assert archiving.safe == [b"1234", b"1234", b"5", b"abcdefghijkl", b"6", b"7"]
