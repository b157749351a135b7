"""Progress of a streaming query, for display and metrics."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from nsqtools.clock import wall
from nsqtools.spark.lake.bodies import CORRUPT_COUNT
from nsqtools.spark.source.plans import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


@dataclass(frozen=True, slots=True)
class Written:
    """The written rows of a batch, and when the newest of them was published.

    That is in seconds since the epoch; None without rows, or if unknown.
    """

    rows: int
    newest: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A completed batch, or a check that found nothing to do. Times are in seconds."""

    batch: int
    rows: int
    """Received messages; ``written`` counts the rows written."""
    written: int
    seconds: float
    backlog: int | None
    """Messages that waited in nsqd when the batch was planned, not counting its own."""
    lag: float | None
    """Time from the publishing of the newest message to the end of the batch."""
    corrupt: int = 0
    """Received messages whose bodies do not fit the columns."""
    late: int = 0
    """Rows that came after the watermark, and were dropped."""
    notes: tuple[str, ...] = ()
    """Problems of this run in reading earlier batches, each in one line."""

    @property
    def is_batch(self) -> bool:
        """Whether messages were received, or rows written, as those of a closed window."""
        return bool(self.rows or self.written)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Totals:
    """The totals of a run so far."""

    batches: int = 0
    received: int = 0
    written: int = 0
    corrupt: int = 0
    late: int = 0
    last: Progress | None = None

    def add(self, progress: Progress) -> None:
        """Count a batch."""
        self.batches += progress.is_batch
        self.received += progress.rows
        self.written += progress.written
        self.corrupt += progress.corrupt
        self.late += progress.late
        self.last = progress


class ProgressListener(StreamingQueryListener):
    """Reports the progress of one query; Spark calls it in its own thread, late but in order.

    It takes what was ``written`` of a batch from there. ``query`` is set once the query has an id,
    ``ended`` after its last report. ``committed`` has the newest committed batch of each stream.
    """

    def __init__(self, written: dict[int, Written], report: Callable[[Progress], None]) -> None:
        self.query = ""
        self.totals = Totals()
        self.ended = threading.Event()
        self.committed: dict[str, int] = {}
        self._written = written
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Ignore the start."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a completed batch, or a check that found no messages."""
        progress = event.progress
        if str(progress.id) == self.query:
            for source in progress.sources:
                offset = Offset.from_json(json.loads(source.endOffset))
                self.committed[offset.stream] = offset.batch
            written = self._written.pop(progress.batchId, Written(0))
            found = facts(progress, written, wall())
            self.totals.add(found)
            self._report(found)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note that no more reports follow."""
        if str(event.id) == self.query:
            self.ended.set()


def facts(progress: StreamingQueryProgress, written: Written, now: float) -> Progress:
    """Return the progress of a batch from Spark's and the writer's facts."""
    rows = progress.numInputRows
    offsets = _parsed([source.latestOffset for source in progress.sources])
    return Progress(
        batch=progress.batchId,
        rows=rows,
        written=written.rows,
        seconds=progress.batchDuration / 1000,
        backlog=sum(each["backlog"] for each in offsets) if offsets else None,
        lag=max(0.0, now - written.newest) if rows and written.newest is not None else None,
        corrupt=sum(
            row[CORRUPT_COUNT]
            for name, row in progress.observedMetrics.items()
            if name.startswith(CORRUPT_COUNT)
        ),
        late=sum(each.numRowsDroppedByWatermark for each in progress.stateOperators),
        notes=tuple(note for each in offsets for note in each.get("notes", ())),
    )


def _parsed(offsets: list[str | None]) -> list[dict[str, Any]]:
    """What sources say in ``reportLatestOffset``, those of ours."""
    found = []
    for text in filter(None, offsets):
        try:
            offset = json.loads(text)
        except (TypeError, ValueError):
            continue
        if isinstance(offset, dict) and isinstance(offset.get("backlog"), int):
            found.append(offset)
    return found
