"""Tables of Delta Lake: a batch is committed once, whoever writes to the table meanwhile."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.lake.delta import DeltaTable
from nsqtools.spark.lake.tables import Token
from nsqtools.spark.lake.write import PartFile, escaped
from nsqtools.stores import open_store

OURS, THEIRS = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab", "5e0fa0a1-9c1d-4f0b-8a00-000000000000"
BY = ("date", "hour", "topic")


def columns(*names: str, **types: Any) -> StructType:
    """The schema of messages with these columns, and of others."""
    known = {"body": "binary", "date": "date", "hour": "integer", "topic": "string", **types}
    chosen = {name: known[name] for name in (*(names or list(known)[:4]), *types)}
    fields = [
        {"name": name, "type": each, "nullable": False, "metadata": {}}
        for name, each in chosen.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def part(table: Path | str, name: str, topic: str | None = "t", **values: list[Any]) -> PartFile:
    """A file as a task writes it."""
    rows = pa.table({"body": [b"1", b"2"], **values})
    path = f"date=2026-11-22/hour=09/topic={escaped(topic)}/batch={name}/part-0.parquet"
    store = open_store(str(table))
    with store.create(path) as file:
        pq.write_table(rows, file)
    return PartFile(path, rows.num_rows, rows.nbytes, store.stat(path).size, None, None)


def commit(output: DeltaTable, query: str, number: int, *files: PartFile) -> None:
    assert not output.has(Token(query, number))
    output.commit(files, columns(), BY, Token(query, number))


def rows(table: Path | str) -> list[tuple[Any, ...]]:
    """What another engine makes of the table."""
    url = str(table).replace("s3a://", "s3://")
    options = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    there = deltalake.DeltaTable(url, storage_options=options).to_pyarrow_dataset()  # noqa: F841 - in SQL
    found = duckdb.sql("SELECT hour, topic, count(*) FROM there GROUP BY ALL ORDER BY ALL")
    assert found
    return found.fetchall()


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a table."""
    folder = tmp_path if request.param == "disk" else request.getfixturevalue("bucket")
    return f"{folder}/ta ble"


@pytest.mark.timeout(900)  # MinIO may have to be built
def test_a_batch_is_committed_once_and_others_may_write_meanwhile(place: str) -> None:
    """A name of a partition may need escapes, or be missing; the table keeps its own partitions."""
    first, other = DeltaTable(place), DeltaTable(place)
    assert not other.has(Token(OURS, 0))
    commit(first, OURS, 0, part(place, "0", "a#ephemeral"), part(place, "1", None))
    assert other.has(Token(OURS, 0))
    assert not other.has(Token(OURS, 1))
    assert not other.has(Token(THEIRS, 0))
    commit(other, THEIRS, 7, part(place, "2"))
    commit(first, OURS, 1, part(place, "3"))
    commit(first, OURS, 2)
    assert rows(place) == [(9, "a#ephemeral", 2), (9, "t", 4), (9, None, 2)]


@pytest.mark.timeout(900)
def test_of_two_who_write_a_batch_one_commits_it(place: str) -> None:
    first, second = DeltaTable(place), DeltaTable(place)
    commit(first, THEIRS, 0, part(place, "0"))
    assert not first.has(Token(OURS, 5))
    assert not second.has(Token(OURS, 5))
    for each in (first, second):
        each.commit([part(place, str(id(each)))], columns(), BY, Token(OURS, 5))
    assert rows(place) == [(9, "t", 4)]


@pytest.mark.parametrize("exists", [True, False])
def test_a_batch_is_looked_for_again_where_the_newest_version_is_loaded_again(
    tmp_path: Path, exists: bool
) -> None:
    """A new table, and one that gets columns, are newer than the version that was looked at."""
    if exists:
        commit(DeltaTable(str(tmp_path)), THEIRS, 0, part(tmp_path, "0"))
    late, more = DeltaTable(str(tmp_path), evolve=True), columns(user="string")
    assert not late.has(Token(OURS, 5))
    commit(DeltaTable(str(tmp_path)), OURS, 5, part(tmp_path, "1"))
    late.commit([part(tmp_path, "2")], more, BY, Token(OURS, 5))
    assert rows(tmp_path) == [(9, "t", 4 if exists else 2)]


def test_a_commit_is_durable_also_if_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    output = DeltaTable(str(tmp_path))
    for number in range(2):
        commit(output, OURS, number, part(tmp_path, str(number)))
        log = tmp_path / "_delta_log"
        newest = log / f"{output._table.version():020d}.json"  # type: ignore[union-attr]
        assert {str(newest), str(log), str(tmp_path)} <= synced
        synced.clear()
        assert DeltaTable(str(tmp_path)).has(Token(OURS, number))
        assert {str(newest), str(log), str(tmp_path)} <= synced
        synced.clear()


def test_columns_are_compared_and_new_ones_added_when_asked(tmp_path: Path) -> None:
    commit(DeltaTable(str(tmp_path)), OURS, 0, part(tmp_path, "0"))
    user = {
        "type": "struct",
        "fields": [{"name": "id", "type": "long", "nullable": False, "metadata": {}}],
    }
    more = columns(user=user)
    output = DeltaTable(str(tmp_path))
    output.check(columns(*BY, BODY="binary"))
    with pytest.raises(ConfigError, match=r"lacks user: .*--evolve"):
        output.check(more)
    with pytest.raises(ConfigError, match="has body as binary, not string"):
        output.check(columns("topic", body="string"))
    with pytest.raises(ConfigError, match=r"partitioned by hour, .*: select it too"):
        output.check(columns("topic", "date", "body"))
    output = DeltaTable(str(tmp_path), evolve=True)
    output.check(more)
    assert not output.has(Token(OURS, 1))
    file = part(tmp_path, "1", user=[{"id": 1}, None])
    output.commit([file], more, BY, Token(OURS, 1))
    found = (
        deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["user"])["user"].to_pylist()
    )
    assert sorted(found, key=str) == [None, None, None, {"id": 1}]


@pytest.mark.parametrize(
    ("by", "constraint", "text"),
    [
        (["a"], {}, "partitioned by a, of type double"),
        ([], {"low": "a > 1"}, "constraints"),
    ],
)
def test_a_table_that_would_be_damaged_is_refused(
    by: list[str], constraint: dict[str, str], text: str, tmp_path: Path
) -> None:
    schema = deltalake.Schema.from_json(json.dumps(columns(a="double").jsonValue()))
    table = deltalake.DeltaTable.create(str(tmp_path), schema, partition_by=by)
    if constraint:
        table.alter.add_constraint(constraint)
    with pytest.raises(ConfigError, match=text):
        DeltaTable(str(tmp_path)).check(columns(a="double"))


def test_a_damaged_table_a_type_of_spark_and_a_missing_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = DeltaTable(str(tmp_path))
    with pytest.raises(ConfigError, match="a is of type interval"):
        output.check(columns(a="interval day to second"))
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("no JSON\n")
    with pytest.raises(OutputError, match=f"^{tmp_path}: [^\n\x1b]+$"):
        output.check(columns())
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"nsqtools\[delta\]"):
        DeltaTable(str(tmp_path))
