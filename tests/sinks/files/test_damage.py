"""Damage to the files of to-file: what is whole is kept, the rest is named, and no exit is 0."""

import logging
import os
import random
from pathlib import Path

import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.files.journal import FOLDER, entries, owing
from nsqtools.sinks.files.rules import Rules
from tests.support.archiving import below, entry_of, journal_of, leave, make_rules
from tests.support.damage import cut, flipped
from tests.support.sinking import started

NAME = "events.host-000000.2026-11-20_19.log"


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "fsync", bool)  # thousands of them
    return make_rules(tmp_path)


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
            owing(rules.output_dir)

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
