"""Which files a walk below the output or work directory finds."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from nsqtools.policy.filenames import NamePattern
from nsqtools.policy.leftovers import NameMatcher
from nsqtools.sinks.files.leftovers import Found, find, sweep
from tests.sinks.files.archiving import below, held_by_another_process

if TYPE_CHECKING:
    from pathlib import Path

FLAT = NameMatcher(NamePattern(filename_format="<TOPIC><REV>.log"), hostname="h", topics=("a", "b"))
DEEP = NameMatcher(
    NamePattern(filename_format="<DATETIME>/<TOPIC><REV>.log", datetime_format="dt=%d/h=%H"),
    hostname="h",
    topics=re.compile("^[ab]$"),
)


def touch(path: Path, mtime: int = 0, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(mtime, mtime))


def names(root: Path, matcher: NameMatcher, suffix: str) -> list[str]:
    return [each.relative for each in find(str(root), matcher, suffix)]


def test_leftovers_come_by_time_then_by_name(tmp_path: Path) -> None:
    touch(tmp_path / "b.log.part", 2000)
    touch(tmp_path / "a-000002.log.part", 1000, "four")
    touch(tmp_path / "a.log.part", 2000)
    found = list(find(str(tmp_path), FLAT, ".part"))
    assert found[0] == Found(
        path=str(tmp_path / "a-000002.log.part"),
        relative="a-000002.log",
        topic="a",
        name="a<REV>.log",
        revision=2,
        size=4,
        mtime_ns=1000,
    )
    assert [each.relative for each in found] == ["a-000002.log", "a.log", "b.log"]


def test_leftovers_and_published_files_are_told_apart(tmp_path: Path) -> None:
    for name in ("a.log", "a.log.part", "a.log.torn", "b.log.copy", "c.log", "a.log.part.part"):
        touch(tmp_path / name)
    assert names(tmp_path, FLAT, "") == ["a.log"]
    assert names(tmp_path, FLAT, ".part") == ["a.log"]


@pytest.mark.parametrize("end", [".part", ".torn", ".copy"])
def test_no_published_file_ends_like_one_that_is_not(tmp_path: Path, end: str) -> None:
    of = NamePattern(filename_format="<TOPIC>")
    touch(tmp_path / f"a{end}")
    assert names(tmp_path, NameMatcher(of, hostname="h", topics=re.compile(".")), "") == []


def test_directories_of_partitions_are_searched_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "dt=20/h=23/a.log", 1)
    touch(tmp_path / "dt=21/h=00/b-000001.log", 0)
    touch(tmp_path / "dt=21/a.log")
    touch(tmp_path / "dt=2x/h=00/a.log")
    touch(tmp_path / "other/h=00/a.log")
    (tmp_path / "dt=20/h=23/b.log").mkdir()
    assert names(tmp_path, DEEP, "") == ["dt=21/h=00/b-000001.log", "dt=20/h=23/a.log"]
    assert not caplog.records


def test_symbolic_links_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside/h=00/a.log"
    touch(outside)
    root = tmp_path / "root"
    (root / "dt=20/h=00").mkdir(parents=True)
    (root / "dt=21").symlink_to(tmp_path / "outside")
    (root / "dt=20/h=00/a.log").symlink_to(outside)
    os.mkfifo(root / "dt=20/h=00/b.log")
    assert names(root, DEEP, "") == []
    (tmp_path / "link").symlink_to(tmp_path / "root")
    touch(root / "dt=20/h=00/a-000001.log")
    assert names(tmp_path / "link", DEEP, "") == ["dt=20/h=00/a-000001.log"]


def test_a_root_that_is_not_there_yet_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert names(tmp_path / "later", FLAT, "") == []
    assert not caplog.records


def fail_in(monkeypatch: pytest.MonkeyPatch, directory: Path, error: OSError) -> None:
    """Let the directory be unreadable, whoever runs the tests."""
    scandir = os.scandir

    def scan(path: str) -> object:
        if os.path.normpath(path) == str(directory):
            raise error
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)


def test_a_directory_that_cannot_be_read_is_logged_and_the_rest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "dt=20/h=23/a.log")
    touch(tmp_path / "dt=21/h=00/a.log")
    fail_in(monkeypatch, tmp_path / "dt=20", PermissionError(13, "Permission denied"))
    assert names(tmp_path, DEEP, "") == ["dt=21/h=00/a.log"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'dt=20'}: cannot be searched for archives: Permission denied"
    ]


def test_what_vanishes_meanwhile_is_left_out_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "dt=20/h=23/a.log")
    touch(tmp_path / "dt=21/h=00/a.log")
    fail_in(monkeypatch, tmp_path / "dt=20", FileNotFoundError(2, "No such file or directory"))
    taken = tmp_path / "dt=21/h=00/a.log"
    match = DEEP.match

    class Thief:
        """Takes a file away between the listing and the look at it."""

        descend = DEEP.descend

        def match(self, path: str) -> object:
            taken.unlink()
            return match(path)

    assert list(find(str(tmp_path), Thief(), "")) == []  # type: ignore[arg-type]
    assert not caplog.records


class TestSweep:
    def test_copies_of_names_that_match_go_and_nothing_else(self, tmp_path: Path) -> None:
        copies = ("dt=20/h=23/.a.log.0123abcd.copy", "dt=21/h=00/.b-000001.log.ffffffff.copy")
        others = (
            *("dt=20/h=23/a.log", "dt=20/h=23/a.log.copy", "dt=20/h=23/a.log.part"),
            *("dt=20/h=23/.c.log.0123abcd.copy", "dt=20/h=23/.a.log.copy"),
            *("dt=2x/h=23/.a.log.0123abcd.copy", ".a.log.0123abcd.copy"),
        )
        for name in (*copies, *others):
            touch(tmp_path / name)
        sweep(str(tmp_path), DEEP)
        assert below(str(tmp_path)) == sorted(others)

    def test_the_file_that_a_copy_was_published_as_stays(self, tmp_path: Path) -> None:
        touch(tmp_path / "a.log", text="records")
        os.link(tmp_path / "a.log", tmp_path / ".a.log.0123abcd.copy")
        sweep(str(tmp_path), FLAT)
        assert os.listdir(tmp_path) == ["a.log"]
        assert (tmp_path / "a.log").read_text() == "records"

    def test_a_copy_that_a_process_is_writing_stays(self, tmp_path: Path) -> None:
        copy = tmp_path / ".a.log.0123abcd.copy"
        touch(copy)
        with held_by_another_process(copy) as process:
            sweep(str(tmp_path), FLAT)
            assert copy.exists()
            process.kill()
            process.wait()
        sweep(str(tmp_path), FLAT)
        assert not copy.exists()

    def test_links_and_directories_stay(self, tmp_path: Path) -> None:
        touch(tmp_path / "precious")
        (tmp_path / ".a.log.00000000.copy").symlink_to("precious")
        (tmp_path / ".a.log.11111111.copy").mkdir()
        sweep(str(tmp_path), FLAT)
        assert len(os.listdir(tmp_path)) == 3

    def test_one_that_cannot_be_removed_is_logged_and_the_others_go(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second = (tmp_path / f".{name}.log.0123abcd.copy" for name in "ab")
        touch(first)
        touch(second)
        unlink = os.unlink

        def refuse(path: str) -> None:
            if path == str(first):
                raise PermissionError(13, "Permission denied", path)
            unlink(path)

        monkeypatch.setattr(os, "unlink", refuse)
        sweep(str(tmp_path), FLAT)
        assert os.listdir(tmp_path) == [first.name]
        assert caplog.messages == [
            f"{first}, which a crash left behind, is not removed: Permission denied"
        ]
