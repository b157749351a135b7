"""Redelivered messages that are staged already: they are finished, and not staged twice.

nsqd delivers a message again, with a higher ``attempts``, when it has not seen its FIN in time: the
process was killed after a segment was put and before the FINs were out, or the connection was lost
under them, or they were too late. The staging itself tells what is staged, and it is asked only
when a message comes again:

* A log tells what of a partition may be unfinished. Its entries bear their attempts. An attempt has
  at most WINDOW messages in flight, and ends as soon as it learns of a lost connection or a FIN
  that was too late. nsqd holds back what is beyond the window until it has processed FINs: those
  that it lacks are of the last WINDOW rows, or of the last two WINDOWs if some timed out while they
  were staged. An attempt that gets more than the window knows by this that some did, and stages no
  more. So the last rows of each attempt count, except of one that is known to have settled all: the
  response to CLS comes after nsqd has processed what was sent before it.
* Only partitions with the same topic and nsqd can have a message. Of the current batch their logs
  are read on at each question; the attempts may be alive. Of a committed batch only sealed ones
  count: nobody has read the others.
* A message that comes again is at the end of nsqd's queue, perhaps many batches later. So before a
  batch is removed, the driver keeps the keys of what may be unfinished in a file of the stream. The
  newest files are kept, up to a million keys. For a message to be missed, a dozen processes must
  have died since the one that staged it, all while it waited for its turn; then it is in the result
  twice, and never lost.

To take too many for unfinished does no harm: what has a key here is staged, so to finish it is
right, whoever does it. It must only be durable: see ``find``.

Not known are: a message that had timed out or was given back before its segment was put (a request
without a response may arrive late), and that another partition got meanwhile; one that nsqd
delivers again as new, after a crash of its own; one of an nsqd that has another address now; one of
a connection that stalled, and then died, while others of its partition went on for 20,000 rows; and
what an NFS client does not show yet when ``msg_timeout`` is over.

All this is of one stream, which is one checkpoint. Two on one channel share its messages, and what
one of them has staged when it is killed comes again to either.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from nsqtools.spark.source.plans import Offset, TopicOnNsqd
    from nsqtools.spark.staging.ledger import Ledger
    from nsqtools.spark.staging.log import LogEntry, PartitionLog

    MessageKey = tuple[str, int]
    """Message id and timestamp in ns."""

WINDOW = 20_000
"""Maximum number of messages that an attempt may have in flight."""

_TAIL = 2 * WINDOW
_MOST = 1_000_000
_PREFIX = "again-"
_KEPT_SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("nsqd", pa.dictionary(pa.int32(), pa.string())),
        *KEY_SCHEMA,
    ]
)


class KeptKeys(NamedTuple):
    """A file of keys of a committed batch, by its name."""

    batch: int
    rows: int

    def __str__(self) -> str:
        return f"{_PREFIX}{self.batch:010d}-{self.rows}"

    @classmethod
    def parse(cls, name: str) -> KeptKeys | None:
        """Return what a name says; None if it is none of ours."""
        batch, _, rows = name.removeprefix(_PREFIX).partition("-")
        ours = name.startswith(_PREFIX) and batch.isdecimal() and rows.isdecimal()
        return cls(int(batch), int(rows)) if ours else None


@dataclass(slots=True, eq=False)
class Redelivered:
    """What is staged of a topic on an nsqd, as an attempt of a partition sees it; not thread-safe.

    ``own`` is the partition's log, and ``entries`` are its entries, which the attempt extends.
    ``others`` are the logs of the batch's other partitions of this topic and nsqd, with the entries
    that are known.
    """

    ledger: Ledger
    batch: int
    queue: TopicOnNsqd
    own: PartitionLog
    entries: list[LogEntry]
    others: Sequence[tuple[PartitionLog, list[LogEntry]]]
    _earlier: dict[int, list[tuple[PartitionLog, LogEntry]]] = field(
        init=False, default_factory=dict
    )
    _added: dict[int, pa.Table] = field(init=False, default_factory=dict)
    _known: dict[str, pa.Table] = field(init=False, default_factory=dict)

    def add(self, entry: LogEntry, keys: pa.RecordBatch) -> None:
        """Remember the keys of a segment that was added to the own log, as far as they count."""
        self._added[entry.number] = pa.Table.from_batches([keys])
        counts = {each.number for each in unfinished(self.entries)}
        self._added = {number: table for number, table in self._added.items() if number in counts}

    def find(self, keys: Set[MessageKey]) -> set[MessageKey]:
        """Return the keys that are staged durably, so that their messages may be finished.

        Raises OutputError.
        """
        ids = pa.array([message_id for message_id, _ in keys], pa.string())
        with self.own.explained():
            return self._find(keys, ids)

    def _find(self, keys: Set[MessageKey], ids: pa.Array) -> set[MessageKey]:
        ledger, found = self.ledger, set()
        names = ledger.names()
        earlier = [batch for batch in ledger.batches(names) if batch < self.batch]
        for batch in earlier:
            with contextlib.suppress(FileNotFoundError):
                for log, entry in self._committed(batch):
                    found |= _among(self._keys(log, entry), keys, ids)
        if earlier:  # one that was removed meanwhile has left a file before
            names = ledger.names()
        for name in filter(KeptKeys.parse, names):
            with contextlib.suppress(FileNotFoundError):
                found |= _among(self._kept(name), keys, ids)
        for entry in unfinished(self.entries):
            table = self._added.get(entry.number)
            found |= _among(self._keys(self.own, entry) if table is None else table, keys, ids)
        for log, entries in self.others:
            entries += log.read_on(entries)
            tables = [self._keys(log, entry) for entry in unfinished(entries)]
            if any(hits := [_among(table, keys, ids) for table in tables]):
                log.store.sync(log.path)  # whoever put the entry may not have come to that yet
                found.update(*hits)
        return found

    def _committed(self, batch: int) -> list[tuple[PartitionLog, LogEntry]]:
        """What may be unfinished of a committed batch that could not be removed yet."""
        if batch not in self._earlier:
            offset = self.ledger.prepared(batch)
            found = _unfinished_of(self.ledger, offset) if offset else ()
            self._earlier[batch] = [
                (log, entry) for queue, log, entry in found if queue == self.queue
            ]
        return self._earlier[batch]

    def _keys(self, log: PartitionLog, entry: LogEntry) -> pa.Table:
        name = f"{log.path}/{entry.name}"
        if name not in self._known:
            self._known[name] = _keys(log, entry)
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
            topic, nsqd = self.queue
            ours = (pc.field("topic") == topic) & (pc.field("nsqd") == nsqd)
            self._known[name] = table.filter(ours).select(KEY_SCHEMA.names)
        return self._known[name]


def unfinished(entries: Sequence[LogEntry], settled: str = "") -> Iterator[LogEntry]:
    """Yield the segments whose messages may be unfinished, except those of a settled attempt."""
    rows: Counter[str] = Counter()
    for entry in reversed(entries):
        attempt = entry.attempt
        if entry.kind is EntryKind.SEGMENT and attempt != settled and rows[attempt] < _TAIL:
            rows[attempt] += entry.rows
            yield entry


def _unfinished_of(
    ledger: Ledger, offset: Offset
) -> Iterator[tuple[TopicOnNsqd, PartitionLog, LogEntry]]:
    """The segments of a batch's sealed partitions whose messages may be unfinished."""
    for k, quota in enumerate(offset.quotas):
        if sealed := ledger.sealed(offset.batch, k):
            settled = sealed.attempt if sealed.ending.settled else ""
            for entry in unfinished(sealed.segments, settled):
                yield quota.queue, sealed.log, entry


