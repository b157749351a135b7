"""Names that are given once: revisions, names without one, and names that are taken."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.files import publication
from nsqtools.sinks.files.journal import entries
from tests.support.archiving import Archiving, Notes, journal_of, make_rules, recover
from tests.support.faults import broken, file_limit

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"
THIRD = "events.host-000002.2026-11-20_19.log"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    return out


@pytest.fixture
def archiving(tmp_path: Path) -> Archiving:
    """One record is safe, and nothing published."""
    archiving = Archiving(tmp_path)
    archiving.write(b"one")
    return archiving


def alone(folder: Path, *bodies: bytes) -> Archiving:
    """An archive with one name for all files."""
    archiving = Archiving(folder, filename_format="<TOPIC>.log", manifest="manifest")
    if bodies:
        archiving.write(*bodies)
    return archiving


def test_a_file_that_is_continued_has_its_work_name_for_good_before_its_first_byte(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure the published name would have what is not complete."""
    alone(tmp_path, b"one").close()
    steps: list[str] = []
    rename, fsync, writev = os.rename, os.fsync, os.writev

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        steps.append("rename" if source == str(out / "events.log") else "")

    def synced(fd: int) -> None:
        fsync(fd)
        steps.append("sync" if Path(f"/proc/self/fd/{fd}").readlink() == out else "")

    def written(fd: int, pieces: list[bytes]) -> int:
        steps.append("write")
        return writev(fd, pieces)

    for name, call in (("rename", renamed), ("fsync", synced), ("writev", written)):
        monkeypatch.setattr(os, name, call)
    alone(tmp_path, b"two")
    assert [step for step in steps if step][:3] == ["rename", "sync", "write"]


class TestRevisions:
    def test_files_of_an_earlier_run_are_left_alone(self, out: Path, tmp_path: Path) -> None:
        (out / NAME).write_bytes(b"first\n")
        (out / f"{NEXT}.part").write_bytes(b"leftover\n")
        archiving = Archiving(tmp_path)
        archiving.write(b"second")
        archiving.close()
        assert archiving.published() == {NAME: b"first\n", THIRD: b"second\n"}
        assert (out / f"{NEXT}.part").read_bytes() == b"leftover\n"

    def test_two_topics_with_one_name_take_turns_at_revisions(self, tmp_path: Path) -> None:
        rules = make_rules(tmp_path, filename_format="<HOST><REV>.log")
        both = [Archiving(tmp_path, topic=topic, rules=rules) for topic in "ab"]
        for topic, archiving in zip((b"a", b"b"), both, strict=True):
            archiving.write(topic)
        for archiving in both:
            archiving.close()
        assert both[0].published() == {"host-000000.log": b"a\n", "host-000001.log": b"b\n"}


