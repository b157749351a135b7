"""That what Spark notes lasts before messages are finished under it, or rows are removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.spark import source
from nsqtools.spark.checkpoints import sync_log
from nsqtools.spark.options import parse_source
from nsqtools.spark.plans import Offset, Quota
from nsqtools.spark.source import NsqStreamReader

if TYPE_CHECKING:
    import pytest


def test_the_newest_entries_and_all_names_above_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "checkpoint/offsets"
    log.mkdir(parents=True)
    metadata = log.parent / "metadata"
    for number, path in enumerate([metadata, *(log / str(n) for n in range(10))]):
        path.touch()
        os.utime(path, (number, number))
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    sync_log(str(log.parent), "offsets")
    assert {log / "9", log / "8", metadata, log, log.parent, tmp_path} <= set(synced)
    assert log / "0" not in synced


def test_a_checkpoint_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    sync_log(str(tmp_path / "none"), "offsets")


def test_offsets_last_before_a_batch_is_made_and_commits_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    noted: list[tuple[str, list[str]]] = []

    def note(checkpoint: str, log: str) -> None:
        assert checkpoint == "/checkpoint"
        noted.append((log, [path.name[0] for path in staging.glob("*/*")]))

    monkeypatch.setattr(source, "sync_log", note)
    reader = NsqStreamReader(
        parse_source(
            {
                "subscribe": "events",
                "channel": "lake",
                "stagingLocation": str(staging),
                "checkpointPath": "/checkpoint",
            }
        )
    )
    end = Offset("a" * 32, 1, (Quota("events", "127.0.0.1:4150", 1),)).to_json()
    reader.partitions(Offset("a" * 32, 0, ()).to_json(), end)
    reader.commit(end)
    assert noted == [("offsets", []), ("commits", ["b"])]
    assert [path.name[0] for path in staging.glob("*/*")] == ["d"]
