"""The file that a check leaves behind is whole, or as it was."""

from __future__ import annotations

import os
import resource
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from nsqtools.cli.stats.results import replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_made_for_all_to_read_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    before = os.umask(0o077)
    try:
        replace_file(str(path), "é 1\n")
    finally:
        os.umask(before)
    assert path.read_text("utf-8") == "é 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["x.prom"]


def test_one_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "check"
    path.touch(0o640)
    replace_file(str(path), "1\n")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("1\n", 0o640)


def test_a_reader_sees_one_whole_text_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    texts = [letter * 300_000 for letter in "ab"]
    replace_file(str(path), texts[0])
    done = threading.Event()

    def write() -> None:
        for n in range(40):
            replace_file(str(path), texts[n % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
    writer.join()
    assert seen <= set(texts)


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/x")
    replace_file(str(link), "1\n")
    assert link.is_symlink()
    assert (tmp_path / "real/x").read_text() == "1\n"


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/null"):
        with pytest.raises(OSError, match="not a regular file"):
            replace_file(str(path), "1\n")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_where_there_is_no_room_the_old_one_stays_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(str(path), "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["x"]
