"""What a crash left behind is published whole, once, and nothing is cut off that is not kept."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.policy.matcher import NameMatcher
from nsqtools.sinks.files.aftercare import Care
from nsqtools.sinks.files.journal import Journal
from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    Archiving,
    CrashError,
    Notes,
    batch,
    below,
    journal_of,
    leave,
    make_rules,
    plain,
    recover,
)
from tests.support.faults import file_limit, other_disk
from tests.support.neighbour import holding, neighbour, rules_of_archive
from tests.support.sinking import make_archives

if TYPE_CHECKING:
    import random

    from nsqtools.sinks.files.journal import Entry
    from nsqtools.sinks.files.rules import Rules

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"
LEFT = (".part", ".copy", ".torn", ".json", ".new", ".lock")
"""Suffixes that no file has after a start and an end."""


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return make_rules(tmp_path, digest=True)


class TestTornEnds:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_a_leftover_is_cut_back_to_what_is_whole_and_published(
        self, compression: str, form: str, tmp_path: Path, full: bool
    ) -> None:
        archiving = Archiving(tmp_path, compression=compression, format=form, digest=True)
        archiving.write(b"one", b"two")
        (name,) = archiving.work()
        work = tmp_path / "out" / name
        size = work.stat().st_size
        archiving.write(b"three")
        data = work.read_bytes()
        archiving.crash()
        journal = Journal(archiving.rules.output_dir, "host")
        (entry,) = journal.adopt(bool)
        cuts = range(size + 1, len(data))
        for cut in cuts if full else {*cuts[::7], cuts[-1]}:
            work.write_bytes(data[:cut])
            journal.write(replace(entry, key=""))
            journal.close()
            torn = work.with_suffix(".torn")
            notes = Notes()
            assert recover(archiving.rules, notes) == 0
            (published,) = archiving.published().values()
            assert published.count(b"one") == published.count(b"two") == 1
            assert b"three" not in published
            (told,) = notes.recorded
            assert notes.followed == [told]
            assert (told.records, told.size) == (2, size)
            assert Path(told.path).read_bytes() == data[:size]
            # A member that was cut never was synced.
            rest = data[size:cut] if compression == "none" else b""
            assert (torn.read_bytes() if torn.exists() else b"") == rest
            Path(told.path).unlink()
            torn.unlink(missing_ok=True)

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_with_a_record_that_is_too_big_to_be_read_a_leftover_stays_as_it_is(
        self, compression: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        archiving = Archiving(tmp_path, compression=compression, format="json", max_msg_size=99)
        archiving.write(b"x" * 80_000)
        archiving.write(b"y" * 80_000)
        (name,) = archiving.work()
        archiving.crash()
        work = tmp_path / "out" / name
        data = work.read_bytes()
        for cut in (len(data), len(data) - 1, len(data) - 20):
            work.write_bytes(data[:cut])
            assert recover(archiving.rules) == 1
            assert archiving.names() == [name]
            assert work.read_bytes() == data[:cut]
            (said,) = caplog.messages
            assert str(work) in said
            assert "--max-msg-size" in said
            caplog.clear()
        assert recover(replace(archiving.rules, max_msg_size=80_000)) == 0
        (published,) = archiving.published().values()
        assert published.count(b"x" * 80_000) == 1

    @pytest.mark.parametrize("good", [b"one\n", b""])
    @pytest.mark.parametrize("torn", [b"to", bytes(100)])
    def test_what_is_torn_is_put_aside_and_told(
        self, good: bytes, torn: bytes, rules: Rules, caplog: pytest.LogCaptureFixture
    ) -> None:
        work = leave(rules, good + torn)
        assert recover(rules) == 0
        aside = work.with_suffix(".torn")
        assert aside.read_bytes() == torn
        assert below(rules.output_dir) == ([NAME] if good else []) + [aside.name]
        assert all(str(path) in caplog.messages[0] for path in (work, aside))
        if good:
            assert Path(rules.target_path(NAME)).read_bytes() == good

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_an_empty_leftover_is_removed(self, compression: str, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, compression=compression, skip_empty=False)
        archiving.elapse(30)
        archiving.step()
        archiving.crash()
        assert len(archiving.work()) == 1
        notes = Notes()
        assert recover(archiving.rules, notes) == 0
        assert archiving.names() == []
        assert notes.recorded == []

    def test_nothing_is_cut_off_where_it_cannot_be_kept(self, rules: Rules) -> None:
        work = leave(rules, b"one\n" + b"t" * 5000)
        with file_limit(4096):
            assert recover(rules) == 1
        assert work.stat().st_size == 5004
        assert recover(rules) == 0
        assert Path(rules.target_path(NAME)).read_bytes() == b"one\n"


class TestHeldFiles:
    def test_a_leftover_of_a_living_process_is_left_alone(
        self, rules: Rules, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        work = leave(rules, b"one\nto")
        with holding(work) as process:
            assert recover(rules) == 1
            (said,) = caplog.messages
            assert str(work) in said
            assert work.read_bytes() == b"one\nto"
            process.kill()
            process.wait()
            assert recover(rules) == 0
        assert below(rules.output_dir) == [NAME, f"{NAME}.torn"]

    def test_so_is_a_file_that_this_process_writes(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one")
        assert recover(archiving.rules) == 0
        archiving.write(b"two")
        archiving.close()
        assert archiving.published() == {NAME: b"one\ntwo\n"}


class Crashing(Care):
    """A Care with a manifest whose process ends before, or after, the line is written."""

    def __init__(self, rules: Rules, moment: str) -> None:
        matcher = NameMatcher(rules.pattern, hostname=rules.hostname, topics=("events",))
        super().__init__(rules, journal_of(rules), matcher)
        self.moment = moment

    def record(self, entry: Entry) -> None:
        if self.moment == "before":
            raise CrashError
        super().record(entry)
        if self.moment == "after":
            raise CrashError


class TestPublishedTwice:
    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize("way", ["link", "copy"])
    @pytest.mark.parametrize("taken", [False, True])
    def test_a_crash_between_the_name_and_the_end_of_the_other_publishes_once(
        self, taken: bool, way: str, moment: str, tmp_path: Path
    ) -> None:
        with other_disk(tmp_path) as other:
            out = other if way == "copy" else tmp_path / "out"
            manifest = tmp_path / "manifest"
            rules = make_rules(
                tmp_path,
                output_dir=str(out),
                work_dir=str(tmp_path / "work"),
                manifest=str(manifest),
            )
            care = Crashing(rules, moment)
            archiving = Archiving(tmp_path, rules=rules, notes=care)  # type: ignore[arg-type]
            archiving.write(b"one")
            out.mkdir(exist_ok=True)
            if taken:
                (out / NAME).write_bytes(b"theirs\n")
            name = NEXT if taken else NAME
            with pytest.raises(CrashError):
                archiving.close()
            archiving.crash()
            assert (out / name).read_bytes() == b"one\n"
            assert archiving.work() == []
            care.moment = ""
            assert recover(rules, care) == 0
            assert archiving.work() == []
            assert below(str(out)) == ([NAME, NEXT] if taken else [NAME])
            (line,) = map(json.loads, manifest.read_bytes().splitlines())
            assert (out / name).samefile(tmp_path / line["name"])
            assert (line["bytes"], len(line["sha256"])) == (4, 64)

    def test_a_name_without_revision_is_given_to_one_file_only(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        rules = make_rules(tmp_path, filename_format="<TOPIC>.log")
        work = leave(rules, b"one\n", "events.log")
        target = tmp_path / "out" / "events.log"
        target.write_bytes(b"theirs\n")
        assert recover(rules) == 1
        assert (work.read_bytes(), target.read_bytes()) == (b"one\n", b"theirs\n")
        (error,) = caplog.records
        assert error.levelno == logging.ERROR
        assert str(target) in error.message
        target.unlink()
        assert recover(rules) == 0
        assert target.read_bytes() == b"one\n"

    def test_a_file_that_was_gone_on_with_is_published_again_with_what_it_had(
        self, tmp_path: Path
    ) -> None:
        archiving = Archiving(tmp_path, filename_format="<TOPIC>.log")
        archiving.write(b"one")
        archiving.step(fate="reopen")
        archiving.write(b"two")
        archiving.crash()
        notes = Notes()
        assert recover(archiving.rules, notes) == 0
        assert archiving.published() == {"events.log": b"one\ntwo\n"}
        assert [told.records for told in notes.recorded] == [2]

    def test_a_file_whose_work_name_is_gone_is_named(
        self, rules: Rules, caplog: pytest.LogCaptureFixture
    ) -> None:
        work = leave(rules, b"one\n")
        work.unlink()
        assert recover(rules) == 0
        assert below(rules.output_dir) == []
        assert [each.startswith(f"{work} is gone: ") for each in caplog.messages] == [True]

    def test_a_failure_does_not_keep_others_from_being_published(self, rules: Rules) -> None:
        leave(rules, b"two\n", NEXT)
        leave(rules, b"one\n")
        notes = Notes(error=OSError(28, "No space left"))
        for failed, names in ((1, [NAME]), (0, [NAME, NEXT])):
            assert recover(rules, notes) == failed
            assert [told.name for told in notes.recorded] == names
        assert below(rules.output_dir) == [NAME, NEXT]

    def test_what_the_crash_of_a_step_left_is_what_was_safe(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path, rotate_size=6, notes=Notes(error=CrashError()))
        archiving.write(b"one")
        with pytest.raises(CrashError):
            archiving.step(batch(b"two"), batch(b"three"))
        archiving.crash()
        recover(archiving.rules)
        found = b"".join(plain(tmp_path / "out" / name) for name in archiving.names())
        assert found.split() == archiving.safe == [b"one", b"two"]


@pytest.mark.parametrize("names", ["<TOPIC><REV>.log", "<TOPIC>.log"])
@pytest.mark.parametrize("links", [True, False])
def test_a_kill_at_any_call_leaves_a_state_that_the_next_start_completes(
    names: str, links: bool, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    """Although what was published is touched before that start."""
    step = 3 if full else 12
    for last in itertools.count(rng.randrange(step) + 1, step):
        folder = tmp_path / str(last)
        with neighbour("archive", folder, names, last, links) as process:
            assert process.stdout is not None
            safe = process.stdout.read().split()
            code = process.wait()
        for path in folder.glob("out/*.log"):
            path.touch()
        archives = make_archives(rules_of_archive(folder, names))
        archives.lock("events")
        archives.open()
        archives.close()
        archives.unlock()
        out, manifest = folder / "out", folder / "out" / "manifest"
        files = sorted(path for path in out.glob("events*") if path.suffix == ".log")
        found = b"".join(path.read_bytes() for path in files).split()
        assert len(found) == len(set(found)) >= len(safe), last
        assert set(found) >= set(safe), last
        assert [path for path in folder.rglob("*") if path.suffix in LEFT] == []
        assert list(folder.rglob(".nsqtools-*")) == []
        lines = map(json.loads, manifest.read_bytes().splitlines() if files else ())
        told = {line["name"]: line["sha256"] for line in lines}
        assert told == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        if "<REV>" in names:
            copies = {path.name: path.read_bytes() for path in folder.glob("remote/*")}
            assert copies == {path.name: path.read_bytes() for path in files}
        if code == 0:
            return
