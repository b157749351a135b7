"""Disks that fail and other programs in the directories: nothing is finished that is not safe."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import OutputError
from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    Archiving,
    Notes,
    batch,
)
from tests.support.faults import broken, file_limit
from tests.support.sinking import blocked

if TYPE_CHECKING:
    from pathlib import Path

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"
TOO_LARGE, NO_DIRECTORY, EIO = "File too large", "Not a directory", "Input/output"
CUT = "another program has cut it"


def bodies(archiving: Archiving) -> list[bytes]:
    return [body for data in archiving.published().values() for body in data.split()]


@pytest.fixture
def archiving(tmp_path: Path) -> Archiving:
    """One record is safe, and nothing published."""
    archiving = Archiving(tmp_path, work_dir=str(tmp_path / "work"))
    archiving.write(b"one")
    return archiving


@pytest.fixture
def work(archiving: Archiving, tmp_path: Path) -> Path:
    """The file under way."""
    return tmp_path / "work" / f"{NAME}.part"


class TestAFullDisk:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_what_was_written_before_and_after_is_whole_and_nothing_else_is_there(
        self, compression: str, form: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression, format=form, manifest="manifest")
        for body in (b"before", b"after"):
            archiving.write(body)
            with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
                archiving.write(*(os.urandom(3000) for _ in range(9)))
        archiving.close()
        assert archiving.safe == [b"before", b"after"]
        ((name, data),) = archiving.published().items()
        (told,) = archiving.notes.recorded
        assert data.index(b"before") < data.index(b"after")
        assert (told.records, told.last_id) == (2, told.first_id)
        assert told.sha256 == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()
        assert len(data) < 500

    def test_a_file_that_cannot_go_on_elsewhere_yet_leaves_no_part_there(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"x" * 8000)
        (tmp_path / "out" / f"{NAME}.part").unlink()
        for _ in range(2):
            with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
                archiving.write(b"two")
            assert archiving.names() == []
        archiving.write(b"two")
        archiving.close()
        assert bodies(archiving) == [b"x" * 8000, b"two"] == archiving.safe

    def test_a_torn_end_is_cut_off_and_that_is_synced(
        self, archiving: Archiving, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            archiving.write(b"x" * 8000)
        assert work.read_bytes() == b"one\n"
        sizes: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
        archiving.close()
        assert sizes[0] == 4

    def test_a_torn_end_that_cannot_be_cut_off_yet_is_before_the_next_record(
        self, archiving: Archiving, work: Path
    ) -> None:
        with broken("ftruncate"):
            with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
                archiving.write(b"x" * 8000)
            assert work.stat().st_size == 4096
            with pytest.raises(OSError, match=EIO):
                archiving.write(b"two")
        archiving.write(b"two")
        assert work.read_bytes() == b"one\ntwo\n"

    def test_what_is_written_and_not_synced_is_not_safe(
        self, archiving: Archiving, work: Path
    ) -> None:
        with broken("fsync"), pytest.raises(OSError, match=EIO) as caught:
            archiving.write(b"two")
        assert caught.value.filename == str(work)
        assert archiving.safe == [b"one"]
        assert work.read_bytes() == b"one\n"


class TestWhatIsSafe:
    def test_what_a_step_made_safe_before_it_failed_is_finished(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_size=3000)
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            archiving.step(batch(b"a" * 2000, b"b" * 2000, b"c" * 5000, b"d" * 5000), batch(b"e"))
        assert archiving.safe == bodies(archiving) == [b"a" * 2000, b"b" * 2000]
        archiving.write(b"c" * 5000, b"d" * 5000, b"e")
        archiving.close()
        assert b"".join(archiving.safe) == b"".join(bodies(archiving))


class TestOtherProgramsUnderneath:
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_what_they_append_is_cut_off_and_that_is_synced(
        self, compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression)
        archiving.write(b"one")
        work = tmp_path / "out" / archiving.work()[0]
        for body in (b"two", b"three"):
            with work.open("ab") as file:
                file.write(b"not ours" * 100)
            archiving.write(body)
        size = work.stat().st_size
        with work.open("ab") as file:
            file.write(b"not ours")
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
        archiving.close()
        assert (synced[0], bodies(archiving)) == (size, [b"one", b"two", b"three"])

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    @pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
    def test_a_work_file_without_its_name_is_written_again(
        self, how: str, compression: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression, manifest="manifest")
        archiving.write(b"one")
        (name,) = archiving.work()
        work = tmp_path / "out" / name
        if how == "renamed":
            work.rename(tmp_path / "elsewhere")
        else:
            work.unlink()
        if how == "replaced":
            work.write_bytes(b"theirs")
        archiving.write(b"two")
        archiving.close()
        assert archiving.safe == [b"one", b"two"]
        other = name.removesuffix(".part").replace("000000", "000001")
        assert archiving.published() == {other: b"one\ntwo\n"}
        assert archiving.notes.recorded[0].records == 2
        assert str(work) in caplog.text
        assert (how == "replaced") == work.exists()

    @pytest.mark.parametrize("blocking", [False, True])
    def test_so_is_one_that_loses_it_before_or_while_it_cannot_be_published(
        self, blocking: bool, archiving: Archiving, work: Path, tmp_path: Path
    ) -> None:
        if blocking:
            with blocked(tmp_path / "out"):
                with pytest.raises(OSError, match=NO_DIRECTORY):
                    archiving.close()
                shutil.rmtree(tmp_path / "work")
            archiving.step()
        else:
            work.unlink()
            archiving.close()
        assert archiving.published() == {NEXT: b"one\n"}
        assert archiving.work() == []

    def test_a_file_that_was_cut_is_left_and_another_one_begun(
        self, archiving: Archiving, work: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        os.truncate(work, 3)
        with pytest.raises(OutputError, match=CUT):
            archiving.write(b"two")
        assert archiving.safe == [b"one"]
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {NEXT: b"two\n"}
        assert work.read_bytes() == b"one"
        assert caplog.records[0].levelno == logging.ERROR


def test_a_published_file_is_completed_once_whatever_follows_it(tmp_path: Path) -> None:
    archiving = Archiving(tmp_path, notes=Notes(follow_error=OSError(5, EIO)))
    archiving.write(b"one")
    with pytest.raises(OSError, match=EIO):
        archiving.step(fate="reopen")
    archiving.write(b"two")
    archiving.close()
    assert [told.name for told in archiving.notes.recorded] == [NAME, NEXT]
