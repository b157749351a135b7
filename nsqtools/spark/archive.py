"""``pipeline archive``: topics to files in ``date=/hour=/batch=``, each message once.

A batch has the same rows each time it is written, because its messages are staged. It is written to
directories of its own name, and replaces their old content in the same step. So the next run
replaces everything that a killed run has left, for all readers, which Spark's own file sink with
its log does not achieve.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from nsqtools.errors import ConfigError
from nsqtools.spark.bodies import DATE, HOUR, PARTITIONS, read_schema, with_columns
from nsqtools.spark.claims import Stamp, stamp_of
from nsqtools.spark.folders import sync
from nsqtools.spark.outputs import hours, named, observed, replace_batch
from nsqtools.spark.places import as_url, local
from nsqtools.spark.sparksession import first_line
from nsqtools.spark.streams import Stream, read, run_stamped

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nsqtools.spark.progress import Progress, Totals, Written

_VIEW = "nsqtools_archive"


@dataclass(frozen=True, slots=True)
class Shape:
    """Format, columns and rows of the files; empty texts mean all."""

    format: str = "parquet"
    schema: str = ""
    where: str = ""
    select: str = ""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """An archive: ``source`` has options of the source ``nsq``, ``output`` is a path or URL."""

    source: Mapping[str, str]
    output: str
    stream: Stream
    shape: Shape = Shape()

    @property
    def stamp(self) -> dict[str, Any]:
        """The settings that batches of a checkpoint depend on."""
        return stamp_of(self.source, self.stream.checkpoint, self.output, **asdict(self.shape))


def archive(
    spark: SparkSession,
    settings: ArchiveSettings,
    *,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> Totals:
    """Archive until all waiting messages are written or ``stop`` is set; see ``streams.run``.

    Raises ConfigError, before any message is received, for SQL that Spark cannot parse and for a
    checkpoint of other topics.
    """
    frame = read(spark, settings.source, settings.stream)
    stamp = Stamp(spark, settings.stream.checkpoint, settings.stamp)
    writer = ArchiveWriter(spark, settings, stamp)
    writer.check(frame)
    return run_stamped(
        frame,
        writer.write,
        settings.stream,
        stamp=stamp,
        stop=stop,
        report=report,
    )


class ArchiveWriter:
    """Writes the batches of an archive."""

    def __init__(self, spark: SparkSession, settings: ArchiveSettings, stamp: Stamp) -> None:
        self._spark = spark
        self._settings = settings
        self._stamp = stamp
        shape = settings.shape
        self._schema = read_schema(shape.schema) if shape.schema else None

    def check(self, frame: DataFrame) -> None:
        """Raise ConfigError if the columns cannot be selected or the format cannot be written."""
        shape = self._settings.shape
        for name in shaped(inner(frame, self._schema, shape.where), shape.select).columns:
            if name.lower() in PARTITIONS[2:]:
                raise ConfigError(
                    f"--select: {name} is the name of a directory: rename the column with AS"
                )
        if shape.format == "delta":
            self._check_delta()

    def _check_delta(self) -> None:
        try:
            self._spark.read.format("delta").load(as_url(self._settings.output))
        except Exception as error:  # only this message tells that Delta Lake is missing
            if "[DATA_SOURCE_NOT_FOUND]" in str(error):
                raise ConfigError(
                    "--format delta needs Delta Lake: add --conf spark.jars.packages="
                    "io.delta:delta-spark_2.13:VERSION, with the version for this Spark"
                ) from error

    def write(self, batch: DataFrame, query: str, number: int) -> Written:
        """Write a batch; it replaces files of an earlier attempt."""
        shape, output, name = self._settings.shape, self._settings.output, named(query, number)
        self._stamp.make_way(output, f"date=*/hour=*/batch={name}")
        wanted, written = observed(inner(batch, self._schema, shape.where), published=True)
        rows = shaped(wanted, shape.select)
        if shape.format != "delta":
            return replace_batch(rows, written, shape.format, output, name, PARTITIONS[:2])
        writer = rows.write.format("delta").mode("append").partitionBy(*PARTITIONS[:2])
        writer = writer.option("txnAppId", query).option("txnVersion", number)
        writer.save(as_url(output))
        done, root = written(), local(output)
        if root is not None and done.rows:
            sync(root, [root / "_delta_log", *hours(root, done)])
        return done


def inner(frame: DataFrame, schema: StructType | None, where: str) -> DataFrame:
    """Return the selected messages, with the columns of their bodies; raises ConfigError."""
    if schema:
        frame = with_columns(frame, schema)
    if where:
        try:
            frame = frame.where(where)
        except AnalysisException as error:
            raise ConfigError(f"--where: {first_line(error)}") from error
    return frame


def shaped(frame: DataFrame, select: str) -> DataFrame:
    """Return the selected columns, followed by ``date`` and ``hour`` (UTC); raises ConfigError."""
    frame.createOrReplaceTempView(_VIEW)
    parts = f"{DATE} AS date, lpad(CAST({HOUR} AS STRING), 2, '0') AS hour"
    try:
        found = frame.sparkSession.sql(
            f"SELECT {select or '*'}\n, {parts} FROM {_VIEW}"  # noqa: S608 - their own SQL
        )
    except AnalysisException as error:
        raise ConfigError(f"--select: {first_line(error)}") from error
    names = [name.lower() for name in found.columns]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--select: two columns are named {name}: rename one with AS")
    return found
