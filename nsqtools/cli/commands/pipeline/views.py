"""The progress of a Spark job as text and as metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.metrics import Metric, Sample, of_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.spark.jobs.progress import Progress, Totals

log = logging.getLogger(__name__)

_PREFIX = "nsqtools_pipeline_"
_OF_TOTALS = (
    ("batches", "batches_total", "Batches completed."),
    ("received", "received_total", "Messages in these batches."),
    ("written", "written_total", "Rows written in these batches."),
    ("corrupt", "corrupt_total", "Messages whose bodies do not fit the columns of --schema."),
    ("late", "late_total", "Rows dropped by the watermark."),
)
_OF_LAST = (
    ("seconds", "batch_seconds", "Duration of the last batch."),
    ("backlog", "backlog", "Messages waiting in nsqd."),
    ("lag", "lag_seconds", "Time from publishing a batch's newest message to its completion."),
)


class StreamView:
    """The batches of a streaming query.

    ``verb`` is a participle for the messages, such as ``archived``. Without it, rows are counted
    apart from messages, because a query need not write a row for each message.
    """

    def __init__(self, verb: str = "") -> None:
        from nsqtools.spark.jobs.progress import Totals

        self._verb = verb
        self.totals: Totals = Totals()
        self._logged: set[str] = set()

    def add(self, fact: Progress) -> str:
        """Take a batch. Returns a line for the log, or an empty text. Each note is logged once."""
        self.totals.add(fact)
        for note in fact.notes:
            if note not in self._logged:
                log.warning("%s", note)
        self._logged.update(fact.notes)
        if not fact.is_batch:
            return ""
        return f"batch {fact.batch}: {self._done(fact.rows, fact.written)}, {_details(fact)}"

    @property
    def line(self) -> str:
        """The status line on a terminal."""
        last = self.totals.last
        text = self._done(self.totals.received, self.totals.written)
        return f"{text}, {_details(last)}" if last else text

    @property
    def summary(self) -> str:
        """One line about the whole run."""
        totals = self.totals
        what = self._done(totals.received, totals.written)
        left_out = totals.received - totals.written
        if self._verb and left_out > 0:
            what += f", {left_out:,} left out by --where"
        if totals.late:
            what += f", {counted(totals.late, 'late row')} dropped"
        return f"{what} in {counted(totals.batches, 'batch', 'batches')}"

    def _done(self, received: int, written: int) -> str:
        if self._verb:
            return f"{counted(written, 'message')} {self._verb}"
        return f"{counted(received, 'message')} read, {counted(written, 'row')} written"

    def metrics(self) -> Iterator[Metric]:
        """The current values, without those not known yet."""
        yield from of_fields(_PREFIX, _OF_TOTALS, [({}, self.totals)])
        if last := self.totals.last:
            rows = [row for row in _OF_LAST if getattr(last, row[0]) is not None]
            yield from of_fields(_PREFIX, rows, [({}, last)])


class StepView:
    """The steps of a job, with the progress of each if known."""

    def __init__(self) -> None:
        self.line = ""
        self._step = ""
        self._done = self._total = 0

    def add(self, step: str, done: int, total: int) -> str:
        """Take a step, its progress, and its size, or 0 if unknown.

        Returns a line for the log, or an empty text.
        """
        is_new = step != self._step
        self._step, self._done, self._total = step, done, total
        self.line = f"{step}, {done:,} of {total:,}" if total else step
        return step if is_new else ""

    def metrics(self) -> Iterator[Metric]:
        """The current step, if any."""
        if not self._step:
            return
        gauges: list[tuple[str, str, dict[str, str], int]] = [
            ("step", "1 for the current step.", {"step": self._step}, 1),
            ("step_done", "How much of this step is done.", {}, self._done),
            ("step_size", "The size of this step.", {}, self._total),
        ]
        for name, text, labels, value in gauges if self._total else gauges[:2]:
            yield Metric(_PREFIX + name, "gauge", text, [Sample(labels, value)])


View = StreamView | StepView
"""Both collect the facts reported by a run; use them in the event loop."""


def _details(last: Progress) -> str:
    """Rate, backlog, duration and lag of a batch, if known."""
    parts = [f"{last.rate:,.0f}/s"] if last.rows else []
    if last.backlog is not None:
        parts.append(f"backlog {last.backlog:,}")
    if last.is_batch:
        parts.append(f"batch {last.seconds:.1f} s")
    if last.corrupt:
        parts.append(f"{last.corrupt:,} corrupt")
    if last.late:
        parts.append(f"{last.late:,} late")
    if last.lag is not None:
        parts.append(f"lag {last.lag:.1f} s")
    return ", ".join(parts) or "idle"
