"""Tables of Delta Lake in the layout of ``pipeline archive``, and what Spark reads of a frame."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from nsqtools.spark.lake.write import escaped
from nsqtools.stores import open_store

BY = ["date", "hour", "topic"]
OPTIONS = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
TYPES = {"body": "binary", "date": "date", "hour": "integer", "topic": "string"}


def to_file_of_table(place: Path | str, batch: str, topic: str | None) -> str:
    """Write a file with the bodies 1 and 2 of nine o'clock, which no commit names yet."""
    path = f"date=2026-11-22/hour=09/topic={escaped(topic)}/batch={batch}/part-0.parquet"
    with open_store(str(place)).create(path) as file:
        pq.write_table(pa.table({"body": [b"1", b"2"]}), file)
    return path


def to_table(place: Path | str, *topics: str | None, batch: str = "a") -> None:
    """Add a file for each topic, each in a commit of its own."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in TYPES.items()
    ]
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    table = DeltaTable.create(url(place), schema, "ignore", BY, storage_options=OPTIONS)
    for number, topic in enumerate(topics):
        path = to_file_of_table(place, f"{batch}-{number}", topic)
        size = open_store(str(place)).stat(path).size
        values = {"date": "2026-11-22", "hour": "9", "topic": topic}
        action = AddAction(path, size, values, 0, True, '{"numRecords": 2}')
        table.create_write_transaction([action], "append", schema, BY)


def url(place: Path | str) -> str:
    """A place as delta-rs calls it."""
    return str(place).replace("s3a://", "s3://")


def counted_rows(place: Path | str) -> list[tuple[Any, ...]]:
    """What another engine makes of a table: the rows of each hour and topic."""
    there = DeltaTable(url(place), storage_options=OPTIONS).to_pyarrow_dataset()  # noqa: F841
    found = duckdb.sql("SELECT hour, topic, count(*) FROM there GROUP BY ALL ORDER BY ALL")
    assert found
    return found.fetchall()


def files_read(query: DataFrame) -> int:
    """Spark's own count, of a query that did not run before."""
    query.collect()
    plan = query._jdf.queryExecution().executedPlan()

    def leaves(node: Any) -> Iterator[Any]:
        found = node.finalPhysicalPlan() if "AdaptiveSparkPlan" in node.nodeName() else node
        scans = found.collectLeaves()
        for number in range(scans.size()):
            yield scans.apply(number)

    return sum(leaf.metrics().apply("numFiles").value() for leaf in leaves(plan))
