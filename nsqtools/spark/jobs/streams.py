"""A streaming query whose batches a function writes, until it is drained or stopped."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.spark.jobs.progress import ProgressListener
from nsqtools.spark.sparksession import explain
from nsqtools.stores.places import as_url, local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from nsqtools.spark.jobs.checkpoint import Stamp
    from nsqtools.spark.jobs.progress import Progress, Totals, Written

    Write = Callable[[DataFrame, str, int], Written]
    """Writes a batch, given the query's id and the batch's number.

    It may be called again for a batch, after a crash and with the same rows, and must replace the
    result of the first call.
    """

log = logging.getLogger(__name__)

_LOOK = 0.2  # seconds between looks at the query
_LAST_REPORT = 10.0


@dataclass(frozen=True, slots=True)
class Stream:
    """The state directory and the schedule of a query."""

    checkpoint: str
    trigger: float | None = None
    """Seconds between batches; None drains the messages that wait at the start, and ends."""
    output_mode: str = "append"


def read(spark: SparkSession, options: Mapping[str, str], stream: Stream) -> DataFrame:
    """Return the messages of a source with these options. Raises NSQError."""
    from nsqtools.spark import register

    register(spark)
    path = local(stream.checkpoint)
    known = {"partitions": str(spark.sparkContext.defaultParallelism)}
    if path is not None:
        known["checkpointPath"] = str(path)
    try:
        return spark.readStream.format("nsq").options(**options, **known).load()
    except Exception as error:  # which asks the JVM for its text, later in vain
        raise _ours(error) from error


def run(
    frame: DataFrame,
    write: Write,
    stream: Stream,
    *,
    stamp: Stamp,
    stop: threading.Event,
    report: Callable[[Progress], None],
) -> Totals:
    """Write batch after batch; return when all is drained, or soon after ``stop`` is set.

    The current batch is completed first. If another batch has been planned but not started, the
    next run starts with it. At the end the staging of committed batches is removed, and once all
    is drained the stamp is written. Raises NSQError, and errors of ``write``.
    """
    batches = _Batches(write, stop)
    listener = ProgressListener(batches.written, report)
    streams = frame.sparkSession.streams
    streams.addListener(listener)
    try:
        writer = frame.writeStream.outputMode(stream.output_mode).foreachBatch(batches.write)
        writer = writer.option("checkpointLocation", as_url(stream.checkpoint))
        if stream.trigger is None:
            writer = writer.trigger(availableNow=True)
        else:
            wait = round(stream.trigger * 1000)
            writer = writer.trigger(processingTime=f"{wait} milliseconds")
        query = writer.start()
        listener.query = str(query.id)
        batches.begin(str(query.id))
        try:
            _wait(query, batches, stop)
        finally:
            query.stop()
            listener.ended.wait(_LAST_REPORT)
    except Exception as error:
        if not batches.refused:  # that is how a query is stopped between two batches
            raise batches.error or _ours(error) from error
    finally:
        with contextlib.suppress(Exception):
            streams.removeListener(listener)
        stamp.checkpoint.clean(listener.committed)
    return listener.totals


def _wait(query: StreamingQuery, batches: _Batches, stop: threading.Event) -> None:
    """Until the query has ended, or may be stopped without a batch being lost on the way."""
    while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]
        if not stop.is_set() or batches.busy:
            continue
        status = query.status
        if not status["isTriggerActive"] or not status["isDataAvailable"]:
            return


def _ours(error: Exception) -> Exception:
    """An error of Spark, or of the way to it, as one of ours; others are what they are."""
    theirs = type(error).__module__.startswith(("pyspark", "py4j"))
    lost = isinstance(error, ConnectionError) and not isinstance(error, BrokenPipeError)
    return explain(error) if theirs or lost else error


class _Stopped(Exception):  # noqa: N818 - no error
    """A batch was not begun because the run is to stop."""


class _Batches:
    """The function that Spark calls for each batch, in a thread of its own."""

    def __init__(self, write: Write, stop: threading.Event) -> None:
        self.written: dict[int, Written] = {}
        self.error: Exception | None = None
        self.refused = False
        self.busy = False
        self._write = write
        self._stop = stop
        self._query = ""
        self._begun = threading.Event()

    def begin(self, query: str) -> None:
        """The query has an id."""
        self._query = query
        self._begun.set()

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch."""
        self._begun.wait()
        if self._stop.is_set():
            self.refused = True
            raise _Stopped
        self.busy = True
        try:
            self.written[number] = self._write(batch, self._query, number)
        except Exception as error:
            self.error = _ours(error)
            raise
        finally:
            self.busy = False
