"""That what Spark notes lasts before messages are finished under it, or rows are removed."""

import errno
import os
from pathlib import Path

import pytest

from nsqtools.spark.jobs.checkpoint import Checkpoint, Stamp
from nsqtools.spark.lake.folders import sync_log
from nsqtools.spark.source import source
from nsqtools.spark.source.plans import BatchPlan, Offset, Quota
from nsqtools.spark.source.source import NsqStreamReader
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.stores.mounted import LocalStore


def test_the_newest_entries_and_all_names_above_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "checkpoint/offsets"
    log.mkdir(parents=True)
    metadata = log.parent / "metadata"
    for number in range(11):
        for path in (log / f"{number}", log / f".{number}.crc", metadata):
            path.touch()
            os.utime(path, (99 - number, 99 - number))  # a clock that was set back
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    sync_log(str(log.parent), "offsets")
    newest = {log / "10", log / ".10.crc", log / "9", log / ".9.crc"}
    assert set(synced) == newest | {metadata, log, log.parent, tmp_path}


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
    plan = BatchPlan("a" * 32, 1, TASKS)
    Ledger(LocalStore(str(staging)), plan.stream).prepare(plan)
    end = plan.offset.to_json()
    reader.partitions(Offset(plan.stream, 0).to_json(), end)
    assert noted == [("offsets", ["b"])]
    reader.commit(end)
    assert noted[1:] == [("commits", ["b"])]
    assert [path.name[0] for path in staging.glob("*/*")] == ["d"]


TASKS = ((Quota("events", "127.0.0.1:4150", 1),),)


def test_of_several_streams_those_with_the_name_of_the_checkpoint_are_its_own(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint(str(tmp_path / "state"), str(tmp_path / "staging"))
    group = Stamp(checkpoint, {}).group
    own = [BatchPlan(f"{group}{name * 16}", 1, TASKS) for name in "ab"]
    for plan in [*own, BatchPlan("c" * 32, 1, TASKS)]:
        Ledger(checkpoint.staging, plan.stream).prepare(plan)
    assert checkpoint.planned() == own
    checkpoint.clean({own[0].stream: 1})
    assert checkpoint.planned() == own[1:]
    assert Stamp(checkpoint, {}).group == group


def test_a_commit_lasts_before_its_batch_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(str(tmp_path / "state"), str(tmp_path / "staging"))
    plan = BatchPlan("a" * 32, 1, TASKS)
    Ledger(checkpoint.staging, plan.stream).prepare(plan)
    (tmp_path / "state/commits").mkdir(parents=True)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        checkpoint.clean({plan.stream: 1})
    assert "input/output error" in caplog.text
    assert Ledger(checkpoint.staging, plan.stream).pending() == plan


def test_only_an_unfinished_batch_can_have_left_files_of_other_settings(tmp_path: Path) -> None:
    """So a new checkpoint, and new settings after a finished batch, cost no listing of a lake."""
    checkpoint = Checkpoint(str(tmp_path / "state"), str(tmp_path / "staging"))
    stamp = {"topics": ["t"], "channel": "c", "output": "/lake"}
    first, second = ({**stamp, "where": text} for text in ("a", "b"))
    assert not Stamp(checkpoint, first).changed
    for log in ("offsets", "commits"):
        checkpoint.store.put(f"{log}/0", b"")
        assert Stamp(checkpoint, first).changed is False
        assert Stamp(checkpoint, second).changed is (log == "offsets")
    assert not Stamp(checkpoint, first).changed
