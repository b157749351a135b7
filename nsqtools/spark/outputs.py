"""What batches are written with: files that a batch replaces as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.spark.places import local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_NO_MARK = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""A file _SUCCESS would say nothing: batches come and go."""

_NO_DICTIONARY = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in ("message_id", "timestamp", "timestamp_ns", "body")
}
"""Values that hardly repeat: to look each up takes an eighth of the time of an archive."""


def replace_batch(
    rows: DataFrame, form: str, output: str, name: str, partitions: Sequence[str] = ()
) -> None:
    """Write files below ``<partition>=*/batch=<name>``, in place of what is in each of these.

    ``form`` is parquet or json; what is in directories that the rows do not fall into stays.
    """
    named = texts(rows) if form == "json" else rows
    writer = named.withColumn("batch", F.lit(name)).write.format(form).mode("overwrite")
    writer = writer.option("partitionOverwriteMode", "dynamic").options(**_NO_MARK)
    writer = writer.options(**_NO_DICTIONARY if form == "parquet" else {})
    writer.partitionBy(*partitions, "batch").save(output)


def write_once(rows: DataFrame, form: str, output: str) -> None:
    """Write files into a directory that has none yet; a local one was looked at, and may exist."""
    named = texts(rows) if form == "json" else rows
    mode = "errorifexists" if local(output) is None else "append"
    named.write.format(form).mode(mode).options(**_NO_MARK).save(output)


def texts(frame: DataFrame) -> DataFrame:
    """``body`` as text, or ``body_b64`` where it is none, as ``to-file --format json`` has it."""
    if dict(frame.dtypes).get("body") != "binary":
        return frame
    body = F.col("body")
    text = F.try_validate_utf8(body.cast("string"))
    return frame.withColumns({"body": text, "body_b64": F.when(text.isNull(), F.base64(body))})
