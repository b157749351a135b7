"""Finishing of redelivered messages already in the staging, without staging them twice.

nsqd delivers a message again, with a higher ``attempts``, after missing its FIN. Either the process
was killed between the put of the segment and its FINs, or the connection was lost before the FINs
arrived, or they arrived too late. The staging itself shows which messages are staged. It is
searched only after a redelivery:

* A partition's log shows its possibly unfinished messages: the entries name their attempts. An
  attempt has at most MAX_IN_FLIGHT messages in flight, and ends once it learns of a lost connection
  or a late FIN. nsqd sends no further message before it has processed FINs. So the missing FINs
  belong to the last MAX_IN_FLIGHT rows, or to twice as many if messages timed out during their
  staging. An attempt with more messages in flight learns of such timeouts from the excess, and
  stages no more. So the last rows of each attempt count as unfinished, unless the attempt is
  known to have settled all: nsqd responds to CLS after processing all earlier commands.
* Only partitions whose tasks share a topic on an nsqd can have the same message. In the current
  batch, their logs are read further at each search, as other attempts may be alive. In a committed
  batch only sealed partitions count: the others were never read.
* A redelivered message goes to the end of nsqd's queue, and may arrive many batches later. So
  before removing a batch, the driver saves the keys of possibly unfinished messages in a file of
  the stream. The newest files are kept, up to a million keys. A duplicate needs about twelve
  crashes after the message was staged, all while it is queued. No message is lost even then.

Counting too many messages as unfinished does no harm: each message with a key here is staged, and
any attempt may finish it. The staged copy must only be durable: see ``find``.

These redeliveries are not recognised, and are staged twice:

* A message timed out or was given back before the put of its segment, and another partition got it
  meanwhile. (A request without a response may arrive late.)
* nsqd delivers a message as new after a crash of its own.
* The address of an nsqd has changed.
* A connection stalled and then died, while other connections of its task continued for 20,000
  rows.
* An NFS client does not show a file until after ``msg_timeout``.

All this applies to one stream, and so to one checkpoint. Two streams on one channel share its
messages. If one of them is killed, either may get its staged messages again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsqtools.errors import OutputError
from nsqtools.spark.rows import KEY_SCHEMA
from nsqtools.spark.staging.log import EntryKind
from nsqtools.stores import in_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set

    from nsqtools.spark.source.plans import TopicOnNsqd
    from nsqtools.spark.staging.ledger import Ledger
    from nsqtools.spark.staging.log import LogEntry, PartitionLog
    from nsqtools.spark.staging.partitions import Sealed

    MessageKey = tuple[str, str, str, int]
    """Topic, nsqd, message id, and timestamp in ns."""

MAX_IN_FLIGHT = 20_000
"""Maximum number of messages in flight per attempt."""

_TAIL = 2 * MAX_IN_FLIGHT
_MOST = 1_000_000
_PREFIX = "again-"


class KeptKeys(NamedTuple):
    """A file of keys of a committed batch, by its name."""

    batch: int
    rows: int

    def __str__(self) -> str:
        return f"{_PREFIX}{self.batch:010d}-{self.rows}"

    @classmethod
    def parse(cls, name: str) -> KeptKeys | None:
        """Parse a file name; returns None for the names of other files."""
        batch, _, rows = name.removeprefix(_PREFIX).partition("-")
        ours = name.startswith(_PREFIX) and batch.isdecimal() and rows.isdecimal()
        return cls(int(batch), int(rows)) if ours else None


@dataclass(slots=True, eq=False)
class Redelivered:
    """The staged messages of a task's topics, as seen by an attempt; not thread-safe.

    ``own`` is the log of the task's partition ``k``, and ``entries`` are its entries, extended by
    the attempt. ``queues`` are the topics of the task, each with its nsqd. The plan of the batch is
    read at the first search, which only a redelivery needs.
    """

    ledger: Ledger
    batch: int
    k: int
    queues: Set[TopicOnNsqd]
    own: PartitionLog
    entries: list[LogEntry]
    _others: list[tuple[PartitionLog, list[LogEntry]]] | None = field(init=False, default=None)
    _earlier: dict[int, list[tuple[PartitionLog, LogEntry]]] = field(
        init=False, default_factory=dict
    )
    _added: dict[int, pa.Table] = field(init=False, default_factory=dict)
    _known: dict[str, pa.Table] = field(init=False, default_factory=dict)

    def add(self, entry: LogEntry, keys: pa.RecordBatch) -> None:
        """Remember the keys of a segment added to the own log, while it counts as unfinished."""
        self._added[entry.number] = pa.Table.from_batches([keys])
        counts = {each.number for each in unfinished(self.entries)}
        self._added = {number: table for number, table in self._added.items() if number in counts}

    def find(self, keys: Set[MessageKey]) -> set[MessageKey]:
        """Return the durably staged keys; their messages may be finished.

        Raises OutputError.
        """
        ids = pa.array([message_id for _, _, message_id, _ in keys], pa.string())
        with self.own.explained():
            return self._find(keys, ids)

    def _find(self, keys: Set[MessageKey], ids: pa.Array) -> set[MessageKey]:
        ledger, found = self.ledger, set()
        if self._others is None:
            plan = ledger.required(self.batch)
            self._others = [
                (ledger.partition_log(self.batch, k, plan.tasks[k]), [])
                for k in plan.sharing(self.queues)
                if k != self.k
            ]
        names = ledger.names()
        earlier = [batch for batch in ledger.batches(names) if batch < self.batch]
        for batch in earlier:
            with contextlib.suppress(FileNotFoundError):
                for log, entry in self._committed(batch):
                    found |= _among(self._keys(log, entry), keys, ids)
        if earlier:  # before its removal, a batch removed meanwhile has left a file of keys
            names = ledger.names()
        for kept in kept_keys(names):
            with contextlib.suppress(FileNotFoundError):
                found |= _among(self._kept(str(kept)), keys, ids)
        for entry in unfinished(self.entries):
            table = self._added.get(entry.number)
            found |= _among(self._keys(self.own, entry) if table is None else table, keys, ids)
        for log, entries in self._others:
            entries += log.read_on(entries)
            tables = [self._keys(log, entry) for entry in unfinished(entries)]
            if any(hits := [_among(table, keys, ids) for table in tables]):
                log.store.sync(log.path)  # its writer may not have synced yet
                found.update(*hits)
        return found

    def _committed(self, batch: int) -> list[tuple[PartitionLog, LogEntry]]:
        """Return the possibly unfinished segments of a committed batch not yet removed."""
        if batch not in self._earlier:
            plan = self.ledger.prepared(batch)
            found = self.ledger.complete(plan, plan.sharing(self.queues)) if plan else []
            self._earlier[batch] = list(_unfinished_of(found))
        return self._earlier[batch]

    def _keys(self, log: PartitionLog, entry: LogEntry) -> pa.Table:
        name = f"{log.path}/{entry.name}"
        if name not in self._known:
            self._known[name] = log.keys(entry)
        return self._known[name]

    def _kept(self, name: str) -> pa.Table:
        if name not in self._known:
            file = f"{self.ledger.folder}/{name}"
            try:
                data = self.ledger.store.get(file)
                table = pa.ipc.open_stream(data).read_all()
            except pa.ArrowInvalid as error:
                raise OutputError(
                    f"{self.ledger.store.url(file)}: damaged: remove it; messages that it lists "
                    "may then be staged twice"
                ) from error
            topics = pa.array({topic for topic, _ in self.queues}, pa.string())
            self._known[name] = table.filter(pc.field("topic").isin(topics))
        return self._known[name]


def unfinished(entries: Sequence[LogEntry], settled: str = "") -> Iterator[LogEntry]:
    """Yield the segments with possibly unfinished messages, except those of a settled attempt."""
    rows: Counter[str] = Counter()
    for entry in reversed(entries):
        attempt = entry.attempt
        if entry.kind is EntryKind.SEGMENT and attempt != settled and rows[attempt] < _TAIL:
            rows[attempt] += entry.rows
            yield entry


def _unfinished_of(
    partitions: Iterable[Sealed | None],
) -> Iterator[tuple[PartitionLog, LogEntry]]:
    """Yield the possibly unfinished segments of sealed partitions."""
    for sealed in filter(None, partitions):
        settled = sealed.attempt if sealed.ending.settled else ""
        for entry in unfinished(sealed.segments, settled):
            yield sealed.log, entry


def keep(ledger: Ledger, batch: int, partitions: Iterable[Sealed | None]) -> None:
    """Driver: keep the keys of possibly unfinished messages before a committed batch is removed.

    Raises OutputError for damaged files, and OSError.
    """
    found = list(_unfinished_of(partitions))
    tables = in_threads(lambda each: each[0].keys(each[1]), found, ledger.store.threads)
    if rows := sum(table.num_rows for table in tables):
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, KEY_SCHEMA) as writer:
            writer.write_table(table)
        # Another driver would write the same keys.
        ledger.store.put_if_absent(
            f"{ledger.folder}/{KeptKeys(batch, rows)}", memoryview(sink.getvalue())
        )


def kept_keys(names: Iterable[str]) -> list[KeptKeys]:
    """Return the files of keys among the names in the folder of a stream, the newest first."""
    return sorted(filter(None, map(KeptKeys.parse, names)), reverse=True)


def prune(ledger: Ledger, names: Iterable[str]) -> None:
    """Driver: remove the oldest files of keys among the names in the folder of the stream."""
    rows = 0
    for kept in kept_keys(names):
        if rows and rows + kept.rows > _MOST:
            ledger.store.delete(f"{ledger.folder}/{kept}")
        rows += kept.rows


def _among(table: pa.Table, keys: Set[MessageKey], ids: pa.Array) -> set[MessageKey]:
    hits = table.filter(pc.is_in(table["message_id"], ids))
    return set(zip(*(hits[name].to_pylist() for name in KEY_SCHEMA.names), strict=True)) & keys
