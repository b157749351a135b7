from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import ConfigError, LockedError, OutputError
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.mounted import held, real, replace_json

if TYPE_CHECKING:
    from pathlib import Path


def test_a_place_is_known_by_its_path_without_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert real(str(tmp_path / "link" / "a"), "no") == str(tmp_path / "target" / "a")
    assert real(f"file://{tmp_path}/b", "no") == str(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"^s3a://bucket/x: copy it here$"):
        real("s3a://bucket/x", "copy it here")
    with pytest.raises(ConfigError, match="its name is not UTF-8: rename it"):
        real(f"{tmp_path}/{os.fsdecode(bytes([255]))}", "no")


def test_a_directory_is_made_and_held_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "one"
    with (
        held(str(folder), "x.lock"),
        pytest.raises(LockedError, match=rf"^{folder}/x\.lock is locked by process"),
        held(str(folder), "x.lock"),
    ):
        pass
    assert Lock(str(folder / "x.lock")).acquire()


def test_what_the_disk_says_is_an_error_of_the_output(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match=rf"^{tmp_path}/file/x\.lock: Not a directory$"),
        held(str(tmp_path / "file"), "x.lock"),
    ):
        pass
    with (
        pytest.raises(OutputError, match=rf"^{tmp_path}: No space left"),
        held(str(tmp_path), "x.lock"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_once_the_next_one_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    replace_json(str(path), {"n": 1})
    seen = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        fsync(fd)
        seen.append((os.readlink(f"/proc/self/fd/{fd}"), json.loads(path.read_text())["n"]))

    monkeypatch.setattr(os, "fsync", noting)
    replace_json(str(path), {"n": 2})
    assert seen == [(f"{path}.new", 1), (str(tmp_path), 2)]
    assert os.listdir(tmp_path) == ["state.json"]