class TestTakenNames:
    def test_a_name_that_is_taken_meanwhile_is_left_to_its_file_and_the_next_is_used_up(
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

    def test_a_directory_that_could_not_be_synced_is_before_anything_is_told(
        self, archiving: Archiving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []

        def sync(path: str) -> None:
            synced.append(path)
            if len(synced) == 1:
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(publication, "sync_directory", sync)
        with pytest.raises(OSError, match="Input/output"):
            archiving.close()
        assert archiving.notes.recorded == []
        archiving.step()
        assert synced[:2] == [archiving.rules.output_dir] * 2
        assert archiving.published() == {NAME: b"one\n"}
        assert len(archiving.notes.recorded) == 1


class TestOneNameForAll:
    def test_a_file_goes_on_where_it_was_published(self, tmp_path: Path) -> None:
        archiving = alone(tmp_path, b"one")
        archiving.step(fate="reopen")
        assert archiving.published() == {"events.log": b"one\n"}
        archiving.write(b"two")
        assert archiving.names() == ["events.log.part"]
        archiving.close()
        data = b"one\ntwo\n"
        assert archiving.published() == {"events.log": data}
        first, second = archiving.notes.recorded
        assert (first.records, second.records, second.size) == (1, 2, len(data))
        assert second.sha256 == hashlib.sha256(data).hexdigest()

    def test_a_file_to_go_on_with_is_cut_back_to_its_last_whole_record(
        self, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (out / "events.log").write_bytes(b"one\n" + b"t" * 8000)
        archiving = alone(tmp_path)
        with file_limit(4096), pytest.raises(OSError, match="File too large"):
            archiving.write(b"two")
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {"events.log": b"one\ntwo\n"}
        assert (out / "events.log.torn").read_bytes() == b"t" * 8000
        assert "8000 bytes" in caplog.text

    def test_one_that_cannot_be_read_stays_as_it_is(self, out: Path, tmp_path: Path) -> None:
        out.joinpath("events.log").write_bytes(b"x" * 100_000)
        archiving = Archiving(
            tmp_path, filename_format="<TOPIC>.log", format="json", max_msg_size=10
        )
        for _ in range(2):
            with pytest.raises(OSError, match="max-msg-size"):
                archiving.write(b"one")
        assert archiving.names() == ["events.log"]
        assert list(entries(str(out), print)) == []

    def test_one_that_could_not_be_published_goes_on_with_one_entry(
        self, out: Path, tmp_path: Path
    ) -> None:
        archiving = alone(tmp_path, b"one")
        with broken("link", errno.ENOSPC), pytest.raises(OSError, match="No space"):
            archiving.close()
        archiving.crash()
        notes, journal = Notes(), journal_of(archiving.rules)
        with broken("link", errno.ENOSPC):
            recover(archiving.rules, notes, journal)
        assert (notes.recorded, archiving.names()) == ([], ["events.log.part"])
        again = Archiving(tmp_path, rules=archiving.rules)
        again.journal.adopt(bool)
        again.write(b"two")
        assert len(list(entries(str(out), print))) == 1
        again.close()
        assert list(entries(str(out), print)) == []
        assert again.published() == {"events.log": b"one\ntwo\n"}

    def test_it_waits_until_the_name_is_free(self, out: Path, tmp_path: Path) -> None:
        archiving = alone(tmp_path, b"one")
        target = out / "events.log"
        target.write_bytes(b"theirs\n")
        for _ in range(2):
            with pytest.raises(OutputError, match=str(target)):
                archiving.close()
        target.unlink()
        archiving.close()
        assert archiving.published() == {"events.log": b"one\n"}

    def test_a_file_that_took_the_name_of_a_lost_work_file_is_not_written_into(
        self, out: Path, tmp_path: Path
    ) -> None:
        archiving = alone(tmp_path, b"one")
        (out / "events.log.part").unlink()
        (out / "events.log").write_bytes(b"theirs, which is longer\n")
        archiving.write(b"two")
        with pytest.raises(OutputError, match=str(out)):
            archiving.close()
        assert (out / "events.log").read_bytes() == b"theirs, which is longer\n"
        assert (out / "events.log.part").read_bytes() == b"one\ntwo\n"

    def test_what_takes_the_place_of_the_work_file_is_set_aside(
        self, out: Path, tmp_path: Path
    ) -> None:
        archiving = alone(tmp_path, b"one")
        (out / "events.log.part").unlink()
        (out / "events.log.part").write_bytes(b"theirs\n")
        archiving.write(b"two")
        archiving.close()
        assert (out / "events.log").read_bytes() == b"one\ntwo\n"
        assert (out / "events.log.part.1").read_bytes() == b"theirs\n"

    def test_a_leftover_and_a_published_file_are_both_kept(self, out: Path, tmp_path: Path) -> None:
        (out / "events.log").write_bytes(b"one\n")
        (out / "events.log.part").write_bytes(b"leftover\n")
        with pytest.raises(FileExistsError):
            alone(tmp_path, b"two")
        assert (out / "events.log").read_bytes() == b"one\n"
        assert (out / "events.log.part").read_bytes() == b"leftover\n"
