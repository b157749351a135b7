from __future__ import annotations

import hashlib
import json
import os
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.policy.retention import Retention
from nsqtools.sinks.files.aftercare import Care
from nsqtools.sinks.files.hooks import Hook
from nsqtools.sinks.files.journal import Entry, Journal
from nsqtools.sinks.files.listing import Found
from nsqtools.sinks.files.manifest import LatestLink, Manifest, Published

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make_care(folder: Path, **more: Any) -> Care:
    defaults = {
        "manifest": None,
        "link": None,
        "retention": Retention(),
        "hook": None,
        "journal": Journal(str(folder), ""),
        "found": partial(found, folder),
    }
    return Care(**{**defaults, **more})


def found(folder: Path) -> Iterator[Found]:
    """All files below, of which the topic is before the point."""
    for path in folder.glob("*.log"):
        state = path.stat()
        topic = path.name.partition(".")[0]
        yield Found(str(path), topic, state.st_size, state.st_mtime_ns)


def file(folder: Path, name: str, data: bytes = b"one\n", age: float = 0.0) -> Published:
    path = folder / name
    path.write_bytes(data)
    if age:
        then = path.stat().st_mtime_ns - int(age * 1e9)
        os.utime(path, ns=(then, then))
    return Published(
        path=str(path),
        name=name,
        topic=name.partition(".")[0],
        records=1,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format="raw",
        delimiter="\\n",
        compression="none",
    )


def follow(care: Care, published: Published) -> None:
    """As when the file has just been published."""
    entry = Entry(
        published=published,
        base=published.name,
        revision=0,
        host="",
        work_dir="",
        work_dir_inode=0,
        work=published.name,
        inode=os.stat(published.path).st_ino,
        owes=care.owes,
    )
    if care.owes:
        care._journal.write(entry)
    care.follow(entry)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.log"))


def test_without_anything_asked_for_nothing_is_done(tmp_path: Path) -> None:
    care = make_care(tmp_path)
    published = file(tmp_path, "a.1.log")
    care.record(published)
    follow(care, published)
    care.prune()
    assert os.listdir(tmp_path) == ["a.1.log"]


class TestManifest:
    def test_a_file_is_recorded_once_however_often_that_is_asked(self, tmp_path: Path) -> None:
        manifest = tmp_path / "manifest"
        care = make_care(tmp_path, manifest=Manifest(str(manifest)))
        first, second = file(tmp_path, "a.1.log"), file(tmp_path, "a.2.log")
        for published in (first, first, second, first):
            care.record(published)
        lines = list(map(json.loads, manifest.read_bytes().splitlines()))
        assert [line["name"] for line in lines] == ["a.1.log", "a.2.log"]

    def test_a_name_that_went_on_is_recorded_with_what_it_became(self, tmp_path: Path) -> None:
        manifest = tmp_path / "manifest"
        care = make_care(tmp_path, manifest=Manifest(str(manifest)))
        care.record(file(tmp_path, "a.log"))
        care.record(file(tmp_path, "a.log", b"one\ntwo\n"))
        lines = list(map(json.loads, manifest.read_bytes().splitlines()))
        assert [line["bytes"] for line in lines] == [4, 8]

    def test_a_manifest_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        care = make_care(tmp_path, manifest=Manifest(str(tmp_path)))
        with pytest.raises(OSError, match="Is a directory"):
            care.record(file(tmp_path, "a.log"))


class TestLink:
    def test_the_link_is_on_the_newest_file_of_its_topic(self, tmp_path: Path) -> None:
        care = make_care(tmp_path, link=lambda topic: LatestLink(str(tmp_path / f"{topic}.latest")))
        for name in ("a.1.log", "b.1.log", "a.2.log"):
            follow(care, file(tmp_path, name))
        assert os.readlink(tmp_path / "a.latest") == "a.2.log"
        assert os.readlink(tmp_path / "b.latest") == "b.1.log"

    def test_a_link_that_cannot_be_set_is_a_warning_that_names_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "latest"
        path.write_bytes(b"theirs")
        care = make_care(tmp_path, link=lambda _: LatestLink(str(path)))
        follow(care, file(tmp_path, "a.log"))
        assert caplog.messages == [f"--latest-link {path}: not a symbolic link, so left alone"]
        assert path.read_bytes() == b"theirs"


class TestRetention:
    def test_the_oldest_files_go_when_there_are_too_many_of_a_topic(self, tmp_path: Path) -> None:
        for number in range(4):
            file(tmp_path, f"a.{number}.log", age=100 - number)
            file(tmp_path, f"b.{number}.log", age=100 - number)
        care = make_care(tmp_path, retention=Retention(keep=2))
        follow(care, file(tmp_path, "a.9.log"))
        assert names(tmp_path) == ["a.3.log", "a.9.log", *(f"b.{n}.log" for n in range(4))]

    def test_what_was_there_before_is_pruned_without_a_new_file(self, tmp_path: Path) -> None:
        for number in range(3):
            file(tmp_path, f"a.{number}.log", age=1000 * (3 - number))
        make_care(tmp_path, retention=Retention(max_age=1500)).prune()
        assert names(tmp_path) == ["a.2.log"]

    def test_the_files_are_listed_once(self, tmp_path: Path) -> None:
        looks: list[int] = []

        def look() -> Iterator[Found]:
            looks.append(1)
            return found(tmp_path)

        care = make_care(tmp_path, retention=Retention(max_total=9), found=look)
        for number in range(5):
            follow(care, file(tmp_path, f"a.{number}.log"))
        care.prune()
        assert names(tmp_path) == ["a.3.log", "a.4.log"]
        assert len(looks) == 1

    def test_a_file_that_somebody_else_removed_counts_no_more(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        care = make_care(tmp_path, retention=Retention(keep=1))
        follow(care, file(tmp_path, "a.1.log"))
        (tmp_path / "a.1.log").unlink()
        follow(care, file(tmp_path, "a.2.log"))
        follow(care, file(tmp_path, "a.3.log"))
        assert names(tmp_path) == ["a.3.log"]
        assert caplog.messages == []

    def test_a_file_that_cannot_be_deleted_is_a_warning_and_keeps_no_other(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        care = make_care(tmp_path, retention=Retention(keep=1))
        first = file(tmp_path, "a.1.log")
        follow(care, first)
        (tmp_path / "a.1.log").unlink()
        (tmp_path / "a.1.log").mkdir()  # which unlink refuses, whoever asks
        follow(care, file(tmp_path, "a.2.log"))
        follow(care, file(tmp_path, "a.3.log"))
        assert names(tmp_path) == ["a.1.log", "a.3.log"]
        assert caplog.messages == [f"{first.path} is not deleted: Is a directory"] * 2

    def test_a_file_whose_command_has_still_to_be_run_stays(self, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        hook = Hook(f"read line < {shlex.quote(str(gate))}; test -e {{}}")
        care = make_care(tmp_path, retention=Retention(keep=1), hook=hook)
        for number in range(3):
            follow(care, file(tmp_path, f"a.{number}.log"))
        assert names(tmp_path) == ["a.0.log", "a.1.log", "a.2.log"]
        with gate.open("w") as file_of_lines:
            file_of_lines.write("go\n" * 3)
            file_of_lines.flush()
            hook.close()
        care.prune()
        assert names(tmp_path) == ["a.2.log"]
