"""Tables as inputs: which files they have, where they are, and what cannot be read."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from nsqtools.errors import ConfigError
from nsqtools.spark.jobs.replay import ReplaySettings, plan, publish
from nsqtools.spark.lake.inputs import check_unchanged, find, open_file
from nsqtools.spark.lake.snapshots import Maintained, compact_table, is_table
from tests.support.replays import Taken, nothing
from tests.support.tables import counted_rows, to_file_of_table, to_table

pytestmark = pytest.mark.timeout(900)  # MinIO may have to be built


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path if request.param == "disk" else request.getfixturevalue("bucket")
    return f"{folder}/ta ble"


def bodies(place: str) -> list[bytes]:
    """The bodies in the files of a table, as a replay reads them."""
    found = find([place], None)
    check_unchanged(found)
    read: list[bytes] = []
    for each in found:
        with open_file(each.path) as file:
            read += pq.ParquetFile(file).read()["body"].to_pylist()
    return sorted(read)


def test_a_table_has_the_files_of_its_log_before_and_after_they_were_merged(place: str) -> None:
    to_table(place, "a#ephemeral", "a#ephemeral", None, "b c%d")
    to_file_of_table(place, "torn", "t")
    assert is_table(place)
    assert bodies(place) == [b"1"] * 4 + [b"2"] * 4
    assert compact_table(place, 1 << 20) == Maintained(2, 1, 0)
    to_table(place, "t", batch="b")
    assert bodies(place) == [b"1"] * 5 + [b"2"] * 5
    assert len(find([place], None)) == 4
    assert counted_rows(place) == [
        (9, "a#ephemeral", 4),
        (9, "b c%d", 2),
        (9, "t", 2),
        (9, None, 2),
    ]
    for within in ("date=2026-11-22", "date=2026-11-22/hour=0*/topic=t"):
        with pytest.raises(ConfigError, match=f"within the table .*{place[-7:]}.*date"):
            find([f"{place}/{within}"], None)
    with pytest.raises(ConfigError, match=f"contains the table .*{place[-7:]}"):
        find([place.rpartition("/")[0]], None)


def test_merged_files_are_durable_and_replaced_ones_deleted_after_the_tables_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_table(tmp_path, *"ttt")
    table = DeltaTable(str(tmp_path))
    table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    assert compact_table(str(tmp_path), 1 << 20) == Maintained(3, 1, 3)
    [file] = find([str(tmp_path)], None)
    log = tmp_path / "_delta_log"
    assert {file.path, os.path.dirname(file.path), str(log / f"{5:020d}.json"), str(log)} <= synced


@pytest.mark.parametrize(
    ("features", "configuration", "name"),
    [
        (["deletionVectors"], {}, "deletionVectors"),
        (["columnMapping"], {"delta.columnMapping.mode": "name"}, "columnMapping"),
        (None, {"delta.columnMapping.mode": "id"}, "columnMapping"),
        (["timestampNtz", "columnMapping"], {}, ""),
    ],
)
def test_a_table_whose_files_are_not_its_rows_is_refused_by_name(
    tmp_path: Path, features: list[str] | None, configuration: dict[str, str], name: str
) -> None:
    to_table(tmp_path, "t")
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    actions: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    for each in actions:
        if "metaData" in each:
            each["metaData"]["configuration"] = configuration
            schema = json.loads(each["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": field["name"],
                }
            each["metaData"]["schemaString"] = json.dumps(schema)
        if "protocol" in each:
            each["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
            if features:
                named = {"readerFeatures": features, "writerFeatures": features}
                each["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **named}
    log.write_text("".join(json.dumps(each) + "\n" for each in actions))
    if not name:
        assert bodies(str(tmp_path)) == [b"1", b"2"]
        return
    for call in (lambda: find([str(tmp_path)], None), lambda: compact_table(str(tmp_path), 1)):
        with pytest.raises(ConfigError, match=f"^--input {tmp_path}: .*{name}[^\n]*$"):
            call()


def test_a_table_is_replayed_without_spark(
    replaying: ReplaySettings, taken: Taken, tmp_path: Path
) -> None:
    to_table(tmp_path / "lake", "a", "b")
    to_file_of_table(tmp_path / "lake", "torn", "a")
    assert plan(replaying)
    assert publish(replaying, threading.Event(), nothing).published == 4
    assert sorted(taken()) == [b"1", b"1", b"2", b"2"]
