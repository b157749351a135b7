"""``pipeline sql``: a query of topics, which are streams, or of archives.

The table ``nsq`` has all messages, and a table with the name of a topic has the messages of that
topic.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.errors import ConfigError, NSQError
from nsqtools.spark.interrupts import interruptible
from nsqtools.spark.jobs.batches import BatchFiles, LakeOutput
from nsqtools.spark.jobs.checkpoint import Checkpoint, Stamp, stamp_of
from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.jobs.streams import Stream, read, run
from nsqtools.spark.lake.bodies import (
    counted_corrupt,
    counted_undecoded,
    with_columns,
    with_decoded,
)
from nsqtools.spark.lake.dataframes import body_schema, view
from nsqtools.spark.lake.inputs import find
from nsqtools.spark.lake.write import write_files
from nsqtools.spark.sparksession import first_line
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nsqtools.records.bodies.decoders import Decoding
    from nsqtools.records.layout import Layout
    from nsqtools.spark.jobs.progress import Progress, Totals
    from nsqtools.spark.lake.tables import LakeTable

    Show = Callable[[Sequence[str], Iterator[Sequence[Any]]], None]
    """Called with the names of columns and the rows to show, in the thread of the job."""

_TABLE = "nsq"
_STATEFUL = re.compile(r"~(Aggregate|Distinct)\b")  # ~ is of what streams
_STREAM = re.compile(r"~StreamingRelationV2 .*?\bsubscribe=([^ \]]+?)(?:,? |\])")
_REUSED = re.compile(r"CTERelationRef (\d+)")
_CHANGES = ("query", "schema", "infer", "timestamp", "watermark", "decode", "mode")
"""Settings of a checkpoint's state, without which Spark may not be able to continue it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of rows: an output, a topic or the console.

    ``sink`` has options of the sink ``nsq`` for a topic, ``show`` is called for the console.
    """

    output: LakeOutput | None = None
    sink: Mapping[str, str] = field(default_factory=dict)
    show: Show | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A query; ``schema``, ``infer`` and ``decode`` are parameters of ``dataframes.body_schema``.

    ``watermark`` is in seconds, 0 for none, and by the column ``timestamp``.
    """

    text: str
    schema: str = ""
    infer: str = ""
    timestamp: str = "timestamp"
    watermark: float = 0.0
    decode: Decoding | None = None


def _values(query: Query) -> dict[str, Any]:
    """The values of a query that a stamp has by these names."""
    found = asdict(query) | {"query": query.text}
    del found["decode"]
    return found


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
        target, decode = self.target, self.query.decode
        return stamp_of(
            self.source,
            self.stream.checkpoint,
            target.output.id if target.output else "",
            **_values(self.query),
            **({"decode": decode.spec} if decode else {}),
            mode=self.stream.output_mode,
            kind=target.output.format if target.output else "topic" if target.sink else "console",
        )


@dataclass(frozen=True, slots=True)
class ArchivesSettings:
    """A query of archives; ``topics`` are those that shall have tables of their own."""

    query: Query
    target: Destination
    inputs: tuple[str, ...]
    layout: Layout | None
    topics: tuple[str, ...] = ()


