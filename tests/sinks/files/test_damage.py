"""Damage to the files of to-file: what is whole is kept, the rest is named, and no exit is 0.

What damage costs is decided, and tested bit by bit, in ``records/salvage.py``.
"""

import contextlib
import errno
import itertools
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.files import disk
from nsqtools.sinks.files.ages import Ages
from nsqtools.sinks.files.journal import FOLDER, entries, in_journal
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.store import Archives
from nsqtools.sinks.files.topicarchive import Arrival
from nsqtools.sinks.files.workfile import good_part
from tests.support.archiving import (
    COMPRESSIONS,
    FORMATS,
    START,
    Archiving,
    batch,
    below,
    entry_of,
    journal_of,
    leave,
    make_rules,
)
from tests.support.damage import cut, flipped
from tests.support.faults import CHANGES, KilledError, misreported
from tests.support.sinking import started

NAME = "events.host-000000.2026-11-20_19.log"


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "fsync", bool)  # thousands of them
    return make_rules(tmp_path)


@contextlib.contextmanager
def failing(at: int, kills: bool) -> Iterator[list[str]]:
    """One of the calls that change files is not done, and neither are those after a kill."""
    number, told = itertools.count(), list[str]()

    def unable(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            is_change = name not in ("open", "close") or (name == "open" and args[1] & os.O_CREAT)
            if is_change and (next(number) == at or (kills and told)):
                told.append(name)
                raise KilledError if kills else OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, unable(name, getattr(os, name)))
        yield told


class Left:
    """A work file that a crash left whole, in a directory with files that have its names."""

    def __init__(self, folder: Path, form: str, compression: str) -> None:
        archiving = Archiving(folder, format=form, compress=compression)
        self.bodies = [b"one" * 9, b"two" * 9, b"three" * 9]
        for body in self.bodies[:-1]:
            archiving.write(body)
        (name,) = archiving.work()
        self.last = (folder / "out" / name).stat().st_size
        """Where the last record or member begins."""
        archiving.write(self.bodies[-1])
        archiving.crash()
        self.rules = archiving.rules
        self.folder = folder / "out"
        self.work = self.folder / name
        self.whole = self.work.read_bytes()
        journal = self.folder / FOLDER
        self._state = {path: path.read_bytes() for path in journal.iterdir()}
        stem = name.removesuffix(".part")
        self.theirs = {self.folder / f"{stem}{end}": b"x" for end in ("", ".torn", ".damaged")}
        for path, data in self.theirs.items():
            path.write_bytes(data)

    def reset(self, data: bytes) -> None:
        """Leave this work file."""
        (self.folder / FOLDER / "names").unlink(missing_ok=True)
        for path, content in self._state.items():
            path.write_bytes(content)
        self.work.write_bytes(data)

    def start(self) -> tuple[dict[str, bytes], str]:
        """Start; return what is in all new files, and why the run failed."""
        why = ""
        with started(self.rules) as archives:
            try:
                archives.close()
            except OutputError as error:
                why = str(error)
        made = {self.folder / name for name in below(str(self.folder))} - self.theirs.keys()
        found = {path.name: path.read_bytes() for path in made}
        for path in made:
            path.unlink()
        assert {path: path.read_bytes() for path in self.theirs} == self.theirs
        assert not [*(self.folder / FOLDER).glob("*.json")]
        return found, why


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", FORMATS)
class TestWorkFiles:
    @pytest.fixture
    def left(
        self, tmp_path: Path, form: str, compression: str, monkeypatch: pytest.MonkeyPatch
    ) -> Left:
        monkeypatch.setattr(os, "fsync", bool)  # thousands of them
        return Left(tmp_path, form, compression)

    def test_a_flipped_bit_costs_no_other_record_and_no_byte(
        self, left: Left, caplog: pytest.LogCaptureFixture, rng: random.Random, full: bool
    ) -> None:
        damages = list(flipped(left.whole))
        for at, data in damages if full else rng.sample(damages, 12):
            caplog.clear()
            left.reset(data)
            found, why = left.start()
            assert sorted(b"".join(found.values())) == sorted(data), at
            aside = [name for name in found if name.endswith((".torn", ".damaged"))]
            levels = {each.levelno for each in caplog.records if str(left.work) in each.message}
            assert bool(why) == any(name.endswith(".damaged") for name in aside), at
            assert why or not aside or at >= left.last - 1, at  # else nothing is torn
            if aside:
                assert logging.ERROR in levels if why else levels == {logging.WARNING}, at
                assert all(name in caplog.text for name in aside)
                assert all(name in why for name in aside if name.endswith(".damaged"))

    def test_a_cut_file_is_completed_and_no_byte_of_it_is_lost(
        self, left: Left, caplog: pytest.LogCaptureFixture, rng: random.Random, full: bool
    ) -> None:
        cuts = list(cut(left.whole))
        for at, data in cuts if full else rng.sample(cuts, 12):
            caplog.clear()
            left.reset(data)
            found, why = left.start()
            assert b"".join(found[name] for name in sorted(found, key=len)) == data, at
            assert not why
            aside = [name for name in found if name.endswith(".torn")]
            assert [name in caplog.text for name in aside] == [True] * len(aside)


