from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.files import publish
from tests.support.archiving import (
    COMPRESSIONS,
    Archiving,
    Notes,
    below,
    file_limit,
    make_rules,
    other_disk,
    plain,
)

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"


class TestRevisions:
    def test_a_revision_is_never_used_again_though_its_file_is_gone(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        for number in range(3):
            archiving.write(b"%d" % number)
            archiving.close()
            for name in archiving.names():
                (tmp_path / "out" / name).unlink()
        assert [told.name for told in archiving.notes.recorded] == [
            f"events.host-{number:06d}.2026-11-20_19.log" for number in range(3)
        ]

    def test_files_of_an_earlier_run_are_left_alone(self, tmp_path: Path) -> None:
        first = Archiving(tmp_path)
        first.write(b"first")
        first.close()
        leftover = tmp_path / "out" / "events.host-000001.2026-11-20_19.log.part"
        leftover.write_bytes(b"leftover\n")
        second = Archiving(tmp_path)
        second.write(b"second")
        second.close()
        assert second.published() == {
            NAME: b"first\n",
            NAME.replace("000000", "000002"): b"second\n",
        }
        assert leftover.read_bytes() == b"leftover\n"

    def test_two_topics_with_one_name_take_turns_at_revisions(self, tmp_path: Path) -> None:
        rules = make_rules(tmp_path, filename_format="<HOST><REV>.log")
        first = Archiving(tmp_path, topic="a", rules=rules)
        second = Archiving(tmp_path, topic="b", rules=rules)
        first.write(b"a")
        second.write(b"b")
        first.close()
        second.close()
        assert first.published() == {"host-000000.log": b"a\n", "host-000001.log": b"b\n"}

    def test_a_name_without_revision_goes_on_where_it_was_published(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log", digest=True)
        archiving.write(b"one")
        archiving.step(fate="reopen")
        assert archiving.published() == {"events.log": b"one\n"}
        archiving.write(b"two")
        assert archiving.names() == ["events.log.part"]
        archiving.close()
        assert archiving.published() == {"events.log": b"one\ntwo\n"}
        first, second = archiving.notes.recorded
        data = b"one\ntwo\n"
        assert (first.records, second.records, second.size) == (1, 2, len(data))
        assert second.sha256 == hashlib.sha256(data).hexdigest()

    def test_a_file_to_go_on_with_is_cut_back_to_its_last_whole_record(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "events.log").write_bytes(b"one\nto")
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {"events.log": b"one\ntwo\n"}
        assert (tmp_path / "out" / "events.log.torn").read_bytes() == b"to"
        assert "its last 2 bytes are put aside" in caplog.text


class TestPublishedNames:
    def test_a_name_that_is_taken_meanwhile_is_left_to_its_file(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one")
        (tmp_path / "out" / NAME).write_bytes(b"theirs\n")
        (tmp_path / "out" / NEXT).symlink_to("nothing")
        archiving.close()
        assert (tmp_path / "out" / NAME).read_bytes() == b"theirs\n"
        assert os.readlink(tmp_path / "out" / NEXT) == "nothing"
        (told,) = archiving.notes.recorded
        assert told.name == NAME.replace("000000", "000002")
        assert Path(told.path).read_bytes() == b"one\n"

    def test_the_revision_taken_instead_is_never_used_again(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one")
        (tmp_path / "out" / NAME).write_bytes(b"theirs\n")
        archiving.close()
        (tmp_path / "out" / NEXT).unlink()
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {
            NAME: b"theirs\n",
            NAME.replace("000000", "000002"): b"two\n",
        }

    def test_a_file_of_the_same_contents_is_another_file(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"tick")
        (tmp_path / "out" / NAME).write_bytes(b"tick\n")
        archiving.close()
        assert archiving.published() == {NAME: b"tick\n", NEXT: b"tick\n"}

    def test_where_there_is_but_one_name_it_waits_until_that_is_free(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        archiving.write(b"one")
        target = tmp_path / "out" / "events.log"
        target.write_bytes(b"theirs\n")
        for _ in range(2):
            with pytest.raises(OutputError, match=rf"^{target} exists: move it away"):
                archiving.close()
        target.unlink()
        archiving.close()
        assert archiving.published() == {"events.log": b"one\n"}

    def test_a_work_file_that_is_replaced_where_there_is_but_one_name_is_not_written_into(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        archiving.write(b"one")
        work = tmp_path / "out" / "events.log.part"
        work.unlink()
        (tmp_path / "out" / "events.log").write_bytes(b"theirs, which is longer\n")
        archiving.write(b"two")
        with pytest.raises(OutputError, match="exists: move it away"):
            archiving.close()
        theirs = (tmp_path / "out" / "events.log").read_bytes()
        assert theirs == b"theirs, which is longer\n"
        assert work.read_bytes() == b"one\ntwo\n"

    def test_what_takes_the_place_of_the_only_work_file_is_set_aside(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        archiving.write(b"one")
        work = tmp_path / "out" / "events.log.part"
        work.unlink()
        work.write_bytes(b"theirs\n")
        archiving.write(b"two")
        archiving.close()
        assert (tmp_path / "out" / "events.log").read_bytes() == b"one\ntwo\n"
        assert (tmp_path / "out" / "events.log.part.1").read_bytes() == b"theirs\n"

    def test_a_file_to_go_on_with_that_could_not_be_cut_back_is_taken_up_later(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "events.log").write_bytes(b"one\n" + b"t" * 8000)
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        with file_limit(4096), pytest.raises(OSError, match="File too large"):
            archiving.write(b"two")
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {"events.log": b"one\ntwo\n"}

    def test_a_leftover_and_a_published_file_of_one_name_are_both_kept(
        self, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "events.log").write_bytes(b"one\n")
        (out / "events.log.part").write_bytes(b"leftover\n")
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        with pytest.raises(FileExistsError, match="in the way"):
            archiving.write(b"two")
        assert (out / "events.log").read_bytes() == b"one\n"
        assert (out / "events.log.part").read_bytes() == b"leftover\n"

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_files_are_published_to_another_file_system(
        self, compression: str, tmp_path: Path
    ) -> None:
        with other_disk(tmp_path) as other:
            archiving = Archiving(
                tmp_path, output_dir=str(other), rotate_size=7, compression=compression
            )
            archiving.write(b"one", b"two", b"three")
            (work,) = archiving.work()
            (other / work.removesuffix(".part")).write_bytes(b"theirs")
            archiving.close()
            first, second, third = archiving.names()
            assert [told.name for told in archiving.notes.recorded] == [first, third]
            assert (other / second).read_bytes() == b"theirs"
            assert plain(other / first) + plain(other / third) == b"one\ntwo\nthree\n"
            assert below(str(tmp_path)) == []

    def test_without_hard_links_a_file_that_cannot_be_recorded_is_published_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def link(*_: str) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
        archiving = Archiving(tmp_path, notes=Notes(error=OSError(28, "No space left")))
        archiving.write(b"one")
        with pytest.raises(OSError, match="No space"):
            archiving.close()
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {NAME: b"one\n", NEXT: b"two\n"}
        assert [told.name for told in archiving.notes.recorded] == [NAME, NEXT]

    def test_a_directory_that_could_not_be_synced_is_before_anything_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archiving = Archiving(tmp_path, work_dir=str(tmp_path / "work"))
        archiving.write(b"one")
        synced: list[str] = []

        def sync(path: str) -> None:
            synced.append(path)
            if len(synced) == 1:
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(publish, "sync_directory", sync)
        with pytest.raises(OSError, match="Input/output"):
            archiving.close()
        assert archiving.notes.recorded == []
        archiving.step()
        assert synced[:2] == [str(tmp_path / "out")] * 2
        assert archiving.published() == {NAME: b"one\n"}
        assert len(archiving.notes.recorded) == 1


def test_a_file_that_cannot_be_reopened_yet_is_held_by_nobody_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
    archiving.write(b"one")
    archiving.step(fate="reopen")

    real = os.rename

    def rename(source: str, target: str) -> None:
        if target.endswith(".part"):
            raise OSError(5, "Input/output error", source)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="Input/output"):
            archiving.write(b"two")
    archiving.write(b"two")
    archiving.close()
    assert archiving.published() == {"events.log": b"one\ntwo\n"}
