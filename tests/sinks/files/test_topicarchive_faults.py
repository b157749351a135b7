"""Disks that fail and other programs in the directories: nothing is finished that is not safe."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.files import publication
from nsqtools.sinks.files.journal import entries
from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    Archiving,
    Notes,
    journal_of,
    recover,
)
from tests.support.faults import broken, file_limit
from tests.support.sinking import blocked

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"
THIRD = "events.host-000002.2026-11-20_19.log"
TOO_LARGE, NO_DIRECTORY, EIO = "File too large", "Not a directory", "Input/output"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return out


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


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """From its call on, those of files as they are synced."""

    def begin() -> list[int]:
        sizes: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
        return sizes

    return begin


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
        (data,) = archiving.published().values()
        assert data.split() == [b"x" * 8000, b"two"] == archiving.safe

    def test_a_torn_end_is_cut_off_at_once_or_by_the_next_sync(
        self, archiving: Archiving, work: Path, sizes: Callable[[], list[int]]
    ) -> None:
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            archiving.write(b"x" * 8000)
        assert work.read_bytes() == b"one\n"
        with broken("ftruncate"):
            with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
                archiving.write(b"x" * 8000)
            assert work.stat().st_size == 4096
            with pytest.raises(OSError, match=EIO):
                archiving.write(b"two")
        synced = sizes()
        archiving.close()
        assert synced[0] == 4

    def test_what_is_written_and_not_synced_is_not_safe(
        self, archiving: Archiving, work: Path
    ) -> None:
        with broken("fsync"), pytest.raises(OSError, match=EIO) as caught:
            archiving.write(b"two")
        assert caught.value.filename == str(work)
        assert archiving.safe == [b"one"]
        assert work.read_bytes() == b"one\n"


class TestOtherProgramsUnderneath:
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_what_they_append_is_cut_off_and_that_is_synced(
        self, compression: str, tmp_path: Path, sizes: Callable[[], list[int]]
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
        synced = sizes()
        archiving.close()
        assert synced[0] == size
        assert list(archiving.published().values()) == [b"one\ntwo\nthree\n"]

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    @pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
    def test_a_work_file_without_its_name_is_written_again(
        self, how: str, compression: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path, compress=compression, manifest="manifest")
        archiving.write(b"one")
        (name,) = archiving.work()
        work = tmp_path / "out" / name
        work.rename(tmp_path / "elsewhere")
        if how != "renamed":
            (tmp_path / "elsewhere").unlink()
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

    def test_so_is_one_that_loses_it_while_it_cannot_be_published(
        self, archiving: Archiving, tmp_path: Path
    ) -> None:
        with blocked(tmp_path / "out"):
            with pytest.raises(OSError, match=NO_DIRECTORY):
                archiving.close()
            shutil.rmtree(tmp_path / "work")
        archiving.step()
        assert archiving.published() == {NEXT: b"one\n"}
        assert archiving.work() == []

    def test_a_file_that_was_cut_is_left_and_another_one_begun(
        self, archiving: Archiving, work: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        os.truncate(work, 3)
        with pytest.raises(OutputError, match="another program has cut it"):
            archiving.write(b"two")
        assert archiving.safe == [b"one"]
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {NEXT: b"two\n"}
        assert work.read_bytes() == b"one"
        assert caplog.records[0].levelno == logging.ERROR


class TestPublishingAgain:
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
        own = NEXT if taken else NAME
        assert archiving.published() == {**theirs, own: b"one\n"}
        assert [told.name for told in archiving.notes.recorded] == [own]
        assert archiving.notes.followed == archiving.notes.recorded
        assert archiving.work() == []

    def test_a_directory_that_could_not_be_synced_is_before_anything_is_told(
        self, archiving: Archiving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with broken("sync_directory", of=publication), pytest.raises(OSError, match=EIO):
            archiving.close()
        assert archiving.notes.recorded == []
        synced: list[str] = []
        monkeypatch.setattr(publication, "sync_directory", synced.append)
        archiving.step()
        assert synced == [archiving.rules.output_dir]
        assert archiving.published() == {NAME: b"one\n"}
        assert len(archiving.notes.recorded) == 1


class TestTakenNames:
    def test_files_of_an_earlier_run_are_left_alone(self, out: Path, tmp_path: Path) -> None:
        (out / NAME).write_bytes(b"first\n")
        (out / f"{NEXT}.part").write_bytes(b"leftover\n")
        archiving = Archiving(tmp_path)
        archiving.write(b"second")
        archiving.close()
        assert archiving.published() == {NAME: b"first\n", THIRD: b"second\n"}
        assert (out / f"{NEXT}.part").read_bytes() == b"leftover\n"

    def test_one_that_is_taken_meanwhile_is_left_to_its_file_and_the_next_is_used_up(
        self, archiving: Archiving, out: Path
    ) -> None:
        (out / NAME).write_bytes(b"one\n")  # of the same contents, and another file all the same
        (out / NEXT).symlink_to("nothing")
        archiving.close()
        assert os.readlink(out / NEXT) == "nothing"
        (told,) = archiving.notes.recorded
        assert (told.name, Path(told.path).read_bytes()) == (THIRD, b"one\n")
        (out / THIRD).unlink()
        archiving.write(b"two")
        archiving.close()
        (out / NEXT).unlink()
        other = NAME.replace("000000", "000003")
        assert archiving.published() == {NAME: b"one\n", other: b"two\n"}


class TestOneNameForAll:
    """Without <REV> a published file is continued."""

    @pytest.fixture
    def target(self, out: Path) -> Path:
        return out / "events.log"

    @pytest.fixture
    def part(self, out: Path) -> Path:
        return out / "events.log.part"

    @pytest.fixture
    def alone(self, tmp_path: Path) -> Archiving:
        return Archiving(tmp_path, filename_format="<TOPIC>.log", manifest="manifest")

    @pytest.fixture
    def begun(self, alone: Archiving) -> Archiving:
        alone.write(b"one")
        return alone

    def test_a_file_goes_on_where_it_was_published(
        self, begun: Archiving, monkeypatch: pytest.MonkeyPatch, target: Path
    ) -> None:
        begun.step(fate="reopen")
        assert begun.published() == {"events.log": b"one\n"}
        steps: list[str] = []
        for name in ("rename", "fsync", "writev"):

            def note(*args: object, call: str = name, real: object = getattr(os, name)) -> object:
                folder = call == "fsync" and Path(f"/proc/self/fd/{args[0]}").readlink()
                if folder == target.parent or call == "writev" or args[0] == str(target):
                    steps.append(call)
                return real(*args)  # type: ignore[operator]

            monkeypatch.setattr(os, name, note)
        begun.write(b"two")
        # else the published name would have what is not complete after a power failure
        assert steps == ["rename", "fsync", "writev"]
        assert begun.names() == ["events.log.part"]
        begun.close()
        data = b"one\ntwo\n"
        assert begun.published() == {"events.log": data}
        first, second = begun.notes.recorded
        assert (first.records, second.records, second.size) == (1, 2, len(data))
        assert second.sha256 == hashlib.sha256(data).hexdigest()

    def test_a_file_to_go_on_with_is_cut_back_to_its_last_whole_record(
        self, target: Path, alone: Archiving, caplog: pytest.LogCaptureFixture
    ) -> None:
        target.write_bytes(b"one\n" + b"t" * 8000)
        with file_limit(4096), pytest.raises(OSError, match=TOO_LARGE):
            alone.write(b"two")
        alone.write(b"two")
        alone.close()
        assert alone.published() == {"events.log": b"one\ntwo\n"}
        assert target.with_suffix(".log.torn").read_bytes() == b"t" * 8000
        assert "8000 bytes" in caplog.text

    def test_one_that_could_not_be_published_goes_on_with_one_entry(
        self, out: Path, tmp_path: Path, begun: Archiving
    ) -> None:
        with broken("link", errno.ENOSPC), pytest.raises(OSError, match="No space"):
            begun.close()
        begun.crash()
        notes, journal = Notes(), journal_of(begun.rules)
        with broken("link", errno.ENOSPC):
            recover(begun.rules, notes, journal)
        assert (notes.recorded, begun.names()) == ([], ["events.log.part"])
        again = Archiving(tmp_path, rules=begun.rules)
        again.journal.adopt(bool)
        again.write(b"two")
        assert len(list(entries(str(out), print))) == 1
        again.close()
        assert list(entries(str(out), print)) == []
        assert again.published() == {"events.log": b"one\ntwo\n"}

    def test_it_waits_until_the_name_is_free(self, target: Path, begun: Archiving) -> None:
        target.write_bytes(b"theirs, which is longer\n")
        for _ in range(2):
            with pytest.raises(OutputError, match=str(target)):
                begun.close()
        assert target.read_bytes() == b"theirs, which is longer\n"
        target.unlink()
        begun.close()
        assert begun.published() == {"events.log": b"one\n"}

    @pytest.mark.parametrize("is_taken", [True, False])
    def test_a_work_file_that_lost_its_name_goes_on_beside_what_is_there(
        self, is_taken: bool, target: Path, part: Path, begun: Archiving
    ) -> None:
        part.unlink()
        theirs = target if is_taken else part
        theirs.write_bytes(b"theirs, which is longer\n")
        begun.write(b"two")
        with pytest.raises(OutputError, match=str(target)) if is_taken else nullcontext():
            begun.close()
        aside = theirs if is_taken else part.with_suffix(".part.1")
        assert aside.read_bytes() == b"theirs, which is longer\n"
        assert (part if is_taken else target).read_bytes() == b"one\ntwo\n"

    def test_a_leftover_and_a_published_file_are_both_kept(
        self, target: Path, part: Path, alone: Archiving
    ) -> None:
        target.write_bytes(b"one\n")
        part.write_bytes(b"leftover\n")
        with pytest.raises(FileExistsError):
            alone.write(b"two")
        assert (target.read_bytes(), part.read_bytes()) == (b"one\n", b"leftover\n")
