"""What follows when a file is published: its line, the deletion of old files."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import OutputError
from nsqtools.policy.filenames import NamePattern
from nsqtools.policy.matcher import NameMatcher
from nsqtools.sinks.files import uploads
from nsqtools.sinks.files.aftercare import Care
from nsqtools.sinks.files.journal import HOOK, MANIFEST, Journal
from tests.support.archiving import Archiving, Notes, entry_of, make_rules, published
from tests.support.sinking import make_archives

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.sinks.files.journal import Entry


FLAT = NamePattern(filename_format="<TOPIC>.log")


class Matcher(NameMatcher):
    def match(self, path: str) -> str | None:
        return path.partition(".")[0] if path.endswith(".log") else None


class Publishing:
    """Publishes files, and cares for each; all before the point of a name is the topic."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.rules = make_rules(folder, output_dir=str(folder), work_dir=str(folder), **options)
        self.journal = Journal(str(folder), self.rules.host)
        self.care = Care(self.rules, self.journal, Matcher(FLAT, hostname="h", topics=()))

    def complete(self, name: str, data: bytes = b"one\n", age: float = 0.0) -> Entry:
        """A file that has its final name, and its line in the manifest."""
        path = self.folder / name
        path.write_bytes(data)
        then = path.stat().st_mtime_ns - int(age * 1e9)
        os.utime(path, ns=(then, then))
        sha256 = hashlib.sha256(data).hexdigest()
        entry = entry_of(self.rules, name)
        entry.published = published(
            path, topic=name.partition(".")[0], size=len(data), sha256=sha256
        )
        entry.inode, entry.owes = path.stat().st_ino, self.care.owes
        self.journal.write(entry)
        self.care.record(entry)
        return entry

    def publish(self, *names: str, age: float = 0.0) -> None:
        for name in names:
            entry = self.complete(name, age=age)
            if not entry.owes:
                self.journal.remove(entry)
            self.care.follow(entry)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.log"))


def test_a_file_is_recorded_once_as_often_as_it_changes(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest"
    files = Publishing(tmp_path, manifest="manifest")
    for name, data in (
        ("a", b"1\n"),
        ("a", b"1\n"),
        ("b", b"2\n"),
        ("a", b"1\n"),
        ("a", b"1\n2\n"),
    ):
        files.complete(name, data)
    lines = list(map(json.loads, manifest.read_bytes().splitlines()))
    assert [(line["name"], line["bytes"]) for line in lines] == [("a", 2), ("b", 2), ("a", 4)]


def test_a_file_of_a_run_without_manifest_is_in_none_and_one_that_owes_its_line_gets_it(
    tmp_path: Path,
) -> None:
    """A line without a checksum would make a good file bad for good."""
    plain = Archiving(tmp_path, notes=Notes(owes=(HOOK,)))
    plain.write(b"one")
    plain.close()
    plain.crash()
    archives = make_archives(plain.rules, manifest="manifest", on_rotate="true")
    archives.open()
    archives.close()
    archives.unlock()
    manifest = tmp_path / "out" / "manifest"
    assert not manifest.exists()

    kept = Archiving(tmp_path, digest=True, notes=Notes(owes=(MANIFEST,)))
    kept.write(b"two")
    kept.close()
    kept.crash()
    archives = make_archives(plain.rules)
    archives.open()
    with pytest.raises(OutputError, match="run again with --manifest"):
        archives.close()
    archives.unlock()
    archives = make_archives(kept.rules)
    archives.open()
    archives.close()
    archives.unlock()
    (line,) = map(json.loads, manifest.read_bytes().splitlines())
    assert line["sha256"] == hashlib.sha256(b"two\n").hexdigest()


class TestRetention:
    def test_the_oldest_files_go_when_there_are_too_many_of_a_topic(self, tmp_path: Path) -> None:
        for number in range(4):
            names = [f"{topic}.{number}.log" for topic in "ab"]
            Publishing(tmp_path).publish(*names, age=100 - number)
        files = Publishing(tmp_path, keep=2)
        files.publish("a.9.log")
        assert files.names() == ["a.3.log", "a.9.log", *(f"b.{n}.log" for n in range(4))]

    def test_a_file_that_somebody_else_removed_counts_no_more(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = Publishing(tmp_path, keep=1)
        files.publish("a.1.log")
        (tmp_path / "a.1.log").unlink()
        files.publish("a.2.log", "a.3.log")
        assert files.names() == ["a.3.log"]
        assert caplog.messages == []

    def test_a_file_that_cannot_be_deleted_is_a_warning_and_keeps_no_other(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = Publishing(tmp_path, keep=1)
        files.publish("a.1.log")
        (tmp_path / "a.1.log").unlink()
        (tmp_path / "a.1.log").mkdir()  # which unlink refuses, whoever asks
        files.publish("a.2.log", "a.3.log")
        assert files.names() == ["a.1.log", "a.3.log"]
        assert [str(tmp_path / "a.1.log") in text for text in caplog.messages] == [True, True]

    def test_a_file_whose_command_has_still_to_be_run_stays(self, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        command = f"read line < {shlex.quote(str(gate))}; test -e {{}}"
        files = Publishing(tmp_path, keep=1, on_rotate=command)
        files.publish("a.0.log", "a.1.log", "a.2.log")
        assert files.names() == ["a.0.log", "a.1.log", "a.2.log"]
        with gate.open("w") as lines:
            lines.write("go\n" * 3)
            lines.flush()
            files.care.close()
        assert files.names() == ["a.2.log"]


class TestUploads:
    def upload(self, folder: Path, *names: str, **options: Any) -> Publishing:
        files = Publishing(folder, upload=str(folder / "remote"), **options)
        files.publish(*names)
        return files

    def waiting(self, files: Publishing) -> list[str]:
        return list(files.journal.owed())

    def test_a_file_is_deleted_once_it_is_uploaded_and_the_command_has_had_it(
        self, tmp_path: Path
    ) -> None:
        command = f"test -e {tmp_path}/remote/$(basename {{}}) && cp {{}} {{}}.had"
        files = self.upload(tmp_path, "a.0.log", delete_uploaded=True, on_rotate=command, keep=1)
        files.care.close()
        assert files.names() == self.waiting(files) == []
        for copy in ("remote/a.0.log", "a.0.log.had"):
            assert (tmp_path / copy).read_bytes() == b"one\n"

    def test_nothing_is_deleted_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(uploads, "_LAST_ATTEMPTS", 1)
        (tmp_path / "remote").write_bytes(b"no directory")
        for delete in (False, True):
            name = f"a.{delete:d}.log"
            files = self.upload(tmp_path, name, delete_uploaded=delete, on_rotate="rm", keep=1)
            files.publish("a.9.log")
            files.care.close()
            assert self.waiting(files) == ["--upload"]
        assert files.names() == ["a.0.log", "a.1.log", "a.9.log"]

    def test_what_was_uploaded_is_deleted_by_the_next_run_if_it_may(self, tmp_path: Path) -> None:
        for may in (False, True):
            entry = entry_of(make_rules(tmp_path), "a.0.log")
            entry.published = published(tmp_path / "a.0.log", topic="a")
            (tmp_path / "a.0.log").write_bytes(b"one\n")
            entry.owes = ("--delete-uploaded",)
            files = self.upload(tmp_path, delete_uploaded=may)
            files.journal.write(entry)
            files.care.settle(entry)
            assert self.waiting(files) == []
            assert files.names() == ([] if may else ["a.0.log"])
