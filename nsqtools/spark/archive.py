"""``pipeline archive``: topics to files in ``date=/hour=/batch=``, each message once.

A batch has the same rows whenever it is written, since its messages are staged, and it is written
into directories of its name alone, whose old content goes in the same step: a run that was killed
anywhere leaves nothing behind that the next one does not replace. That holds for whoever reads the
files, which the log of Spark's own file sink does not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from nsqtools.errors import ConfigError
from nsqtools.spark.bodies import PARTITIONS, read_schema, with_columns
from nsqtools.spark.outputs import replace_batch
from nsqtools.spark.places import as_url, claim, is_unlike, local, remove_all, sync, writing
from nsqtools.spark.progress import Totals, Written
from nsqtools.spark.session import first_line
from nsqtools.spark.streams import Stream, named, observed, read, run

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nsqtools.spark.progress import Progress

_VIEW = "nsqtools_archive"
_DAY = 86_400_000_000_000
_HOUR = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What is written of a message; empty texts for all of it."""

    format: str = "parquet"
    schema: str = ""
    where: str = ""
    select: str = ""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """An archive: ``source`` are options of the source ``nsq``, ``output`` is a path or a URL."""

    source: Mapping[str, str]
    output: str
    stream: Stream
    shape: Shape = Shape()

    @property
    def stamp(self) -> dict[str, Any]:
        """What makes a run another one: a batch may then have other rows."""
        topics = sorted({each.strip() for each in self.source["subscribe"].split(",")})
        return {"topics": topics, "channel": self.source["channel"], **asdict(self.shape)}


def archive(
    spark: SparkSession,
    settings: ArchiveSettings,
    *,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> Totals:
    """Archive until all that waited is, or ``stop`` is set; see ``streams.run``.

    Raises ConfigError, before a message moves, for SQL that Spark does not understand and for a
    checkpoint of other topics.
    """
    totals = Totals()

    def told(progress: Progress) -> None:
        totals.add(progress)
        report(progress)

    frame = read(spark, settings.source, settings.stream)
    writer = _Writer(spark, settings)
    writer.check(frame)
    with writing(settings.output):
        run(frame, writer.write, settings.stream, stop=stop, report=told)
    if settings.stream.trigger is None and not stop.is_set():
        writer.settle()
    return totals


class _Writer:
    def __init__(self, spark: SparkSession, settings: ArchiveSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._output = as_url(settings.output)
        self._checkpoint = settings.stream.checkpoint
        shape = settings.shape
        self._schema = read_schema(shape.schema) if shape.schema else None
        self._changed = is_unlike(spark, self._checkpoint, settings.stamp)

    def check(self, frame: DataFrame) -> None:
        """Raise ConfigError if messages cannot be shaped and written as it was asked for."""
        shape = self._settings.shape
        for name in shaped(inner(frame, self._schema, shape.where), shape.select).columns:
            if name.lower() in PARTITIONS[2:]:
                raise ConfigError(f"--select: {name} is the name of a directory: name it otherwise")
        if shape.format == "delta":
            self._check_delta()

    def _check_delta(self) -> None:
        try:
            self._spark.read.format("delta").load(self._output)
        except Exception as error:  # of the many kinds only this one tells about Delta
            if "[DATA_SOURCE_NOT_FOUND]" in str(error):
                raise ConfigError(
                    "--format delta: Spark has no Delta Lake: add --conf spark.jars.packages="
                    "io.delta:delta-spark_2.13:VERSION, with the version for this Spark"
                ) from error

    def settle(self) -> None:
        """From now on batches are shaped in this way, and none was left in another."""
        if self._changed:
            claim(self._spark, self._checkpoint, self._settings.stamp)
            self._changed = False

    def write(self, batch: DataFrame, query: str, number: int) -> Written:
        """Write a batch, in place of what an earlier try left of it."""
        shape = self._settings.shape
        name = named(query, number)
        if self._changed:  # that try may have had other rows, in other hours
            remove_all(self._spark, self._output, f"date=*/hour=*/batch={name}")
            self.settle()
        watched, told = observed(inner(batch, self._schema, shape.where))
        rows = shaped(watched, shape.select)
        if shape.format == "delta":
            writer = rows.write.format("delta").mode("append").partitionBy(*PARTITIONS[:2])
            writer.option("txnAppId", query).option("txnVersion", number).save(self._output)
            written = told()
            root = local(self._settings.output)
            if root is not None and written.rows:
                sync(root, [root / "_delta_log", *hours(root, written)])
            return written
        replace_batch(rows, shape.format, self._output, name, PARTITIONS[:2])
        written = told()
        root = local(self._settings.output)
        if root is not None and written.rows:
            leaves = [hour / f"batch={name}" for hour in hours(root, written)]
            sync(root, [leaf for leaf in leaves if leaf.is_dir()])
        return written


def inner(frame: DataFrame, schema: StructType | None, where: str) -> DataFrame:
    """The messages that are wanted, with the columns of their bodies; raises ConfigError."""
    if schema:
        frame = with_columns(frame, schema)
    if where:
        try:
            frame = frame.where(where)
        except AnalysisException as error:
            raise ConfigError(f"--where: {first_line(error)}") from error
    return frame


def shaped(frame: DataFrame, select: str) -> DataFrame:
    """The wanted columns, then ``date`` and ``hour`` (UTC); raises ConfigError."""
    frame.createOrReplaceTempView(_VIEW)
    # Of the timestamp they would depend on the session's time zone.
    day = f"date_from_unix_date(CAST(timestamp_ns DIV {_DAY} AS INT)) AS date"
    hour = f"lpad(CAST(timestamp_ns DIV {_HOUR} % 24 AS STRING), 2, '0') AS hour"
    try:
        found = frame.sparkSession.sql(
            f"SELECT {select or '*'}\n, {day}, {hour} FROM {_VIEW}"  # noqa: S608 - their own SQL
        )
    except AnalysisException as error:
        raise ConfigError(f"--select: {first_line(error)}") from error
    names = [name.lower() for name in found.columns]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--select: two columns are called {name}: name one otherwise")
    return found


def hours(root: Path, written: Written) -> Iterator[Path]:
    """The directories of the hours that a batch's rows are of."""
    assert written.oldest is not None
    assert written.newest is not None
    first, last = (
        f"date={datetime.fromtimestamp(each, UTC):%Y-%m-%d}"
        for each in (written.oldest, written.newest)
    )
    for day in root.glob("date=*"):
        if first <= day.name <= last:
            for hour in range(24):
                if (folder := day / f"hour={hour:02d}").is_dir():
                    yield folder
