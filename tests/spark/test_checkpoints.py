"""That what Spark notes lasts before messages are finished under it, or rows are removed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import OutputError
from nsqtools.spark.jobs.checkpoint import Checkpoint
from nsqtools.spark.lake.folders import sync_log
from nsqtools.spark.source import source
from nsqtools.spark.source.plans import Offset, Quota
from nsqtools.spark.source.source import NsqStreamReader
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.stores.mounted import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_offsets_last_before_a_batch_is_read_and_commits_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    noted: list[tuple[str, list[str]]] = []

    def note(checkpoint: str, log: str) -> None:
        assert checkpoint == "/checkpoint"
        noted.append((log, [path.name[0] for path in staging.glob("*/*")]))

    monkeypatch.setattr(source, "sync_log", note)
    given = {"subscribe": "events", "channel": "lake", "checkpointPath": "/checkpoint"}
    reader = NsqStreamReader(parse_source({**given, "stagingLocation": str(staging)}))
    end = Offset("a" * 32, 1, (Quota("events", "127.0.0.1:4150", 1),)).to_json()
    Ledger(LocalStore(str(staging)), "a" * 32).prepare(Offset.from_json(end))
    reader.partitions(Offset("a" * 32, 0, ()).to_json(), end)
    assert noted == [("offsets", ["b"])]
    reader.commit(end)
    assert noted[1:] == [("commits", ["b"])]
    assert [path.name[0] for path in staging.glob("*/*")] == ["d"]


def offset(batch: int) -> Offset:
    quotas = (Quota("events", "127.0.0.1:4150", 1),)
    return Offset("a" * 32, batch, quotas if batch else ())


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[[list[int], int], str]:
    """Makes a checkpoint in which so many of the batches with these offsets are committed."""

    def write(batches: list[int], commits: int) -> str:
        for name in ("offsets", "commits"):
            (tmp_path / "state" / name).mkdir(parents=True)
        for number, batch in enumerate(batches):
            text = f"v1\n{{}}\n{json.dumps(offset(batch).to_json())}"
            (tmp_path / "state/offsets" / str(number)).write_text(text)
        for number in range(commits):
            (tmp_path / "state/commits" / str(number)).touch()
        return str(tmp_path / "state")

    return write


def test_a_batch_under_way_is_refused_in_a_staging_that_does_not_have_it(
    tmp_path: Path, write_log: Callable[[list[int], int], str]
) -> None:
    checkpoint = write_log([0, 1, 2], 2)
    Ledger(LocalStore(str(tmp_path / "old")), "a" * 32).prepare(offset(2))
    Checkpoint(checkpoint, str(tmp_path / "old")).check_staged()
    with pytest.raises(OutputError, match="--staging"):
        Checkpoint(checkpoint, str(tmp_path / "new")).check_staged()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("batches", "commits"),
    # The last is of nothing new: Spark makes some for what it aggregates.
    [([], 0), ([0], 0), ([0, 1], 2), ([0, 1, 1], 2)],
)
def test_where_none_is_under_way_any_staging_will_do(
    tmp_path: Path,
    write_log: Callable[[list[int], int], str],
    batches: list[int],
    commits: int,
) -> None:
    Checkpoint(write_log(batches, commits), str(tmp_path / "new")).check_staged()


def test_what_cannot_be_looked_at_is_left_to_spark(
    tmp_path: Path, write_log: Callable[[list[int], int], str]
) -> None:
    checkpoint = write_log([0], 0)
    (tmp_path / "state/offsets/1").write_text("torn")
    Checkpoint(checkpoint, str(tmp_path / "new")).check_staged()
