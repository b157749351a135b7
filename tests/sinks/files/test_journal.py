"""What the journal knows after a crash: whose files are under way, and what files still owe."""

import json
import logging
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nsqtools.checksum import sealed, unsealed
from nsqtools.errors import OutputError
from nsqtools.sinks.files import aftercare
from nsqtools.sinks.files import journal as journal_module
from nsqtools.sinks.files.journal import DEBTS, FOLDER, Journal, entries, in_journal, owing_near
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.topicarchive import Arrival, OwedError
from tests.support.archiving import (
    START,
    Archiving,
    Notes,
    batch,
    below,
    entry_of,
    journal_of,
    leave,
    make_rules,
    publication_of,
    recover,
)
from tests.support.faults import broken, filled, small_disk
from tests.support.neighbour import holding
from tests.support.sinking import make_archives, started

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    (tmp_path / "out").mkdir()
    return make_rules(tmp_path)


def folder_of(rules: Rules) -> Path:
    return Path(rules.output_dir, FOLDER)


def files_of(rules: Rules) -> list[str]:
    """Those of entries and locks."""
    return sorted(path.name for path in folder_of(rules).glob("*.*"))


class TestFilesUnderWay:
    @pytest.mark.parametrize("taken", [b"one\n", b"theirs\n"])
    @pytest.mark.parametrize("inode", ["none", "the same"])
    def test_a_file_that_took_the_name_is_another_file(
        self, inode: str, taken: bytes, rules: Rules
    ) -> None:
        """A copy that a crash left is removed, and the next file may get its inode."""
        target = Path(rules.target_path(NAME))
        target.write_bytes(taken)
        os.utime(target, ns=(1, 1))
        leave(rules, b"one\n", inode=target.stat().st_ino if inode == "the same" else 0)
        assert recover(rules) == 0
        assert below(rules.output_dir) == [NAME, NEXT]
        assert target.read_bytes() == taken
        assert Path(rules.target_path(NEXT)).read_bytes() == b"one\n"

    @pytest.mark.parametrize("is_another", [False, True])
    @pytest.mark.parametrize("inode", [0, 1])
    def test_a_leftover_whose_work_directory_is_not_mounted_is_kept_for_later(
        self, is_another: bool, inode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        mount, unmounted = tmp_path / "mount", tmp_path / "unmounted"
        rules = make_rules(tmp_path, work_dir=str(mount / "work"))
        leave(rules, b"one\n", inode=inode)
        mount.rename(unmounted)
        if is_another:
            (mount / "work").mkdir(parents=True)
        with started(rules) as archives, pytest.raises(OutputError, match=r": 1$"):
            archives.close()
        assert str(mount) in caplog.text
        shutil.rmtree(mount)
        unmounted.rename(mount)
        assert recover(rules) == 0
        assert below(rules.output_dir) == [NAME]

    def test_the_record_of_a_leftover_tells_its_format_whatever_the_options_are_now(
        self, tmp_path: Path
    ) -> None:
        leave(make_rules(tmp_path, delimiter=r"\0"), b"one\ntwo\0thr")
        notes = Notes()
        assert recover(make_rules(tmp_path, format="json"), notes) == 0
        (told,) = notes.recorded
        assert (told.records, told.format, told.delimiter) == (1, "raw", r"\0")
        assert (tmp_path / "out" / NAME).read_bytes() == b"one\ntwo\0"

    def test_on_a_full_disk_a_file_is_completed_and_its_entry_remembers_the_name(
        self, tmp_path: Path
    ) -> None:
        with small_disk(tmp_path / "small") as disk:
            archiving = Archiving(disk)
            archiving.write(b"one")
            with filled(disk):  # what is under way has room for its entry
                archiving.close()
            assert archiving.completed() == {NAME: b"one\n"}
            archiving.crash()
            assert list(archiving.journal.revisions()) == [(NAME.replace("-000000", "<REV>"), 0)]
            assert recover(archiving.rules) == 0
            assert files_of(archiving.rules) == []


class TestWhoseEntriesTheyAre:
    def test_what_others_left_is_told_with_what_is_to_be_done_and_left_to_them(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second = (make_rules(tmp_path, work_dir=str(tmp_path / name)) for name in "ab")
        work = leave(first, b"one\n")
        with holding(work):
            assert Journal(first.output_dir, "otherhost").adopt(bool) == []
        assert caplog.messages == []
        journal_of(first).adopt(lambda topic: topic == "other")
        journal_of(second).adopt(bool)
        Journal(first.output_dir, "otherhost", str(tmp_path / "a")).adopt(bool)
        assert [said.partition("run to-file with ")[2] for said in caplog.messages] == [
            "--topic events",
            f"--work-dir {tmp_path / 'a'}",
            "--host-identifier host (or on the host host)",
        ]
        assert all(str(work) in said for said in caplog.messages)
        assert below(str(tmp_path)) == [f"a/{NAME}.part"]
        assert recover(first) == 0
        assert below(str(tmp_path)) == [f"out/{NAME}"]

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b"{", b"[]", b"{}", b'{"published": {"name": "../x"}, "work": "x"}'),
            *(b"[" * 50_000, b" " * 100_000, b'{"published": ' + b'{"a":' * 9000),
            *({"base": "../../x<REV>"}, {"owes": ["--x"]}, {"owes": [[]]}, {"revision": "1"}),
        ],
    )
    def test_one_that_is_damaged_or_leads_elsewhere_is_told_and_kept_and_others_are_adopted(
        self, data: bytes | dict[str, Any], rules: Rules, caplog: pytest.LogCaptureFixture
    ) -> None:
        leave(rules, b"one\n")
        (good,) = folder_of(rules).glob("*.json")
        if isinstance(data, dict):
            data = sealed(unsealed(good.read_bytes()) | data)
        damaged = good.with_name("0123abcd.7.json")
        damaged.write_bytes(data)
        damaged.with_name("0123abcd.8.new").write_bytes(b"{")  # half of one, which a crash left
        journal = journal_of(rules)
        for _ in range(2):
            assert recover(rules, journal=journal) == 0
        assert journal.damaged == {str(damaged)}
        (error,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert not error.endswith(": None")
        assert below(rules.output_dir) == [NAME]
        assert damaged.read_bytes() == data
        assert files_of(rules) == [damaged.name]

    @pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
    @pytest.mark.parametrize(
        "name", ["0123abcd.7.json", "0123abcd.lock", "names", "0123abcd.8.new"]
    )
    def test_no_start_waits_for_a_file_of_another_kind_or_follows_a_link(
        self, kind: str, name: str, rules: Rules, tmp_path: Path
    ) -> None:
        leave(rules, b"one\n")
        folder, elsewhere = folder_of(rules), tmp_path / "elsewhere"
        (folder / "0123abcd.9.json").write_bytes(b"{}")  # the owner has an entry
        match kind:
            case "fifo":
                os.mkfifo(folder / name)
            case "link":
                (folder / name).symlink_to(elsewhere)
            case _:
                (folder / name).mkdir()
        with started(rules):
            assert below(rules.output_dir) == [NAME]
        assert not elsewhere.exists()

    def test_a_link_of_another_user_is_not_followed_out_of_the_directory(
        self, rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "etc").mkdir()
        Path(rules.output_dir, "in").symlink_to(tmp_path / "etc")
        name = f"in/{NAME}"
        work = leave(rules, b"one\n", name)
        archiving = Archiving(tmp_path, filename_format="in/<TOPIC>.log")
        if os.getuid() == 0:
            os.lchown(Path(rules.output_dir, "in"), 12345, 12345)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert recover(rules) == 1
        with pytest.raises(OSError, match="another user"):
            archiving.write(b"two")
        assert list((tmp_path / "etc").iterdir()) == [tmp_path / "etc" / work.name]
        monkeypatch.undo()
        os.lchown(Path(rules.output_dir, "in"), os.geteuid(), -1)
        assert recover(rules) == 0
        assert list((tmp_path / "etc").iterdir()) == [tmp_path / "etc" / NAME]

    def test_nobody_waits_for_what_another_user_has_put_where_an_entry_comes(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one")
        folder = folder_of(archiving.rules)
        owner = next(folder.glob("*.lock")).stem
        for number in range(2, 4):
            os.mkfifo(folder / f"{owner}.{number}.new")
        archiving.close()
        assert archiving.completed() == {NAME: b"one\n"}


class TestARemovedJournal:
    def test_it_is_written_again_before_another_message_is_finished(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        archiving.write(b"one")
        folder = folder_of(archiving.rules)
        for gone in ("*", "*.json"):
            for path in folder.glob(gone):
                path.unlink()
            archiving.write(b"two")
            archiving.write(b"three")
        assert [str(folder) in each for each in caplog.messages] == [True, True]
        archiving.crash()
        assert recover(archiving.rules) == 0
        assert archiving.completed() == {"events.log": b"one\n" + 2 * b"two\nthree\n"}

    @pytest.mark.parametrize("work", ["", "work"])
    def test_a_start_names_the_work_files_that_it_does_not_know(
        self, work: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        options = {"work_dir": str(tmp_path / work)} if work else {}
        rules = make_rules(tmp_path, **options)
        orphan = leave(rules, b"one\n")
        shutil.rmtree(folder_of(rules))
        orphan.with_name("notes.part").write_bytes(b"not ours")
        with holding(orphan.with_name(f"{NEXT}.part")), started(rules):
            pass
        (said,) = caplog.messages
        command = f"mv -n {orphan} {rules.target_path(NAME)}"
        assert f"'nsqtools verify {orphan}'" in said
        assert f"'{command}'" in said
        subprocess.run(shlex.split(command), check=True)
        assert Path(rules.target_path(NAME)).read_bytes() == b"one\n"


class TestUsedNames:
    @pytest.mark.parametrize("owes", [(), ("--on-rotate",)])
    def test_a_name_is_never_given_again_though_its_file_is_gone(
        self, owes: tuple[str, ...], tmp_path: Path
    ) -> None:
        for number in range(3):
            rules = make_rules(tmp_path)
            with started(rules):
                archiving = Archiving(tmp_path, rules=rules, notes=Notes(owes=owes))
            archiving.write(b"one")
            archiving.close()
            archiving.crash()
            (name,) = archiving.names()
            assert name == NAME.replace("000000", f"{number:06d}")
            (tmp_path / "out" / name).unlink()

    def test_the_last_ones_are_remembered_and_a_torn_one_hides_no_other(
        self, rules: Rules, synced: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journal_module, "_RECENT", 500)
        journal = journal_of(rules)
        names = folder_of(rules) / "names"
        entry = entry_of(rules, NAME)
        entry.inode = 1
        for number in range(30):
            entry.revision = number
            journal.write(entry)
            with names.open("ab") as file:
                file.write(b'["torn')
            journal.remove(entry)
            assert str(names) in synced[-2:]
        revisions = [revision for _, revision in journal.revisions()]
        assert revisions == list(range(30))[-len(revisions) :]
        assert len(revisions) > 5
        assert names.stat().st_size < 2000


def paths(journal: Journal) -> dict[str, list[str]]:
    """The files that wait, by what they wait for."""
    return {flag: [each.path for each in files] for flag, files in journal.owed().items()}


class TestWhatFilesOwe:
    @pytest.fixture
    def owing_file(self, rules: Rules) -> Path:
        """A completed file of a process that ended before its command had succeeded."""
        root = Path(rules.output_dir)
        archiving = Archiving(root.parent, rules=rules, notes=Notes(owes=("--on-rotate",)))
        archiving.write(b"one")
        archiving.close()
        archiving.crash()
        return root / NAME

    @pytest.mark.parametrize("is_of_first_release", [False, True])
    def test_the_next_run_goes_on_with_it_and_counts_it_no_second_time(
        self, is_of_first_release: bool, rules: Rules, owing_file: Path
    ) -> None:
        if is_of_first_release:
            (path,) = folder_of(rules).glob("*.json")
            path.write_text(json.dumps(unsealed(path.read_bytes()) | {"owes": True}))
        notes = Notes()
        journal = journal_of(rules)
        (entry,) = journal.adopt(bool)
        publication_of(rules, journal, notes).salvage([entry])
        assert [told.path for told in notes.settled] == [str(owing_file)]
        assert notes.followed == []
        assert paths(journal) == {"--on-rotate": [str(owing_file)]}
        journal.paid(entry)
        assert paths(journal) == {}
        journal.close()
        assert files_of(rules) == []

    def test_it_is_known_whichever_process_is_asked(
        self, rules: Rules, owing_file: Path, tmp_path: Path
    ) -> None:
        known = {str(owing_file)}
        assert in_journal(rules.output_dir) == owing_near(str(owing_file)) == known
        assert owing_near(str(owing_file.parent / "deeper" / "file")) == known
        assert owing_near(str(tmp_path / "file")) == set()

    @pytest.mark.parametrize("debt", DEBTS)
    @pytest.mark.parametrize("whose", ["this process's", "another's"])
    def test_it_is_not_opened_again_before_it_owes_nothing(
        self, debt: str, whose: str, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log", notes=Notes(owes=(debt,)))
        archiving.write(b"one")
        archiving.step(ending="reopen")
        notes, journal = archiving.notes, archiving.journal
        (entry,) = entries(archiving.rules.output_dir, print)
        if whose == "another's":
            archiving = Archiving(tmp_path, rules=archiving.rules, notes=notes)
        for _ in range(2):
            with pytest.raises(OwedError, match=debt):
                archiving.write(b"two")
            assert archiving.completed() == {"events.log": b"one\n"}
        journal.paid(entry)
        archiving.write(b"two")
        archiving.close()
        assert archiving.completed() == {"events.log": b"one\ntwo\n"}
        assert archiving.safe[-1:] == [b"two"]
        assert paths(archiving.journal) == {debt: [str(tmp_path / "out" / "events.log")]}

    def test_what_is_paid_is_not_paid_again_where_the_name_cannot_be_noted(
        self, rules: Rules, owing_file: Path
    ) -> None:
        (folder_of(rules) / "names").mkdir()
        journal = journal_of(rules)
        (entry,) = journal.adopt(bool)
        journal.paid(entry)
        journal.close()
        assert owing_near(str(owing_file)) == set()
        assert [each.base for each in entries(rules.output_dir, print)] == [entry.base]

    def test_a_file_goes_on_as_soon_as_the_line_that_it_owes_can_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        rules = make_rules(tmp_path, filename_format="<TOPIC>.log", manifest="manifest")
        arrival = Arrival(START, batch(b"one"))
        with started(rules) as archives:
            archive = archives.topic("events", bool, now=0.0)
            with broken("append_lines", of=aftercare), pytest.raises(OSError, match="Input/output"):
                archive.step([arrival], now=0.0, wall=START, ending="reopen")
            archive.release()
        path = Path(rules.output_dir, "events.log")
        with broken("append_lines", of=aftercare):
            archives = make_archives(rules)
            archives.open()
        assert f"{path} still waits for --manifest" in caplog.text
        archive = archives.topic("events", bool, now=0.0)
        archive.step([arrival], now=0.0, wall=START, ending="close")
        archives.close()
        archives.unlock()
        assert path.read_bytes() == b"one\none\n"
        lines = path.with_name("manifest").read_bytes().splitlines()
        assert [json.loads(line)["bytes"] for line in lines] == [4, 8]

    def test_it_is_not_pruned_before_its_command_has_succeeded(
        self, rules: Rules, owing_file: Path
    ) -> None:
        owing_file.with_name(NEXT).write_bytes(b"newer\n")
        os.utime(owing_file, (1, 1))
        with started(rules, keep=1) as archives:
            assert archives.waiting() == {"events": 1}
        assert owing_file.exists()
        with started(rules, keep=1, on_rotate="true") as archives:
            archives.close()
            assert archives.waiting() == {}
        assert not owing_file.exists()

    def test_what_cannot_be_read_stops_no_start_but_the_deletion_of_files(
        self, rules: Rules, owing_file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = folder_of(rules)
        unreadable = folder / "0123abcd.7.json"
        unreadable.mkdir()
        (folder / "0123abce.lock").mkdir()  # of an owner who has an entry
        damaged = folder / "0123abce.1.json"
        damaged.write_bytes(b"{")
        for number in (1, 2):
            owing_file.with_name(NAME.replace("000000", f"{number:06}")).write_bytes(b"x\n")
        with started(rules, keep=1, on_rotate="true") as archives:
            for _ in range(3):
                archives.aftercare.prune()
            assert len(below(rules.output_dir)) == 3
            told = [text for text in caplog.messages if "no file is deleted" in text]
            assert [str(unreadable) in text for text in told] == [True]
            unreadable.rmdir()
            archives.aftercare.prune()
            assert len(below(rules.output_dir)) == 3
            damaged.unlink()
            with pytest.raises(OutputError, match=r"\.7\.json"):
                archives.close()
        assert len(below(rules.output_dir)) == 1
