"""Messages that come again though they are staged: finished then, and not staged twice.

nsqd delivers a message again, with a higher ``attempts``, when it has not seen its FIN in time: the
process was killed after a segment was counted and before the FINs were out, or the connection was
lost under them, or they were too late. That it is staged is known from the staging itself, which is
looked at only when a message comes again:

* A partition tells what of it may be unfinished, at any time and without a word of who filled it.
  Segments bear their generation, so the last ones of each attempt can be told. An attempt has at
  most WINDOW messages in flight, and ends as soon as it learns of a lost connection or a FIN that
  was too late. nsqd holds back what is beyond the window until it has processed FINs: those that
  it lacks are of the last WINDOW rows, or of the last two WINDOWs if some timed out while they were
  staged. An attempt that gets more than the window knows by this that some did, and stages no more.
  So these are looked at, of each attempt but one that is known to have settled all: the answer to
  CLS comes after nsqd has processed what was sent before it.
* The partition of a live attempt is looked at like that of a dead one, and those of all batches
  that are still there: a message may reach another partition before the dead attempt is adopted.
  Of a batch that was committed only complete ones are: nobody has read the others.
* A message that comes again is at the end of nsqd's queue, perhaps many batches later. So before a
  batch is removed, what may be unfinished of it is kept in a file of the stream, ``again-*``, with
  nothing but keys. The newest files are kept up to a million keys. For a message to be missed, a
  dozen processes must have died since the one that staged it (two partitions keep at most 80,000),
  all while it waited for its turn; then it is there twice, and never lost.

To take too many for unfinished does no harm: what has a key here is staged and counted, so to
finish it is right, whoever does it. It must only be sure that the count lasts: see ``find``.

What is not known: a message that had timed out before its segment was counted, and that another
partition got meanwhile; one that nsqd hands out again as new, after a crash of its own; one of an
nsqd that has another address now, or is named otherwise (``localhost``, not ``127.0.0.1``); one of
a connection that stalled, and then died, while others of its partition went on for 20,000 rows; and
what a listing does not show yet (NFS) when ``msg_timeout`` is over.

All this is of one stream, which is one checkpoint. Two on one channel share its messages, and what
one of them has staged when it is killed comes again to either.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from nsqtools.errors import OutputError
from nsqtools.spark import naming
from nsqtools.spark.naming import Again, Holder, Segment
from nsqtools.spark.segments import PartitionManifest, as_output_error, counted, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from nsqtools.spark.stores import Store

    MessageKey = tuple[str, str, str, str, int]
    """Topic, channel, nsqd, message id and timestamp in ns."""

WINDOW = 20_000
"""Most messages that an attempt may have in flight."""

_TAIL = 2 * WINDOW
_MOST = 1_000_000
_TRIES = 100
_KEY = ["topic", "channel", "nsqd", "message_id", "timestamp_ns"]


class Staged:
    """The messages that a stream has staged but may not have finished; not thread-safe.

    ``folder`` is the stream's directory. ``batch`` is the current batch; all before it were
    committed. Files are cached, as they never change.
    """

    def __init__(self, store: Store, folder: str, batch: int) -> None:
        self._store = store
        self._folder = folder
        self._batch = batch
        self._known: dict[str, pa.Table] = {}
        self._used: dict[str, pa.Table] = {}
        self._manifests: dict[str, PartitionManifest] = {}

    def find(self, keys: Set[MessageKey]) -> set[MessageKey]:
        """Return the keys that are staged durably, so that their messages may be finished.

        Raises OutputError.
        """
        with as_output_error(self._folder):
            for _ in range(_TRIES):
                # A batch that is removed meanwhile has left a file before.
                with contextlib.suppress(FileNotFoundError):
                    found = self._find(keys)
                    self._known, self._used = self._used, {}
                    return found
        raise OutputError(f"{self._folder}: damaged: files that it lists are missing")

    def _find(self, keys: Set[MessageKey]) -> set[MessageKey]:
        store, folder = self._store, self._folder
        names = store.list(folder)
        ids = pa.array([message_id for *_, message_id, _ in keys], pa.string())
        found = set()
        for name in filter(Again.parse, names):
            found |= _among(self._again(name), keys, ids)
        for batch, number in naming.batches("b", names).items():
            complete = number < self._batch
            for name in naming.partitions(store.list(f"{folder}/{batch}")):
                partition = f"{folder}/{batch}/{name}"
                hits = [_among(each, keys, ids) for each in self.unfinished(partition, complete)]
                if any(hits):
                    # It was counted, but perhaps just now: who did may not have synced it yet.
                    store.sync_dir(partition)
                    found.update(*hits)
        return found

    def unfinished(self, partition: str, complete: bool) -> list[pa.Table]:
        """Return keys in a partition that may be unfinished; raises FileNotFoundError if it is
        gone.

        With ``complete``, the result is empty if the partition is not complete: after the commit of
        its batch nobody reads it, and its messages must be staged again when they are redelivered.
        """
        for _ in range(_TRIES):
            names = self._store.list(partition)
            if complete and naming.sealed_generation(names) is None:
                return []
            # Whoever fills it renames its directory all the time.
            with contextlib.suppress(FileNotFoundError):
                path, segments = self._tail(partition, names)
                return [self._segment(partition, path, each) for each in segments]
        raise OutputError(f"{partition}: damaged: files that it lists are missing")

    def _tail(self, partition: str, names: Sequence[str]) -> tuple[str, list[Segment]]:
        """Where its segments are, and the last ones of each attempt but a settled one.

        Raises FileNotFoundError if the directory has another name now.
        """
        settled = None
        segments: Sequence[Segment]
        if (generation := naming.sealed_generation(names)) is not None:
            path = f"{partition}/{naming.sealed(generation)}"
            manifest = self._manifest(f"{path}/{naming.manifest(generation)}")
            segments = manifest.segments
            settled = generation if manifest.ending.settled else None
        elif holder := Holder.latest(names):
            path = f"{partition}/{holder}"
            segments = counted(path, self._store.list(path), holder.segments)
        else:
            raise FileNotFoundError(partition)
        found: list[Segment] = []
        rows: Counter[int] = Counter()
        for segment in reversed(segments):
            if segment.generation != settled and rows[segment.generation] < _TAIL:
                rows[segment.generation] += segment.rows
                found.append(segment)
        return path, found

    def _manifest(self, file: str) -> PartitionManifest:
        if file not in self._manifests:
            self._manifests[file] = PartitionManifest.parse(self._store.read(file), file)
        return self._manifests[file]

    def _segment(self, partition: str, path: str, segment: Segment) -> pa.Table:
        name, file = f"{partition}/{segment}", f"{path}/{segment}"
        if name not in self._known:
            self._known[name] = _keys(list(rows_of(self._store.read(file), segment, file)))
        return self._used.setdefault(name, self._known[name])

    def _again(self, name: str) -> pa.Table:
        if name not in self._known:
            file = f"{self._folder}/{name}"
            try:
                with pa.ipc.open_stream(self._store.read(file)) as reader:
                    self._known[name] = _keys(list(reader))
            except (pa.ArrowInvalid, KeyError) as error:
                raise OutputError(
                    f"{file}: damaged: remove it; messages that it lists may then be staged twice"
                ) from error
        return self._used.setdefault(name, self._known[name])


def keep(store: Store, folder: str, batch: int) -> None:
    """Driver: record the keys of a batch that may be unfinished, once, before it is removed.

    Raises OutputError for damaged files, and OSError; FileNotFoundError if the batch or the new
    file is removed meanwhile.
    """
    if any(each.batch == batch for each in map(Again.parse, store.list(folder)) if each):
        return
    staged, place = Staged(store, folder, batch + 1), f"{folder}/{naming.batch(batch)}"
    partitions = [f"{place}/{name}" for name in naming.partitions(store.list(place))]
    tables = [table for each in partitions for table in staged.unfinished(each, complete=True)]
    if not (rows := sum(table.num_rows for table in tables)):
        return
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    name = Again(batch, rows, uuid4().hex)
    store.write(f"{folder}/{naming.unnamed(name)}", sink.getvalue())
    store.rename(f"{folder}/{naming.unnamed(name)}", f"{folder}/{name}")
    store.sync_dir(folder)


def prune(store: Store, folder: str, upto: int) -> None:
    """Driver: remove the oldest of these files, and unfinished ones that a dead driver left.

    Unfinished files of batches after ``upto`` stay, as a newer driver may be writing them.
    """
    rows = 0
    names = store.list(folder)
    for each in sorted(filter(None, map(Again.parse, names)), reverse=True):
        if rows and rows + each.rows > _MOST:
            store.remove(f"{folder}/{each}")
        rows += each.rows
    for name in names:
        batch = naming.unnamed_batch(name)
        if batch is not None and batch <= upto:
            store.remove(f"{folder}/{name}")


def _keys(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Keys of rows, as a copy: the file may go, and its bodies."""
    table = pa.Table.from_batches(batches).select(_KEY)
    for index, name in enumerate(_KEY[:3]):
        table = table.set_column(index, name, table[name].dictionary_encode())
    return table.take(pa.array(range(table.num_rows), pa.int64()))


def _among(table: pa.Table, keys: Set[MessageKey], ids: pa.Array) -> set[MessageKey]:
    hits = table.filter(pc.is_in(table["message_id"], ids))
    return set(zip(*(hits[name].to_pylist() for name in _KEY), strict=True)) & keys
