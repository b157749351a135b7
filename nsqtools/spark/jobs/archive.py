"""``pipeline archive``: topics to files in ``date=/hour=/batch=``, each message once.

A batch has the same rows each time it is written, because its messages are staged, and the number
of its tasks follows from its plan. So the next run overwrites everything that a killed run has
left, for all readers, which Spark's own file sink with its log does not achieve.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.errors import ConfigError
from nsqtools.spark.jobs.batches import BatchFiles, LakeOutput
from nsqtools.spark.jobs.checkpoint import Checkpoint, Stamp, stamp_of
from nsqtools.spark.jobs.streams import Stream, read, run
from nsqtools.spark.lake.bodies import (
    CORRUPT,
    counted_corrupt,
    date_of,
    hour_of,
    with_columns,
)
from nsqtools.spark.lake.dataframes import body_schema
from nsqtools.spark.sparksession import first_line

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from nsqtools.spark.jobs.progress import Progress, Totals, Written

_VIEW = "nsqtools_archive"
_PUBLISHED = "_nsqtools_published"
_HOURS = {"date": date_of("timestamp"), "hour": hour_of("timestamp")}


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns and rows of the files; empty texts mean all.

    ``schema`` and ``infer`` are parameters of ``dataframes.body_schema``.
    ``partition_by`` is empty or ``topic``: the directories below date and hour.
    """

    schema: str = ""
    infer: str = ""
    where: str = ""
    select: str = ""
    partition_by: str = ""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """An archive; ``source`` has options of the source ``nsq``."""

    source: Mapping[str, str]
    output: LakeOutput
    stream: Stream
    shape: Shape = Shape()

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint, and the staging of its source."""
        return Checkpoint(self.stream.checkpoint, self.source["stagingLocation"])

    @property
    def stamp(self) -> dict[str, Any]:
        """The settings that batches of a checkpoint depend on."""
        return stamp_of(
            self.source,
            self.stream.checkpoint,
            self.output.id,
            format=self.output.format,
            **asdict(self.shape),
        )


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
    stamp = Stamp(settings.checkpoint, settings.stamp)
    frame = read(spark, {**settings.source, "streamGroup": stamp.group}, settings.stream)
    if schema := body_schema(spark, settings.shape.schema, settings.shape.infer):
        frame = counted_corrupt(with_columns(frame, schema), "archive")
    writer = ArchiveWriter(settings, stamp)
    writer.check(frame)
    return run(frame, writer.write, settings.stream, stamp=stamp, stop=stop, report=report)


class ArchiveWriter:
    """Writes the batches of an archive."""

    def __init__(self, settings: ArchiveSettings, stamp: Stamp) -> None:
        self._settings = settings
        shape = settings.shape
        # Iceberg has the hour of a timestamp as a partition, and needs no columns for it.
        self._hours = {} if settings.output.format == "iceberg" else _HOURS
        more = [shape.partition_by] if shape.partition_by else []
        self._partitions = [*(self._hours or ["timestamp"]), *more]
        self._files = BatchFiles(settings.output, stamp)

    def check(self, frame: DataFrame) -> None:
        """Raise ConfigError if the columns cannot be selected or the format cannot be written."""
        self._files.check(self._shaped(frame), "--select", _PUBLISHED)

    def write(self, batch: DataFrame, query: str, number: int) -> Written:
        """Write a batch; it replaces files of an earlier attempt."""
        rows = self._shaped(batch)
        times = _PUBLISHED if _PUBLISHED in rows.columns else ""
        return self._files.write(rows, query, number, partitions=self._partitions, times=times)

    def _shaped(self, frame: DataFrame) -> DataFrame:
        """The rows to write, followed by the columns of partitions that they lack.

        Raises ConfigError.
        """
        shape = self._settings.shape
        if shape.where:
            try:
                chosen = F.expr(shape.where)
                if CORRUPT in frame.columns:  # whose other columns are null, so this may be, too
                    chosen = F.coalesce(chosen, F.col(CORRUPT).isNotNull())
                frame = frame.where(chosen)
            except AnalysisException as error:
                raise ConfigError(f"--where: {first_line(error)}") from error
        found = _selected(frame, shape.select or "*")
        names = [name.lower() for name in found.columns]
        more = [f"{value} AS {name}" for name, value in self._hours.items()]
        if shape.partition_by and shape.partition_by not in names:
            more.append(shape.partition_by)
        if not _is_distinct(found):
            more.append(f"timestamp AS {_PUBLISHED}")
        found = _selected(frame, ", ".join([f"{shape.select or '*'}\n", *more]))
        names = [name.lower() for name in found.columns]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"--select: two columns are named {name}: rename one with AS")
        return found


def _selected(frame: DataFrame, columns: str) -> DataFrame:
    frame.createOrReplaceTempView(_VIEW)
    try:  # a batch has a session of its own
        return frame.sparkSession.sql(f"SELECT {columns}\nFROM {_VIEW}")
    except AnalysisException as error:
        raise ConfigError(f"--select: {first_line(error)}") from error


def _is_distinct(frame: DataFrame) -> bool:
    """Whether one more column would make more rows."""
    plan: str = frame._jdf.queryExecution().analyzed().toString()
    return plan.lstrip("~").startswith("Distinct")