def query_stream(
    spark: SparkSession,
    settings: StreamSettings,
    *,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> Totals:
    """Run the query on batch after batch; errors are those of ``archive.archive``."""
    checkpoint = Checkpoint(settings.stream.checkpoint, settings.source["stagingLocation"])
    before = Stamp.check(checkpoint, settings.stamp)
    stamp = Stamp(checkpoint, settings.stamp)
    found = _of_topics(spark, settings, stamp.group)
    writer = _ResultWriter(settings, stamp)
    writer.check(found)
    try:
        return run(found, writer.write, settings.stream, stamp=stamp, stop=stop, report=report)
    except NSQError as error:
        changed = before and any(before.get(k) != settings.stamp.get(k) for k in _CHANGES)
        if type(error) is not NSQError or not changed or checkpoint.is_unused():
            raise
        raise NSQError(
            f"{error}; --checkpoint {settings.stream.checkpoint} has the state of another query: "
            "give another --checkpoint, or run that query again"
        ) from error


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
        found = _of_archives(spark, settings)
        columns = found.columns
        table = target.output.open() if target.output else None
        if table:
            table.check(found.schema)
    if target.output and not table:
        _check_empty(target.output.place)
    report("querying", 0, 0)
    if target.show:
        with contextlib.closing(_rows(found, stop)) as rows:
            target.show(columns, rows)
        return
    with interruptible(spark, stop):
        if target.sink:
            _publish(found, target.sink)
        elif target.output:
            _write_once(found, target.output, table)


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
            found = _of_topics(spark, settings)
        else:
            found = _of_archives(spark, settings)
        # Spark looks for streams in what was parsed, which has no more than the name of a table.
        found.select("*").explain(mode="formatted")
    return printed.getvalue()


def _of_topics(spark: SparkSession, settings: StreamSettings, group: str = "") -> DataFrame:
    """The result of the query; raises ConfigError.

    Only tables that the query may name are made, because each one asks Spark for a source.
    """
    query, subscribed = settings.query, settings.source["subscribe"]
    schema = body_schema(spark, query.schema, query.infer, query.decode)
    tables = {topic: topic for topic in subscribed.split(",")} | {_TABLE: subscribed}
    for name, topics in tables.items():
        if name.lower() in query.text.lower():
            own = {"subscribe": topics, "streamGroup": group}
            frame = read(spark, {**settings.source, **own}, settings.stream)
            if query.decode:
                frame = with_decoded(frame, query.decode)
            if schema:
                frame = counted_corrupt(with_columns(frame, schema), name)
            elif query.decode:
                frame = counted_undecoded(frame, name)
            _name(_timed(frame, query), name)
    return _asked(spark, query)


def _of_archives(spark: SparkSession, settings: ArchivesSettings) -> DataFrame:
    """The result of the query; raises ConfigError."""
    query = settings.query
    schema = body_schema(spark, query.schema, query.infer, query.decode)
    frame = view(spark, find(settings.inputs, settings.layout))
    if query.decode:
        frame = with_decoded(frame, query.decode)
    if schema:
        frame = with_columns(frame, schema)
    for topic in settings.topics:
        _name(frame.where(F.col("topic") == topic), topic)
    _name(frame, _TABLE)
    return _asked(spark, query)


def _timed(frame: DataFrame, query: Query) -> DataFrame:
    """The frame with the watermark; raises ConfigError for a column that is no time."""
    found = {name.lower(): kind for name, kind in frame.dtypes}.get(query.timestamp.lower())
    if found != "timestamp":
        raise ConfigError(
            f"--timestamp {query.timestamp}: "
            + (f"is {found}, not TIMESTAMP" if found else "no such column")
            + f": declare it with --schema '{query.timestamp} TIMESTAMP' and the other columns"
        )
    if not query.watermark:
        return frame
    return frame.withWatermark(query.timestamp, f"{query.watermark * 1000:.0f} milliseconds")


def _name(frame: DataFrame, name: str) -> None:
    frame.createOrReplaceTempView(f"`{name}`")


def _asked(spark: SparkSession, query: Query) -> DataFrame:
    try:
        return spark.sql(query.text)
    except AnalysisException as error:
        raise ConfigError(f"--query: {first_line(error)}") from error


class _ResultWriter:
    def __init__(self, settings: StreamSettings, stamp: Stamp) -> None:
        self._settings = settings
        self._target = settings.target
        self._stamp = stamp
        output = settings.target.output
        self._files = BatchFiles(output, stamp) if output else None
        self._is_stateful = False

    def check(self, rows: DataFrame) -> None:
        """Raise ConfigError if the query cannot be run, or its destination cannot take the rows."""
        if self._files:
            self._files.check(rows, "--query")
        if not rows.isStreaming:
            raise ConfigError(f"--query: expected a SELECT on the table {_TABLE}, or on a topic")
        plan = rows._jdf.queryExecution().analyzed().toString()
        tables = self._check_tables(plan)
        self._is_stateful = bool(_STATEFUL.search(plan)) or (tables > 1 and "~Join" in plan)
        if "streamName" not in self._settings.source:  # the checkpoint lasts
            return
        if tables > 1:
            raise ConfigError("--checkpoint is required for a query of several tables")
        if self._is_stateful and self._settings.stream.output_mode == "append":
            raise ConfigError(
                "--checkpoint is required: rows of this query wait for the watermark, and would "
                "be lost at the end of the run: give --checkpoint, or --output-mode update to get"
                " the rows at once"
            )

    def _check_tables(self, plan: str) -> int:
        """The number of tables; raises ConfigError unless each topic is read once."""
        subscribed = _STREAM.findall(plan)
        used = [topic for each in subscribed for topic in each.split(",")]
        if len(set(used)) < len(used) or len(set(found := _REUSED.findall(plan))) < len(found):
            raise ConfigError(
                "--query: a topic is used more than once, and each use would get only a part of "
                "its messages: archive it first, and query the archive with --input"
            )
        for topic in self._settings.source["subscribe"].split(","):
            if topic not in used:
                raise ConfigError(f"--topic {topic}: the query does not use it: omit it")
        return len(subscribed)

    def write(self, batch: DataFrame, query: str, number: int) -> Written:
        """Write the result of a batch; it replaces files of an earlier attempt."""
        target = self._target
        if self._files:  # state has as many partitions as the first run made
            return self._files.write(batch, query, number, few=not self._is_stateful)
        self._stamp.confirm()
        if target.sink:
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


def _write_once(rows: DataFrame, output: LakeOutput, table: LakeTable | None) -> None:
    """Write rows into an output without files, or add them to a table in one commit."""
    if table is None:
        _write_files(rows, output.place, output.files)
        return
    rows = table.spelled(rows)
    schema = rows.schema
    place, rows, partitions = table.prepare(rows, schema, ())
    files = write_files(rows, place, output.files, name=uuid4().hex, partitions=partitions)
    table.commit(files, schema, partitions)


def _write_files(rows: DataFrame, output: str, form: str) -> None:
    """Write files into an output without files; after an error none are left."""
    try:
        write_files(rows, output, form, replace=True)
    except BaseException:
        store = open_store(output)
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
