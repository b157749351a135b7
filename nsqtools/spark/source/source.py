"""The source ``nsq``: topics as repeatable rows, although nsqd delivers messages once.

The driver plans each micro-batch by depth. The plan is put into the staging, and its digest is the
offset in Spark's log, before anything is read. Executors move messages into the staging under this
offset (receive) and read rows only from there, so every reader of a partition gets the same rows.
After Spark's commit of a batch its staging is removed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nsqtools.spark.lake.folders import sync_log
from nsqtools.spark.properties import refuse_speculative_task
from nsqtools.spark.source.plans import BatchPlan, Offset, plan
from nsqtools.spark.source.receive import receive
from nsqtools.spark.staging.ledger import Ledger, refuse_orphans
from nsqtools.spark.staging.partitions import Claim
from nsqtools.stores import open_store, probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyarrow import RecordBatch

    from nsqtools.spark.source.depths import Depths
    from nsqtools.spark.source.plans import Quota, TopicOnNsqd
    from nsqtools.spark.source.sourceoptions import SourceSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NsqPartition(InputPartition):
    """A partition of a batch, without the rest of the batch's plan."""

    offset: Offset
    number: int
    quotas: tuple[Quota, ...]


class _Rest(NamedTuple):
    """A pause of one topic on one nsqd, in seconds of the monotonic clock."""

    until: float
    length: float


