"""Tables of Delta Lake, which Spark's own writer writes: a batch that a table has is skipped."""

from __future__ import annotations

import contextlib
import json
import posixpath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from nsqtools.errors import ConfigError
from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.lake.folders import sync_file
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import as_url, local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from nsqtools.stores.interface import Store

_ADDS_COLUMNS = "spark.databricks.delta.schema.autoMerge.enabled"


def check_delta(rows: DataFrame, output: str) -> bool:
    """Return whether the table exists.

    Raises ConfigError if Delta Lake is missing, or if the table cannot take columns of ``rows``.
    """
    spark = rows.sparkSession
    try:
        table = spark.read.format("delta").load(as_url(output))
    except Exception as error:  # only its text tells what is missing
        if "[DATA_SOURCE_NOT_FOUND]" in str(error):
            raise ConfigError(
                "--format delta needs Delta Lake: with pyspark 4.2, add --conf "
                "spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0"
            ) from error
        if any(name in str(error) for name in ("[PATH_NOT_FOUND]", "[DELTA_TABLE_NOT_FOUND]")):
            return False
        raise
    known = {each.name.lower(): each.dataType.simpleString() for each in table.schema}
    for each in rows.schema if spark.conf.get(_ADDS_COLUMNS, "false") == "false" else ():
        found, wanted = known.get(each.name.lower()), each.dataType.simpleString()
        if found != wanted:
            problem = f"has {each.name} as {found}, not {wanted}" if found else f"lacks {each.name}"
            raise ConfigError(
                f"--output {output}: the table {problem}: change --select, or add new columns to "
                f"the table with --conf {_ADDS_COLUMNS}=true"
            )
    return True


def append_delta(
    rows: DataFrame, output: str, partitions: Sequence[str], query: str, number: int
) -> Written:
    """Append a batch, unless the table has batch ``number`` of this query; returns its rows.

    A new table gets ``partitions``; for one that exists give none. Local files are durable then.
    Raises OutputError, and errors of Spark.
    """
    url = as_url(output)
    writer = rows.write.format("delta").mode("append")
    writer = writer.option("txnAppId", query).option("txnVersion", number)
    (writer.partitionBy(*partitions) if partitions else writer).save(url)
    name = url.replace("`", "``")
    history = rows.sparkSession.sql(f"DESCRIBE HISTORY delta.`{name}` LIMIT 1").collect()
    with as_output_error(output):
        return Written(sync_batch(open_store(output), history[0]["version"], query, number))


def sync_batch(store: Store, newest: int, query: str, number: int) -> int:
    """Make a batch durable, with what was written since; returns the number of its rows.

    ``newest`` is the last version of the table. Returns 0 if its log no longer has the batch.
    Raises OSError.
    """
    is_local = local(store.place) is not None
    with contextlib.suppress(FileNotFoundError):  # the log is cut after a month
        for version in range(newest, -1, -1):
            log = f"_delta_log/{version:020d}.json"
            actions = [json.loads(line) for line in store.get(log).splitlines()]
            added = [each["add"] for each in actions if "add" in each]
            for path in (log, *(unquote(each["path"]) for each in added)) if is_local else ():
                with contextlib.suppress(FileNotFoundError):  # merged into another file since
                    sync_file(store.url(path))
                    store.sync(posixpath.dirname(path))
            done = [each["txn"] for each in actions if "txn" in each]
            if any((each["appId"], each["version"]) == (query, number) for each in done):
                stats = [json.loads(each.get("stats") or "{}") for each in added]
                return sum(each.get("numRecords", 0) for each in stats)
    return 0