def keep(ledger: Ledger, offset: Offset) -> None:
    """Driver: keep the keys of a committed batch that may be unfinished, before it is removed.

    Raises OutputError for damaged files, and OSError.
    """
    if any(kept.batch == offset.batch for kept in map(KeptKeys.parse, ledger.names()) if kept):
        return
    tables = []
    for queue, log, entry in _unfinished_of(ledger, offset):
        keys = _keys(log, entry)
        names = [pa.repeat(name, keys.num_rows).dictionary_encode() for name in queue]
        tables.append(pa.table([*names, *keys.columns], schema=_KEPT_SCHEMA))
    if rows := sum(table.num_rows for table in tables):
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _KEPT_SCHEMA) as writer:
            writer.write_table(table)
        # Another driver would keep the same.
        ledger.store.put_if_absent(
            f"{ledger.folder}/{KeptKeys(offset.batch, rows)}", memoryview(sink.getvalue())
        )


def prune(ledger: Ledger) -> None:
    """Driver: remove the oldest of these files."""
    rows = 0
    for kept in sorted(filter(None, map(KeptKeys.parse, ledger.names())), reverse=True):
        if rows and rows + kept.rows > _MOST:
            ledger.store.delete(f"{ledger.folder}/{kept}")
        rows += kept.rows


def _keys(log: PartitionLog, entry: LogEntry) -> pa.Table:
    return pa.ipc.open_stream(*log.read(entry, 1)).read_all()


def _among(table: pa.Table, keys: Set[MessageKey], ids: pa.Array) -> set[MessageKey]:
    hits = table.filter(pc.is_in(table["message_id"], ids))
    return set(zip(*(hits[name].to_pylist() for name in KEY_SCHEMA.names), strict=True)) & keys
