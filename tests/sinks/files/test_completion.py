"""What a crash left behind is completed whole, once, and nothing is cut off that is not kept."""

import errno
import hashlib
import itertools
import json
import logging
import random
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsqtools.sinks.files.journal import Journal
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.topicarchive import ArchiveEnding, Arrival
from nsqtools.sinks.files.workfile import Part
from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    START,
    Archiving,
    Notes,
    batch,
    below,
    leave,
    make_rules,
    recover,
)
from tests.support.faults import broken, other_disk
from tests.support.neighbour import holding, killed
from tests.support.sinking import make_archives

NAME = "events.host-000000.2026-11-20_19.log"
NEXT = "events.host-000001.2026-11-20_19.log"
TORN = f"{NAME}.torn"
LEFT = (".part", ".copy", ".torn", ".json", ".new", ".lock")
"""Suffixes that no file has after a start and an end."""


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return make_rules(tmp_path, manifest="manifest")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_leftover_is_cut_back_to_what_is_whole_and_completed(
    compression: str, form: str, tmp_path: Path, full: bool
) -> None:
    archiving = Archiving(tmp_path, compress=compression, format=form, manifest="manifest")
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
        (completed,) = archiving.completed().values()
        assert completed.count(b"one") == completed.count(b"two") == 1
        assert b"three" not in completed
        (told,) = notes.recorded
        assert notes.followed == [told]
        assert (told.records, told.size) == (2, size)
        assert Path(told.path).read_bytes() == data[:size]
        assert torn.read_bytes() == data[size:cut]
        Path(told.path).unlink()
        torn.unlink()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_with_a_record_that_is_too_big_to_be_read_a_leftover_stays_as_it_is(
    compression: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archiving = Archiving(tmp_path, compress=compression, format="json", max_msg_size=99)
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
    (completed,) = archiving.completed().values()
    assert completed.count(b"x" * 80_000) == 1


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"one\nto", {NAME: b"one\n", TORN: b"to"}),
        (b"one\n" + bytes(100), {NAME: b"one\n", TORN: bytes(100)}),
        (b"to", {TORN: b"to"}),
        (b"", {}),
    ],
)
def test_what_is_torn_is_put_aside_and_told_and_no_empty_file_completed(
    data: bytes, left: dict[str, bytes], rules: Rules, caplog: pytest.LogCaptureFixture
) -> None:
    work = leave(rules, data)
    assert recover(rules) == 0
    found = {name: Path(rules.output_dir, name).read_bytes() for name in below(rules.output_dir)}
    assert found == left
    told = [text for text in caplog.messages if str(work) in text and TORN in text]
    assert len(told) == (TORN in left)


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
            process.join()
            assert recover(rules) == 0
        assert below(rules.output_dir) == [NAME, TORN]

    def test_so_is_a_file_that_this_process_writes(self, tmp_path: Path) -> None:
        archiving = Archiving(tmp_path)
        archiving.write(b"one")
        assert recover(archiving.rules) == 0
        archiving.write(b"two")
        archiving.close()
        assert archiving.completed() == {NAME: b"one\ntwo\n"}


class TestFailures:
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

    def test_a_file_whose_work_name_is_gone_is_named(
        self, rules: Rules, caplog: pytest.LogCaptureFixture
    ) -> None:
        work = leave(rules, b"one\n")
        work.unlink()
        assert recover(rules) == 0
        assert below(rules.output_dir) == []
        assert [each.startswith(f"{work} is gone: ") for each in caplog.messages] == [True]

    def test_one_does_not_keep_others_from_being_completed(self, rules: Rules) -> None:
        leave(rules, b"two\n", NEXT)
        leave(rules, b"one\n")
        notes = Notes(error=OSError(28, "No space left"))
        for failed, names in ((1, [NAME]), (0, [NAME, NEXT])):
            assert recover(rules, notes) == failed
            assert [told.name for told in notes.recorded] == names
        assert below(rules.output_dir) == [NAME, NEXT]


def archive(rules: Rules, safe: Path) -> None:
    """Archive six messages; to the file ``safe`` go those that may be finished."""
    with safe.open("wb", buffering=0) as file:

        def synced(parts: list[Part]) -> None:
            for _, messages in parts:
                file.write(b"".join(message.body + b"\n" for message in messages))

        archives = make_archives(rules)
        archives.lock("events")
        archives.open()
        made = archives.topic("events", synced, now=0.0)
        for number in range(6):
            arrival = Arrival(START, batch(b"%d" % number))
            ending: ArchiveEnding = "reopen" if number % 2 else ""
            made.step([arrival], now=0.0, wall=START, ending=ending)
        made.step((), now=0.0, wall=START, ending="close")
        made.release()
        archives.close()
        archives.unlock()


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("<TOPIC>.log", "link"),
        ("<TOPIC>.log", "rename"),
        ("<TOPIC><REV>.log", "link"),
        ("<TOPIC><REV>.log", "rename"),
        ("<TOPIC><REV>.log", "copy"),
    ],
)
def test_a_kill_at_any_call_leaves_a_state_that_the_next_start_completes(
    name: str, way: str, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    """Although what was completed is touched before that start; but for copies, told by their time.

    Files are uploaded where names are used once, and there are the links that a store needs.
    """
    step = 3 if full else 12
    has_store = "<REV>" in name and way != "rename"
    with other_disk(tmp_path) as other:
        for at in itertools.count(rng.randrange(step), step):
            folder = tmp_path / str(at)
            folder.mkdir()
            out = (other if way == "copy" else folder) / f"out{at}"
            options: dict[str, Any] = {"work_dir": str(folder / "work"), "output_dir": str(out)}
            options["upload"] = str(folder / "remote") if has_store else ""
            rules = make_rules(folder, filename_format=name, manifest="manifest", **options)
            with broken("link", errno.EPERM) if way == "rename" else nullcontext():
                was_killed = killed(partial(archive, rules, folder / "safe"), at)
            for path in out.glob("*.log") if way != "copy" else ():
                path.touch()
            archives = make_archives(rules)
            archives.lock("events")
            archives.open()
            archives.close()
            archives.unlock()

            files = {path.name: path.read_bytes() for path in sorted(out.glob("events*.log"))}
            found = b"".join(files.values()).split()
            assert len(found) == len(set(found)), at
            assert set(found) >= set((folder / "safe").read_bytes().split()), at
            left = [*out.rglob("*"), *folder.rglob("*")]
            assert not [each for each in left if each.suffix in LEFT or ".nsqtools-" in each.name]
            manifest = (out / "manifest").read_bytes() if files else b""
            lines = list(map(json.loads, manifest.splitlines()))
            told = {line["name"]: line["sha256"] for line in lines}
            assert told == {key: hashlib.sha256(data).hexdigest() for key, data in files.items()}
            if "<REV>" in name:
                assert len(lines) == len(files)
            if has_store:
                remote = (folder / "remote").glob("*")
                assert {path.name: path.read_bytes() for path in remote} == files
            if not was_killed:
                return
