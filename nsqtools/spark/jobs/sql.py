"""``pipeline sql``: a query on the table ``nsq``, which is a stream of topics, or archives."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.errors import ConfigError
from nsqtools.spark.interrupts import interruptible
from nsqtools.spark.jobs.batches import BatchFiles
from nsqtools.spark.jobs.checkpoint import Checkpoint, Stamp, stamp_of
from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.jobs.streams import Stream, read, run_stamped
from nsqtools.spark.lake.bodies import read_schema, with_columns
from nsqtools.spark.lake.dataframes import view
from nsqtools.spark.lake.inputs import find
from nsqtools.spark.lake.write import write_files
from nsqtools.spark.sparksession import first_line
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nsqtools.records.layout import Layout
    from nsqtools.spark.jobs.progress import Progress, Totals

    Show = Callable[[Sequence[str], Iterator[Sequence[Any]]], None]
    """Called with the names of columns and the rows to show, in the thread of the job."""

_TABLE = "nsq"
_STATEFUL = re.compile(r"~(Aggregate|Distinct)\b")  # ~ is of what streams


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of rows: ``kind`` is parquet, json, console or topic.

    ``output`` is a path or URL for files, ``sink`` has options of the sink ``nsq`` for a topic, and
    ``show`` is called for the console.
    """

    kind: str
    output: str = ""
    sink: Mapping[str, str] = field(default_factory=dict)
    show: Show | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A query; ``watermark`` is in seconds, 0 for none."""

    text: str
    schema: str = ""
    watermark: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """A query of topics; ``source`` has options of the source ``nsq``."""

    query: Query
    target: Destination
    source: Mapping[str, str]
    stream: Stream

    @property
    def stamp(self) -> dict[str, Any]:
        """The settings that batches of a checkpoint depend on."""
        return stamp_of(
            self.source,
            self.stream.checkpoint,
            self.target.output,
            query=self.query.text,
            schema=self.query.schema,
            watermark=self.query.watermark,
            mode=self.stream.output_mode,
            kind=self.target.kind,
        )


@dataclass(frozen=True, slots=True)
class ArchivesSettings:
    """A query of archives."""

    query: Query
    target: Destination
    inputs: tuple[str, ...]
    layout: Layout | None


def query_stream(
    spark: SparkSession,
    settings: StreamSettings,
    *,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> Totals:
    """Run the query on batch after batch; errors are those of ``archive.archive``."""
    found = _asked(_of_topics(spark, settings), settings.query)
    checkpoint = Checkpoint(settings.stream.checkpoint, settings.source["stagingLocation"])
    stamp = Stamp(checkpoint, settings.stamp)
    writer = _ResultWriter(settings.target, checkpoint, stamp)
    lasts = "streamName" not in settings.source or settings.stream.output_mode != "append"
    writer.check(found, lasts=lasts)
    return run_stamped(
        found,
        writer.write,
        settings.stream,
        stamp=stamp,
        stop=stop,
        report=report,
    )


def query_archives(
    spark: SparkSession,
    settings: ArchivesSettings,
    *,
    stop: threading.Event,
    report: Callable[[str, int, int], None],
) -> None:
    """Run the query once.

    Raises ConfigError for SQL that Spark cannot parse and for an output that has files,
    StoppedError after ``stop``, NSQError for other errors of Spark, and errors of ``show``.
    """
    target = settings.target
    with interruptible(spark, stop):
        found = _asked(_of_archives(spark, settings), settings.query)
        columns = found.columns
    if target.output:
        _check_empty(target.output)
    report("querying", 0, 0)
    if target.kind == "console":
        assert target.show
        with contextlib.closing(_rows(found, stop)) as rows:
            target.show(columns, rows)
        return
    with interruptible(spark, stop):
        if target.kind == "topic":
            _publish(found, target.sink)
        else:
            _write_once(found, target)


def _rows(found: DataFrame, stop: threading.Event) -> Generator[Sequence[Any]]:
    """The rows; who takes them has errors of its own, which are none of Spark's."""
    with interruptible(found.sparkSession, stop):
        yield from found.toLocalIterator()


def explain(
    spark: SparkSession, settings: StreamSettings | ArchivesSettings, *, stop: threading.Event
) -> str:
    """Return Spark's plan for the query, in several lines; consumes nothing."""
    with interruptible(spark, stop), contextlib.redirect_stdout(io.StringIO()) as printed:
        if isinstance(settings, StreamSettings):
            frame = _of_topics(spark, settings)
        else:
            frame = _of_archives(spark, settings)
        # Spark looks for streams in what was parsed, which has no more than the name of a table.
        _asked(frame, settings.query).select("*").explain(mode="formatted")
    return printed.getvalue()


