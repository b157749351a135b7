"""What the log of a Delta table says of a batch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from opendal import Operator

from nsqtools.spark.lake.delta import sync_batch
from nsqtools.stores.mounted import LocalStore
from nsqtools.stores.objectstore import ObjectStore

OURS, THEIRS = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab", "5e0fa0a1-9c1d-4f0b-8a00-000000000000"
HOUR = "date=2026-11-22/hour=9"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What is synced from now on."""
    found: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: found.add(os.readlink(f"/proc/self/fd/{fd}")))
    return found


def commit(table: Path, version: int, *actions: Mapping[str, object]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))


def txn(query: str, number: int) -> dict[str, object]:
    return {"txn": {"appId": query, "version": number}}


def add(name: str, rows: int | None) -> dict[str, object]:
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return {"add": {"path": f"{HOUR}/{name}", **stats}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ours is batch 7 in version 4, after which others have merged and removed one of its files."""
    table = tmp_path / "ta ble"
    (table / HOUR).mkdir(parents=True)
    for name in ("a b.parquet", "c.parquet", "merged.parquet", "before.parquet"):
        (table / HOUR / name).touch()
    commit(table, 3, txn(OURS, 6), add("before.parquet", 1))
    facts = {"commitInfo": {"operation": "WRITE"}}
    ours = [add("a%20b.parquet", 3), add("c.parquet", 4), add("gone.parquet", 5)]
    commit(table, 4, facts, txn(OURS, 7), *ours, add("counts.parquet", None))
    commit(table, 5, txn(THEIRS, 7), add("c.parquet", 100))
    commit(table, 6, {"remove": {"path": f"{HOUR}/gone.parquet"}}, add("merged.parquet", 5))
    return table


def test_the_rows_of_a_batch_are_those_of_its_own_commit(table: Path, synced: set[str]) -> None:
    """Also in an object store, where nothing is synced; a batch that is forgotten has none."""
    operator = Operator("fs", root=str(table))
    assert sync_batch(ObjectStore("s3a://bucket/", operator, operator), 6, OURS, 7) == 12
    assert not synced
    store = LocalStore(str(table))
    found = [(6, OURS, 7), (6, OURS, 6), (6, THEIRS, 7), (3, OURS, 7)]
    assert [sync_batch(store, *each) for each in found] == [12, 1, 100, 0]
    (table / "_delta_log" / f"{4:020d}.json").unlink()
    assert sync_batch(store, 6, OURS, 7) == 0


def test_a_batch_and_what_replaced_its_files_are_synced_up_to_the_table(
    table: Path, synced: set[str]
) -> None:
    sync_batch(LocalStore(str(table)), 6, OURS, 7)
    logs = {str(table / "_delta_log" / f"{version:020d}.json") for version in (4, 5, 6)}
    names = ("a b.parquet", "c.parquet", "merged.parquet")
    files = {str(table / HOUR / name) for name in names}
    leaf = table / HOUR
    folders = {str(each) for each in (leaf, leaf.parent, table, table / "_delta_log")}
    assert synced >= logs | files | folders
    assert str(leaf / "before.parquet") not in synced