_NO_REST = _Rest(0.0, 0.25)
_LONGEST_REST = 30.0
_MOST_NOTES = 20


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches; one object on the driver serves a whole run of a query."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._asked: Depths | None = None
        self._stream = ""
        self._ledgers: dict[str, Ledger] = {}
        self._available_now = False
        # The rest of a run's messages by topic and nsqd; None until the depths were read.
        self._target: Counter[TopicOnNsqd] | None = None
        self._resting: dict[TopicOnNsqd, _Rest] = {}
        # The newest batches planned, and removed from the staging, in this run.
        self._prepared = self._cleaned = 0
        # The plan of the batch whose messages are still to be counted.
        self._plan: BatchPlan | None = None
        # When the newest batch was planned, in seconds of the monotonic clock.
        self._triggered = -math.inf
        self._probed = False
        self._backlog = 0
        # Notes of executors in this run, and whether some are still to be reported with a batch.
        self._notes: dict[str, None] = {}
        self._has_new_notes = False

    def __reduce__(self) -> tuple[type[NsqStreamReader], tuple[SourceSettings]]:
        """Send executors the settings alone."""
        return NsqStreamReader, (self._settings,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first batch of a new checkpoint; called twice.

        Spark also calls this while the first batch of a checkpoint is not committed.
        """
        name = self._settings.stream
        self._stream = self._stream or name or f"{self._settings.group}{uuid4().hex}"
        return Offset(self._stream, self._ledger(name).done() if name else 0).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxMessagesPerTrigger``."""
        most = self._settings.max_messages
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the run to messages waiting now.

        The depths are read when the first new batch is planned, after an unfinished batch of an
        earlier run: the earlier batch must run even if no nsqd answers, and reduces the depth.
        """
        self._available_now, self._target = True, None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset of the next batch, or ``start`` if there is nothing to read.

        A ``start`` of an earlier run comes from Spark's log, so its staging can be removed. With
        asyncProgressTrackingEnabled, which Spark refuses for AvailableNow, a ``start`` of this run
        may not be in the log yet. The plan is put into the staging before Spark logs its offset, so
        a logged batch is known to be staged. Raises ConfigError, OutputError if the staging has
        messages of another checkpoint, or UnreachableError if no server has ever answered.
        """
        offset = Offset.from_json(start)
        if not self._probed:
            probe(staging := open_store(self._settings.staging))
            if not (offset.batch or self._settings.stream):
                refuse_orphans(staging, self._settings.group or offset.stream)
            self._probed = True
        self._account(offset)
        if self._available_now or self._prepared != offset.batch:
            self._clean(offset)
        # Spark does not fsync its log, so a power failure may remove a staged batch from the log.
        ledger = self._ledger(offset.stream)
        if staged := ledger.prepared(offset.batch + 1):
            ledger.prepare(staged)  # the earlier call may have been interrupted
            return staged.offset.to_json()
        depths = self._waiting()
        tasks = plan(
            {} if self._is_delayed(depths) else depths,
            limit=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            connections=self._settings.connections,
            tasks=self._settings.partitions or os.cpu_count() or 1,
        )
        planned = BatchPlan(offset.stream, offset.batch + 1, tasks)
        self._backlog = sum(depths.values()) - planned.messages
        if tasks or (self._has_new_notes and self._available_now):
            # Without a batch, even an empty one, a run ends without a report of its notes.
            self._has_new_notes = False
            if tasks:
                self._triggered = time.monotonic()
                ledger.prepare(planned)
            return planned.offset.to_json()
        if not self._available_now:
            time.sleep(self._settings.poll_interval)
        return start

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return facts for the query's progress.

        ``backlog`` is the number of waiting messages beyond the planned batches. ``notes`` has one
        line for each problem of this run in reading earlier batches.
        """
        return {"backlog": self._backlog, "notes": list(self._notes)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch with the offset ``end``; ``start`` is not needed.

        Raises OutputError if the batch is staged elsewhere.
        """
        offset = Offset.from_json(end)
        self._prepared = offset.batch
        self._sync("offsets")
        if not offset.plan:  # with a new checkpoint Spark makes an empty batch
            return []
        self._plan = self._ledger(offset.stream).expect(offset)
        return [NsqPartition(offset, k, quotas) for k, quotas in enumerate(self._plan.tasks)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """On executors: stage the partition unless it is complete, and yield its rows."""
        assert isinstance(partition, NsqPartition)
        refuse_speculative_task()
        offset, quotas = partition.offset, partition.quotas
        held = self._ledger(offset.stream).claim(offset, partition.number, quotas)
        if isinstance(held, Claim):
            held = held.seal(receive(quotas, self._settings, held))
        yield from held.batches(self._settings.channel)

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the staging of committed batches.

        Spark calls this once the next batch is in its log, so not for a run's last batch.
        """
        self._clean(Offset.from_json(end))

    def _depths(self) -> dict[TopicOnNsqd, int]:
        if self._asked is None:
            from nsqtools.spark.source.depths import Depths

            self._asked = Depths(self._settings)
        return asyncio.run(self._asked.ask())

    def _ledger(self, stream: str) -> Ledger:
        if stream not in self._ledgers:
            self._ledgers[stream] = Ledger(open_store(self._settings.staging), stream)
        return self._ledgers[stream]

    def _clean(self, offset: Offset) -> None:
        if offset.batch > self._cleaned:
            self._sync("commits")
            self._ledger(offset.stream).clean(offset.batch)
            self._cleaned = offset.batch

    def _sync(self, log: str) -> None:
        if self._settings.checkpoint:
            sync_log(self._settings.checkpoint, log)

    def _account(self, offset: Offset) -> None:
        """Count the messages of a batch of this run: a quota may have got fewer than planned.

        If a topic on an nsqd gave no messages, executors may be unable to reach this nsqd. An
        AvailableNow run then reads no more from it; other runs pause for a while. Redelivered
        messages count as messages here, but not for the target, which they reduced when staged.
        """
        if self._plan is None or self._plan.offset != offset:
            return
        complete = self._ledger(offset.stream).complete(self._plan)
        rows: Counter[TopicOnNsqd] = Counter()
        gave: set[TopicOnNsqd] = set()
        for quotas, sealed in zip(self._plan.tasks, complete, strict=True):
            if sealed is None:
                rows.update(dict.fromkeys((quota.queue for quota in quotas), 0))
                continue
            ending = sealed.ending
            for number, (quota, count) in enumerate(zip(quotas, ending.rows, strict=True)):
                rows[quota.queue] += count
                gave |= set() if number in ending.silent else {quota.queue}
            self._note(ending.notes)
        self._plan = None
        for queue, count in rows.items():
            if self._target is not None:
                self._target[queue] = max(0, self._target[queue] - count) if queue in gave else 0
            if queue in gave:
                self._resting.pop(queue, None)
            else:
                rest = min(2 * self._resting.get(queue, _NO_REST).length, _LONGEST_REST)
                self._resting[queue] = _Rest(time.monotonic() + rest, rest)

    def _is_delayed(self, depths: Mapping[TopicOnNsqd, int]) -> bool:
        """Whether a batch should wait for more messages."""
        settings = self._settings
        is_small = sum(depths.values()) < settings.min_messages and not self._available_now
        return is_small and time.monotonic() < self._triggered + settings.max_trigger_delay

    def _note(self, notes: Iterable[str]) -> None:
        new = dict.fromkeys(note for note in notes if note not in self._notes)
        self._notes = dict(list((self._notes | new).items())[-_MOST_NOTES:])
        self._has_new_notes = self._has_new_notes or bool(new)

    def _waiting(self) -> dict[TopicOnNsqd, int]:
        """Return the depths to plan with: of this run's target, or without pausing topics."""
        depths, now = self._depths(), time.monotonic()
        if self._available_now:
            self._target = Counter(depths) if self._target is None else self._target
            return {queue: min(depth, self._target[queue]) for queue, depth in depths.items()}
        return {
            queue: depth
            for queue, depth in depths.items()
            if self._resting.get(queue, _NO_REST).until <= now
        }