def _of_topics(spark: SparkSession, settings: StreamSettings) -> DataFrame:
    frame = read(spark, settings.source, settings.stream)
    if settings.query.watermark:
        return frame.withWatermark(
            "timestamp", f"{settings.query.watermark * 1000:.0f} milliseconds"
        )
    return frame


def _of_archives(spark: SparkSession, settings: ArchivesSettings) -> DataFrame:
    return view(spark, find(settings.inputs, settings.layout))


def _asked(frame: DataFrame, query: Query) -> DataFrame:
    """The result of the query; raises ConfigError."""
    if query.schema:
        frame = with_columns(frame, read_schema(query.schema))
    frame.createOrReplaceTempView(_TABLE)
    try:
        return frame.sparkSession.sql(query.text)
    except AnalysisException as error:
        raise ConfigError(f"--query: {first_line(error)}") from error


class _ResultWriter:
    def __init__(self, target: Destination, checkpoint: Checkpoint, stamp: Stamp) -> None:
        self._target = target
        self._stamp = stamp
        self._files = BatchFiles(target.output, target.kind, checkpoint, stamp)
        self._is_stateful = False

    def check(self, rows: DataFrame, *, lasts: bool) -> None:
        """Raise ConfigError if the destination cannot take the result.

        Without ``lasts``, rows that wait for the watermark would be lost at the end of the run.
        """
        if self._target.output and "batch" in [name.lower() for name in rows.columns]:
            raise ConfigError(
                "--query: batch is the name of a directory: rename the column with AS"
            )
        if not rows.isStreaming:
            raise ConfigError(f"--query: expected a SELECT on the table {_TABLE}")
        plan = rows._jdf.queryExecution().analyzed().toString()
        if max(plan.count("StreamingRelationV2"), plan.count("CTERelationRef")) > 1:
            raise ConfigError(
                f"--query: the table {_TABLE} is used more than once, and each use would get only "
                "a part of the messages: archive them first, and query the archive with --input"
            )
        self._is_stateful = _STATEFUL.search(plan) is not None
        if not lasts and self._is_stateful:
            raise ConfigError(
                "--checkpoint is required: rows of this query wait for the watermark, and would "
                "be lost at the end of the run: give --checkpoint, or --output-mode update to get"
                " the rows at once"
            )

    def write(self, batch: DataFrame, query: str, number: int) -> Written:
        """Write the result of a batch; it replaces files of an earlier attempt."""
        target = self._target
        if target.output:  # state has as many partitions as the first run made
            return self._files.write(batch, query, number, few=not self._is_stateful)
        self._stamp.settle()
        if target.kind == "topic":
            return Written(_publish(batch, target.sink))
        assert target.show
        counter = itertools.count()
        shown = (row for row, _ in zip(batch.toLocalIterator(), counter, strict=False))
        target.show(batch.columns, shown)
        return Written(next(counter))


def _publish(rows: DataFrame, sink: Mapping[str, str]) -> int:
    """Publish the column ``body``, or without one rows as JSON objects; returns their number."""
    from nsqtools.spark import register

    register(rows.sparkSession)
    if "body" not in [name.lower() for name in rows.columns]:
        rows = rows.select(F.to_json(F.struct("*")).alias("body"))
    seen = Observation()
    rows = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
    rows.write.format("nsq").mode("append").options(**sink).save()
    try:
        return int(seen.get["rows"])
    except Exception as error:
        if "AssertionError" in str(error):  # Spark found out before that there are no rows
            return 0
        raise


def _write_once(rows: DataFrame, target: Destination) -> None:
    """Write files into an output without files; after an error none are left."""
    try:
        write_files(rows, target.output, target.kind, replace=True)
    except BaseException:
        store = open_store(target.output)
        with contextlib.suppress(OSError):
            for name in store.list(""):
                if name.startswith("part-"):
                    store.delete(name)
        raise


def _check_empty(output: str) -> None:
    """Raise ConfigError if an output has files already."""
    with as_output_error(output):
        there = open_store(output, "--output").list("")
    if any(not each.startswith((".", "_")) for each in there):
        raise ConfigError(f"--output {output}: has files already: choose a new directory")