def test_a_completed_file_that_is_continued_loses_only_what_is_damaged(tmp_path: Path) -> None:
    rules = make_rules(tmp_path, filename_format="<TOPIC>.log", format="json")
    arrivals = [Arrival(START, batch(body)) for body in (b"one", b"two", b"three", b"four")]

    def step(archives: Archives, *arrivals: Arrival) -> None:
        archive = archives.topic("events", bool, now=0.0)
        archive.step(arrivals, now=0.0, wall=START)
        if arrivals:  # it is locked, whatever file has its name by now
            assert disk.hold(str(path) + disk.WORK) is None
        archive.step([], now=0.0, wall=START, ending="close")

    path = tmp_path / "out" / "events.log"
    with started(rules) as archives:
        step(archives, *arrivals[:3])
        archives.close()
    first, second, third = path.read_bytes().splitlines(keepends=True)
    bad = b"[" + second[1:]
    path.write_bytes(first + bad + third)
    with started(rules) as archives:
        step(archives, arrivals[3])
        with pytest.raises(OutputError, match=r"events\.log\.damaged"):
            archives.close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert (lines[:2], len(lines)) == ([first, third], 3)
    assert path.with_suffix(".log.damaged").read_bytes() == bad


@pytest.mark.parametrize("way", ["fails", "is done and fails", "kills"])
def test_whatever_call_fails_what_is_damaged_is_not_cut_off_before_it_is_put_aside(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", bool)
    left = Left(tmp_path, "json", "none")
    first, second, third = left.whole.splitlines(keepends=True)
    bad, torn = b"[" + second[1:], b'{"topic'
    for at in itertools.count():
        left.reset(first + bad + third + torn)
        fd = disk.hold(str(left.work))
        assert fd is not None
        fault = misreported(at) if way == "is done and fails" else failing(at, way == "kills")
        with fault as failed:
            try:
                fd = good_part(fd, str(left.work), left.rules.layout, 1000).fd
            except (OSError, KilledError):
                assert failed, at
        with contextlib.suppress(OSError):
            os.close(fd)
        found, _ = left.start()
        whole = {(name.rpartition(".")[2], data) for name, data in found.items()}
        wanted = {("log", first + third), ("damaged", bad), ("torn", torn)}
        assert whole >= wanted, at  # a failure may leave a part of a copy
        for kind, data in whole:
            assert any(kind == end and each.startswith(data) for end, each in wanted), at
        if not failed:
            assert at > 5
            return


class TestJournal:
    def test_a_damaged_entry_is_recognised(self, rules: Rules) -> None:
        leave(rules, b"one\n")
        (path,) = Path(rules.output_dir, FOLDER).glob("*.json")
        whole = path.read_bytes()
        damaged: list[tuple[str, Exception]] = []
        for at, data in (*flipped(whole), *cut(whole)):
            path.write_bytes(data)
            damaged.clear()
            found = list(entries(rules.output_dir, lambda *each: damaged.append(each)))
            assert [*found, *(file for file, _ in damaged)] == [str(path)], at
        with pytest.raises(OSError, match=path.name):  # so that retention deletes nothing
            in_journal(rules.output_dir)

    def test_its_file_is_named_and_left_and_the_run_fails(
        self, rules: Rules, rng: random.Random, caplog: pytest.LogCaptureFixture
    ) -> None:
        work = leave(rules, b"one\n")
        (path,) = Path(rules.output_dir, FOLDER).glob("*.json")
        whole = path.read_bytes()
        for _, data in rng.sample([*flipped(whole), *cut(whole)], 5):
            path.write_bytes(data)
            caplog.clear()
            with started(rules) as archives, pytest.raises(OutputError):
                archives.close()
            levels = {r.levelno: r.getMessage() for r in caplog.records}
            assert levels[logging.ERROR].startswith(f"{path}: ")
            assert levels[logging.WARNING].startswith(f"{work}: ")
            assert (path.read_bytes(), work.read_bytes()) == (data, b"one\n")
            assert below(rules.output_dir) == [f"{NAME}.part"]


class TestUsedNames:
    def test_a_damaged_name_is_told_and_the_others_are_known(
        self, rules: Rules, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(2):
            journal, entry = journal_of(rules), entry_of(rules, NAME)
            entry.inode, entry.revision = 1, number
            journal.write(entry)
            journal.remove(entry)
            journal.close()
        path = Path(rules.output_dir, FOLDER, "names")
        whole = path.read_bytes()
        lines = whole.splitlines()
        for at, data in (*flipped(whole), *cut(whole)):
            path.write_bytes(data)
            caplog.clear()
            journal = journal_of(rules)
            known = [revision for _, revision in journal.revisions()]
            there = [line in data.split(b"\n") for line in lines]
            assert known == [number for number in range(2) if there[number]], at
            is_flipped = len(data) == len(whole)
            is_told = is_flipped or data not in (b"", whole[:-1], *lines[:1], lines[0] + b"\n")
            assert [str(path) in text for text in caplog.messages] == [True] * is_told, at
            places = {f"{path}: line {1 + whole.count(bytes([10]), 0, at)}"}
            assert journal.damaged == (places if is_flipped else set()), at

    def test_those_of_version_0_3_are_known_and_what_it_left_torn_is_no_damage(
        self, rules: Rules
    ) -> None:
        folder = Path(rules.output_dir, FOLDER)
        folder.mkdir()
        (folder / "names").write_bytes(b'\n["a<REV>", 1]\n\n["b<RE\n["c<REV>", 3]\n')
        journal = journal_of(rules)
        assert list(journal.revisions()) == [("a<REV>", 1), ("c<REV>", 3)]
        assert not journal.damaged


def test_a_damaged_line_about_the_age_of_a_file_is_told_and_the_others_are_known(
    rules: Rules, caplog: pytest.LogCaptureFixture
) -> None:
    files = [os.path.join(rules.output_dir, name) for name in ("a", "b")]
    Ages(rules.output_dir, 0).note(*files)
    path = Path(rules.output_dir, FOLDER, "ages")
    whole = path.read_bytes()
    lines = whole.splitlines()
    for at, data in (*flipped(whole), *cut(whole)):
        path.write_bytes(data)
        caplog.clear()
        ages = Ages(rules.output_dir, 0)
        ages.read()
        there = [line in data.split(b"\n") for line in lines]
        assert list(map(ages.knows, files)) == there, at
        is_flipped = len(data) == len(whole)
        assert [str(path) in text for text in caplog.messages] == [True] * is_flipped, at
        if is_flipped:
            assert path.read_bytes() == data
