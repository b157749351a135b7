"""Writing of batches into files that are replaced as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.spark.folders import remove_killed, sync
from nsqtools.spark.places import as_url, local
from nsqtools.spark.progress import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

_NO_MARK = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""A file _SUCCESS would say nothing: batches come and go."""

_NO_DICTIONARY = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in ("message_id", "timestamp", "timestamp_ns", "body")
}
"""Values that hardly repeat: to look each up takes an eighth of the time of an archive."""


def named(query: str, batch: int) -> str:
    """Return the name of a batch's directories: 16 digits of the query's id, and the number.

    The id prevents checkpoints that write to one output from replacing each other's batches. Spark
    chooses it at random, and these digits have 60 random bits: the probability that two of a
    million checkpoints share them is 1 in 2,000,000. With 8 digits it would be 1 in 9,000 for a
    thousand checkpoints.
    """
    return f"{query.replace('-', '')[:16]}-{batch:08d}"


def observed(batch: DataFrame, *, published: bool) -> tuple[DataFrame, Callable[[], Written]]:
    """Return the batch, and a function for facts of its rows after an action has run.

    With ``published`` the rows have the column ``timestamp`` of messages.
    """
    seen = Observation()
    facts = [F.count(F.lit(1)).alias("rows")]
    if published:
        seconds = F.col("timestamp").cast("double")
        facts += [F.min(seconds).alias("oldest"), F.max(seconds).alias("newest")]
    return batch.observe(seen, *facts), lambda: Written(**_seen(seen))


def _seen(seen: Observation) -> dict[str, Any]:
    """What was observed; no rows where Spark found out before that there are none."""
    try:
        return seen.get
    except Exception as error:
        if "AssertionError" in str(error):  # as it does not observe what it leaves out
            return {"rows": 0}
        raise


def replace_batch(
    rows: DataFrame,
    written: Callable[[], Written],
    form: str,
    output: str,
    name: str,
    partitions: Sequence[str] = (),
) -> Written:
    """Write files below ``<partition>=*/batch=<name>`` and replace the content of these
    directories.

    ``form`` is parquet or json. Directories without new rows are left unchanged. ``partitions`` is
    empty, or ``date`` and ``hour``. Local files are durable when this returns the result of
    ``written``. Raises OutputError.
    """
    root = local(output)
    if root is not None:
        remove_killed(root, f"batch={name.rpartition('-')[0]}-")
    files = texts(rows) if form == "json" else rows
    writer = files.withColumn("batch", F.lit(name)).write.format(form).mode("overwrite")
    writer = writer.option("partitionOverwriteMode", "dynamic").options(**_NO_MARK)
    writer = writer.options(**_NO_DICTIONARY if form == "parquet" else {})
    writer.partitionBy(*partitions, "batch").save(as_url(output))
    done = written()
    if root is not None:
        folders = hours(root, done) if partitions else [root]
        leaves = (folder / f"batch={name}" for folder in folders)
        sync(root, [leaf for leaf in leaves if leaf.is_dir()])
    return done


def hours(root: Path, written: Written) -> Iterator[Path]:
    """Yield the existing directories ``date=*/hour=*`` for the hours of a batch's rows."""
    if written.oldest is None or written.newest is None:
        return
    first, last = (
        f"date={datetime.fromtimestamp(each, UTC):%Y-%m-%d}"
        for each in (written.oldest, written.newest)
    )
    for day in root.glob("date=*"):
        if first <= day.name <= last:
            for hour in range(24):
                if (folder := day / f"hour={hour:02d}").is_dir():
                    yield folder


def write_once(rows: DataFrame, form: str, output: str) -> None:
    """Write files into a directory without files; a local one may exist and was checked."""
    named = texts(rows) if form == "json" else rows
    mode = "errorifexists" if local(output) is None else "append"
    named.write.format(form).mode(mode).options(**_NO_MARK).save(output)


def texts(frame: DataFrame) -> DataFrame:
    """Return ``body`` as text, or as ``body_b64`` if it is not text, as ``to-file --format json``
    does.
    """
    if dict(frame.dtypes).get("body") != "binary":
        return frame
    body = F.col("body")
    text = F.try_validate_utf8(body.cast("string"))
    return frame.withColumns({"body": text, "body_b64": F.when(text.isNull(), F.base64(body))})
