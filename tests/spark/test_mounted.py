"""Places on file systems that are mounted: what they are called, hold, and who holds them."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import ConfigError, LockedError, OutputError
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.mounted import held, real, replace_json
from nsqtools.spark.outputs import hours, named
from nsqtools.spark.progress import Written

if TYPE_CHECKING:
    from pathlib import Path


def test_a_place_is_known_by_its_path_without_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert real(str(tmp_path / "link" / "a"), "no") == str(tmp_path / "target" / "a")
    assert real(f"file://{tmp_path}/b", "no") == str(tmp_path / "b")
    with pytest.raises(ConfigError, match="s3a://bucket/x: copy"):
        real("s3a://bucket/x", "copy it here")
    with pytest.raises(ConfigError, match="UTF-8"):
        real(f"{tmp_path}/{os.fsdecode(bytes([255]))}", "no")


def test_a_directory_is_made_and_held_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "one"
    with (
        held(str(folder), "x.lock"),
        pytest.raises(LockedError, match=rf"^{folder}/x\.lock "),
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


QUERY = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab"


def test_a_batch_is_named_by_its_query_and_its_number() -> None:
    assert named(QUERY, 7) == "5e0fa0a19c1d4f0b-00000007"
    assert named(QUERY, 123_456_789) == "5e0fa0a19c1d4f0b-123456789"
    other = QUERY[:9] + "9c1e" + QUERY[13:]
    assert named(other, 7) != named(QUERY, 7), "ids that begin alike"


def test_a_batch_is_in_the_days_from_its_oldest_to_its_newest_message(tmp_path: Path) -> None:
    for name in ("20/hour=23", "21/hour=00", "21/hour=01", "22/hour=00", "22/hour=x"):
        (tmp_path / f"date=2026-11-{name}").mkdir(parents=True)
    (tmp_path / "_nsqtools").mkdir()

    def of(*times: str) -> set[str]:
        oldest, newest = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in times)
        written = Written(2, oldest.timestamp(), newest.timestamp())
        return {str(each.relative_to(tmp_path))[13:] for each in hours(tmp_path, written)}

    assert of("2026-11-21T00:59", "2026-11-21T01:00") == {"21/hour=00", "21/hour=01"}
    assert of("2026-11-20T23:59", "2026-11-21T00:00") == {"20/hour=23", "21/hour=00", "21/hour=01"}
    assert list(hours(tmp_path, Written(0))) == []
