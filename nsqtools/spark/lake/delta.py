"""Tables of Delta Lake, which Spark's own writer writes: a batch that a table has is skipped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from nsqtools.errors import ConfigError
from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.lake.folders import sync
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import as_url, local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nsqtools.stores.interface import Store

_NEWEST = 20
"""Versions to look at for a batch; other writers may have added some since."""


def check_delta(spark: SparkSession, output: str) -> None:
    """Raise ConfigError if Delta Lake is missing."""
    try:
        spark.read.format("delta").load(as_url(output))
    except Exception as error:  # only this message tells that Delta Lake is missing
        if "[DATA_SOURCE_NOT_FOUND]" in str(error):
            raise ConfigError(
                "--format delta needs Delta Lake for this Spark: for Spark 4.2, add --conf "
                "spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0"
            ) from error


def append_delta(
    rows: DataFrame, output: str, partitions: Sequence[str], query: str, number: int
) -> Written:
    """Append a batch, unless the table has batch ``number`` of this query; returns its rows.

    Local files are durable then. Raises OutputError, and errors of Spark.
    """
    writer = rows.write.format("delta").mode("append").partitionBy(*partitions)
    writer = writer.option("txnAppId", query).option("txnVersion", number)
    writer.save(as_url(output))
    history = rows.sparkSession.sql(f"DESCRIBE HISTORY delta.`{as_url(output)}` LIMIT 1").first()
    store = open_store(output, "--output")
    with as_output_error(output):
        added = _added(store, history["version"] if history else -1, query, number)
    root = local(output)
    if root is not None and added:
        leaves = {(root / unquote(each["path"])).parent for each in added}
        sync(root, [root / "_delta_log", *leaves])
    return Written(
        sum(json.loads(each.get("stats") or "{}").get("numRecords", 0) for each in added)
    )


def _added(store: Store, newest: int, query: str, number: int) -> list[dict[str, Any]]:
    """The files of a batch, from the table's log."""
    for version in range(newest, max(-1, newest - _NEWEST), -1):
        lines = store.get(f"_delta_log/{version:020d}.json").splitlines()
        actions = [json.loads(line) for line in lines]
        done = [each["txn"] for each in actions if "txn" in each]
        if any((each["appId"], each["version"]) == (query, number) for each in done):
            return [each["add"] for each in actions if "add" in each]
    return []
