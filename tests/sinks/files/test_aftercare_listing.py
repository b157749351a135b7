"""Which files a walk below the output directory finds."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import pytest

from nsqtools.policy.filenames import NamePattern
from nsqtools.policy.matcher import NameMatcher
from nsqtools.policy.retention import Kept
from nsqtools.sinks.files.aftercare import find

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


def names(root: Path, matcher: NameMatcher) -> list[str]:
    return sorted(os.path.relpath(kept.path, root) for _, kept in find(str(root), matcher))


def test_published_files_are_found_and_others_are_not(tmp_path: Path) -> None:
    for name in ("a.log.part", "a.log.torn", "b.log.copy", "c.log", "a.log.part.part"):
        touch(tmp_path / name)
    touch(tmp_path / "a-000002.log", 1000, "four")
    (found,) = find(str(tmp_path), FLAT)
    assert found == ("a", Kept(str(tmp_path / "a-000002.log"), 4, 1000))
    for end in (".part", ".torn", ".copy"):
        touch(tmp_path / f"a{end}")
    anything = NamePattern(filename_format="<TOPIC>")
    of_any_topic = NameMatcher(anything, hostname="h", topics=re.compile("."))
    assert names(tmp_path, of_any_topic) == ["a-000002.log", "c.log"]


def test_directories_of_partitions_are_searched_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "dt=20/h=23/a.log", 1)
    touch(tmp_path / "dt=21/h=00/b-000001.log", 0)
    for name in ("dt=21/a.log", "dt=2x/h=00/a.log", "other/h=00/a.log"):
        touch(tmp_path / name)
    (tmp_path / "dt=20/h=23/b.log").mkdir()
    assert names(tmp_path, DEEP) == ["dt=20/h=23/a.log", "dt=21/h=00/b-000001.log"]
    assert names(tmp_path / "later", FLAT) == []
    assert not caplog.records


def test_symbolic_links_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside/h=00/a.log"
    touch(outside)
    root = tmp_path / "root"
    (root / "dt=20/h=00").mkdir(parents=True)
    (root / "dt=21").symlink_to(tmp_path / "outside")
    (root / "dt=20/h=00/a.log").symlink_to(outside)
    os.mkfifo(root / "dt=20/h=00/b.log")
    assert names(root, DEEP) == []
    (tmp_path / "link").symlink_to(tmp_path / "root")
    touch(root / "dt=20/h=00/a-000001.log")
    assert names(tmp_path / "link", DEEP) == ["dt=20/h=00/a-000001.log"]


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_a_directory_that_cannot_be_read_is_logged_unless_it_is_gone_and_the_rest_is_found(
    error: type[OSError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    touch(tmp_path / "dt=20/h=23/a.log")
    touch(tmp_path / "dt=21/h=00/a.log")
    scandir = os.scandir

    def scan(path: str) -> object:
        if os.path.normpath(path) == str(tmp_path / "dt=20"):
            raise error(errno.EACCES, "not readable", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert names(tmp_path, DEEP) == ["dt=21/h=00/a.log"]
    logged = [str(tmp_path / "dt=20") in text for text in caplog.messages]
    assert logged == ([True] if error is PermissionError else [])
