"""The staging of a stream: where messages are between FIN in nsqd and Spark's commit.

It has the only copy of them, so each step is made to last before the next, and one name in one
directory says what counts:

    <root>/<stream>/b<batch>/p<partition>/a-<generation>-<segments>-<attempt>/   being filled
                                          sealed-<generation>/                   complete
    <root>/<stream>/done-<batch>-<uuid>/   committed, and removed but for the name of the newest
    <root>/<stream>/unread-<batch>-<uuid>/ committed without all of its rows, for somebody to see
    <root>/<stream>/again-<batch>-...      what of such batches may come again

A partition has exactly one such directory, from ``prepare`` to ``clean``; its name is changed by
rename alone. Whoever wants it, renames it, and of two who try from the same name one succeeds.

* Prepare. A batch is made before Spark logs its offset. So one that is logged and is not here is
  in another staging, with the only copy of what was finished under it: it is not made anew.
* Claim. An attempt renames the directory to its own name with the next generation, and goes on
  where the other was. Nobody needs to know whether the other is dead.
* Add. A segment is written, fsynced, and then counted, by a rename of the directory from
  ``a-7-41-<mine>`` to ``a-7-42-<mine>``. Only then may its messages be finished. A segment that
  is counted is in the name that an adopter renames. One whose writer was overtaken is not, as
  that rename finds no ``a-7-41-<mine>``: FencedError, and nothing of it may be finished. This is a
  change to the parent by name, not a look at it, so that no cache of NFS can answer it.
* What counts. Segment ``n`` counts if ``n`` is less than the number in the directory's name. A
  segment that was written but not counted is not adopted: nsqd delivers its messages again.
  Between looking up a path and using it an overtaken attempt can still leave a file in the
  directory. It has the generation of its writer, and all who wrote the segment ``n`` before it was
  counted have a lower one than who counted it; nobody writes it after. So of several files for
  one ``n`` the highest generation counts.
* Seal. The list of segments is written and fsynced under the generation's name, then the
  directory is renamed to ``sealed-<generation>``, which nobody claims any more. The list also says
  how the attempt ended: that is how the driver learns of it.
* Clean. Spark has committed the batch. It is renamed before it is removed, so nobody reads half a
  batch, and the new name is what remains: a driver that wakes up late, or one whose checkpoint
  was set back, must not make the batch anew and fill it with other messages.

After a crash between counting a segment and its FINs nsqd delivers its messages again: they are
known by what is here, and finished without being staged twice (again.py).
"""

# size: the steps that keep a message safe are read together

from __future__ import annotations

import contextlib
import errno
import json
import logging
import zlib
from typing import TYPE_CHECKING, Self
from uuid import uuid4

import pyarrow as pa

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark import again, naming
from nsqtools.spark.naming import Holder, Segment
from nsqtools.spark.plans import Offset
from nsqtools.spark.segments import (
    PartitionManifest,
    as_output_error,
    counted,
    damaged,
    reason_of,
    rows_of,
)
from nsqtools.spark.stores import aside_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from nsqtools.spark.again import MessageKey
    from nsqtools.spark.segments import Ending
    from nsqtools.spark.stores import Store

log = logging.getLogger(__name__)

ROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("nsqd", pa.string()),
        ("message_id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("attempts", pa.int32()),
        ("body", pa.binary()),
    ]
)
"""``nsqd`` is host:tcp_port, ``message_id`` 16 hex digits, ``timestamp`` when it was published."""

_TWICE = "messages of a committed batch may be staged twice: %s"
_TRIES = 100
"""A holder that adds segments changes the name often, but not as fast as it can be read."""


class FencedError(OutputError):
    """Another attempt has taken over the partition; ``add`` or ``seal`` had no effect."""


class StaleError(FencedError):
    """The batch was committed; this task or driver is obsolete."""


class Ledger:
    """The batches of one stream below ``root``; driver and executors have their own objects.

    All methods but ``clean`` raise OutputError for errors of the store.
    """

    def __init__(self, store: Store, root: str, stream: str) -> None:
        self._store = store
        self._root = root
        self._dir = f"{root}/{stream}"

    def prepare(self, offset: Offset) -> None:
        """Driver: create the partitions of a batch, all or none; existing ones stay.

        Call this before Spark logs the offset, and never after: see ``expect``. Raises StaleError
        if this batch or a later one was cleaned.
        """
        folder = self._batch(offset.batch)
        with as_output_error(folder):
            try:
                self._prepare(offset)
            except FileNotFoundError as error:
                self._check_not_cleaned(offset.batch)
                raise OutputError(f"{folder}: damaged, or removed by another program") from error

    def _prepare(self, offset: Offset) -> None:
        store, batch, folder = self._store, offset.batch, self._batch(offset.batch)
        store.make_dir(self._dir)
        if naming.batch(batch) not in store.list(self._dir):
            new = f"{self._dir}/{naming.new(batch, uuid4().hex)}"
            partitions = [f"{new}/{naming.partition(k)}" for k in range(len(offset.quotas))]
            store.make_dir(new)
            for path in partitions:
                store.make_dir(f"{path}/{naming.NOBODY}")
            for path in partitions:
                store.sync_dir(path)
            store.write(f"{new}/{naming.OFFSET}", json.dumps(offset.to_json()).encode())
            store.sync_dir(new)
            try:
                store.rename(new, folder)
            except FileExistsError:  # by another driver
                store.remove(new)
        # Also of a batch that is there: who made it may have been stopped before this.
        store.sync_dir(self._dir)
        store.sync_dir(self._root)
        with contextlib.suppress(PermissionError):
            store.sync_dir(self._root.rpartition("/")[0] or "/")
        staged = self.staged(batch)
        if staged is None:
            raise FileNotFoundError(folder)
        if staged != offset:
            raise OutputError(f"{folder}: was prepared for another offset: {staged.to_json()}")
        # Only now: a cleaner that is not seen here will find the batch and rename it.
        self._check_not_cleaned(batch)

    def expect(self, offset: Offset) -> None:
        """Driver: check that a batch in Spark's log is prepared here.

        Raises OutputError if it is not. It was then prepared in another staging directory, and
        preparing it again would commit it without the messages that were finished under it. Raises
        StaleError as ``prepare`` does.
        """
        folder = self._batch(offset.batch)
        with as_output_error(folder), contextlib.suppress(FileNotFoundError):
            self._check_not_cleaned(offset.batch)
        staged = self.staged(offset.batch)
        if staged is None:
            raise OutputError(
                f"{folder}: does not exist: the unfinished batch is staged elsewhere: give the "
                "previous --staging (stagingLocation)"
            )
        if staged != offset:
            raise OutputError(f"{folder}: was prepared for another offset: {staged.to_json()}")

    def _check_not_cleaned(self, batch: int) -> None:
        """Raise StaleError if this batch or a later one was committed; what we made goes then."""
        if (cleaned := self.cleaned()) >= batch:
            folder = self._batch(batch)
            with contextlib.suppress(OSError):  # no task will be told of it
                self._retire(batch)
            raise StaleError(
                f"{folder}: batch {cleaned} was committed and its rows removed, but the checkpoint"
                " does not contain the commit (was it restored from a copy?): use a new "
                "checkpoint directory"
            )

    def staged(self, batch: int) -> Offset | None:
        """Driver: return the offset that a batch was prepared for; None if it is not prepared.

        Call this before a batch is planned. Spark does not sync its offset log, so after a power
        failure the last offset may be missing there although messages were finished under it.
        """
        file = f"{self._batch(batch)}/{naming.OFFSET}"
        with as_output_error(file):
            try:
                data = self._store.read(file).to_pybytes()
            except FileNotFoundError:
                return None
        try:
            return Offset.from_json(json.loads(data))
        except (ValueError, ConfigError):
            raise damaged(file) from None

    def claim(self, batch: int, k: int) -> Claim | Sealed:
        """Executor: return a complete partition, or take over an incomplete one exclusively.

        Raises StaleError if the batch was committed.
        """
        store, partition = self._store, f"{self._batch(batch)}/{naming.partition(k)}"
        attempt = uuid4().hex
        for _ in range(_TRIES):
            names = self._entries(batch, partition)
            if sealed := Sealed.find(store, partition, names):
                return sealed
            holder = Holder.latest(names)
            if holder is None:
                continue
            mine = holder._replace(generation=holder.generation + 1, attempt=attempt)
            with as_output_error(partition):
                try:
                    store.rename(f"{partition}/{holder}", f"{partition}/{mine}")
                except FileNotFoundError:
                    continue
            return Claim(store, partition, mine, again.Staged(store, self._dir, batch))
        raise OutputError(f"{partition}: damaged: no task can claim it")

    def complete(self, batch: int, partitions: int) -> list[Sealed | None]:
        """Driver: return the partitions of a batch; None for one that is incomplete or gone."""
        places = [f"{self._batch(batch)}/{naming.partition(k)}" for k in range(partitions)]
        return [self._complete(place) for place in places]

    def _complete(self, partition: str) -> Sealed | None:
        with as_output_error(partition):
            try:
                return Sealed.find(self._store, partition, self._store.list(partition))
            except (FileNotFoundError, StaleError):
                return None

    def cleaned(self) -> int:
        """Driver: return the newest committed batch; 0 for none."""
        with as_output_error(self._dir), contextlib.suppress(FileNotFoundError):
            names = self._store.list(self._dir)
            gone = naming.batches("done-", names) | naming.batches("unread-", names)
            return max(gone.values(), default=0)
        return 0

    def clean(self, upto: int) -> None:
        """Driver: remove committed batches up to this one, as far as they exist.

        Raises nothing: failures are logged, and the next call tries again. Staged messages that
        were not read are kept under another name, which is logged.
        """
        try:
            self._clean(upto)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s: cannot remove committed rows: %s", self._dir, reason_of(error))

    def _clean(self, upto: int) -> None:
        store = self._store
        for batch in naming.batches("b", store.list(self._dir)).values():
            if batch <= upto:
                with contextlib.suppress(FileNotFoundError):  # another driver is faster
                    self._retire(batch)
        store.sync_dir(self._dir)
        again.prune(store, self._dir, upto)
        names = store.list(self._dir)
        cleaned = naming.batches("done-", names)
        newest = max(cleaned.values(), default=-1)
        for name, batch in (cleaned | naming.batches("new-", names)).items():
            path = f"{self._dir}/{name}"
            if name in cleaned and batch == newest:
                for child in store.list(path):
                    store.remove(f"{path}/{child}")
            elif batch <= upto:
                store.remove(path)
        # What a driver that was killed has left of files on their way.
        for name in names:
            if (aside := naming.aside_batch(name)) is not None and aside <= upto:
                store.remove(f"{self._dir}/{name}")
        root, _, stream = self._dir.rpartition("/")
        for name in store.list(root):
            if name.startswith(aside_of(stream)):
                store.remove(f"{root}/{name}")

    def _retire(self, batch: int) -> None:
        """Give a committed batch its last name; raises FileNotFoundError if it is gone."""
        self._remember(batch)
        folder, unread = self._batch(batch), self._unread(batch)
        name = (naming.unread if unread else naming.done)(batch, uuid4().hex)
        self._store.rename(folder, f"{self._dir}/{name}")
        if unread:
            # nsqd may have some of them yet, which come again, and are staged then.
            log.warning(
                "%s: batch %d was committed, but not all of it was read: messages of %s that were"
                " finished in nsqd exist only there",
                *(f"{self._dir}/{name}", batch, ", ".join(unread)),
            )

    def _remember(self, batch: int) -> None:
        """Keep what may come again; raises FileNotFoundError if the batch is gone."""
        for _ in range(_TRIES):
            try:
                return again.keep(self._store, self._dir, batch)
            except FileNotFoundError:  # or the new file is, by another driver
                self._store.list(self._batch(batch))
            except OutputError as error:
                return log.warning(_TWICE, error)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return log.warning(_TWICE, f"{self._dir}: {reason_of(error)}")  # make room
        return None

    def _unread(self, batch: int) -> list[str]:
        """Partitions with messages that Spark has committed the batch without."""
        store, folder, unread = self._store, self._batch(batch), []
        for name in naming.partitions(store.list(folder)):
            holder = None
            with contextlib.suppress(FileNotFoundError):  # damaged
                holder = Holder.latest(store.list(f"{folder}/{name}"))
            if holder and holder.segments:
                unread.append(name)
        return unread

    def _entries(self, batch: int, partition: str) -> list[str]:
        store = self._store
        with as_output_error(partition):
            try:
                return store.list(partition)
            except FileNotFoundError:
                pass
            try:
                names = store.list(self._dir)
            except FileNotFoundError:
                raise OutputError(
                    f"{self._dir}: does not exist: the staging must be a directory that the driver "
                    "and all executors share"
                ) from None
            if naming.batch(batch) in names:
                raise OutputError(
                    f"{partition}: damaged: the partition is missing, although its batch exists"
                )
            raise StaleError(f"{partition}: its batch was committed: this task is obsolete")

    def _batch(self, batch: int) -> str:
        return f"{self._dir}/{naming.batch(batch)}"


class Claim:
    """A partition that this attempt fills; not thread-safe.

    After an error it cannot be used: messages that were not acknowledged must not be finished, and
    the next attempt continues with those that were.
    """

    def __init__(self, store: Store, partition: str, holder: Holder, staged: again.Staged) -> None:
        self._store = store
        self._partition = partition
        self._holder = holder
        self._staged = staged
        self._usable = True
        with self._step():
            store.sync_dir(partition)  # before a file has the generation, which must be its alone
            self._segments = _adopt(store, self._path, holder.segments)

    @property
    def rows(self) -> int:
        """The number of rows that count, including those of earlier attempts."""
        return sum(segment.rows for segment in self._segments)

    def staged(self, keys: Set[MessageKey]) -> set[MessageKey]:
        """Return which redelivered messages are staged; they must be finished, but not added.

        Raises OutputError.
        """
        return self._staged.find(keys)

    def add(self, batch: pa.RecordBatch) -> None:
        """Store rows of ROW_SCHEMA durably; afterwards their messages may be finished.

        Raises FencedError if another attempt has taken over, or OutputError; the messages must not
        be finished then.
        """
        with self._step():
            data = _serialise(batch)
            holder = self._holder
            segment = Segment(holder.segments, holder.generation, batch.num_rows, zlib.crc32(data))
            self._store.write(f"{self._path}/{segment}", data)
            self._store.sync_dir(self._path)
            self._rename(str(longer := holder._replace(segments=holder.segments + 1)))
            self._holder = longer
            self._segments.append(segment)

    def seal(self, ending: Ending) -> Sealed:
        """Mark the partition as complete; raises as ``add`` does."""
        generation = self._holder.generation
        manifest = PartitionManifest(tuple(self._segments), ending)
        with self._step():
            file = f"{self._path}/{naming.manifest(generation)}"
            self._store.write(file, manifest.to_bytes())
            self._store.sync_dir(self._path)
            self._rename(sealed := naming.sealed(generation))
        self._usable = False
        return Sealed(self._store, f"{self._partition}/{sealed}", manifest)

    @property
    def _path(self) -> str:
        return f"{self._partition}/{self._holder}"

    def _rename(self, name: str) -> None:
        self._store.rename(self._path, f"{self._partition}/{name}")
        self._store.sync_dir(self._partition)

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        if not self._usable:
            raise OutputError(f"{self._path}: is sealed, or an earlier step has failed")
        self._usable = False
        try:
            with as_output_error(self._path):
                yield
        except FileNotFoundError as error:
            raise FencedError(
                f"{self._path}: taken over by another attempt of this task, or committed"
            ) from error
        self._usable = True


class Sealed:
    """A complete partition, which has the same rows for every reader."""

    def __init__(self, store: Store, path: str, manifest: PartitionManifest) -> None:
        self._store = store
        self._path = path
        self._segments = manifest.segments
        self.ending = manifest.ending

    @classmethod
    def find(cls, store: Store, partition: str, names: Sequence[str]) -> Self | None:
        """Return the complete partition among the names of its directory, or None.

        Raises StaleError, or OutputError if it is damaged.
        """
        generation = naming.sealed_generation(names)
        if generation is None:
            return None
        path = f"{partition}/{naming.sealed(generation)}"
        file = f"{path}/{naming.manifest(generation)}"
        return cls(store, path, PartitionManifest.parse(_read(store, path, file), file))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(segment.rows for segment in self._segments)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they were added, in ROW_SCHEMA, memory-mapped if possible.

        Raises StaleError if the batch was committed meanwhile, OutputError for a damaged file.
        """
        for segment in self._segments:
            file = f"{self._path}/{segment}"
            data = _read(self._store, self._path, file)
            yield from rows_of(data, segment, file)


def _adopt(store: Store, path: str, count: int) -> list[Segment]:
    """The segments that count, in order; whatever else is there is removed."""
    names = store.list(path)
    adopted = counted(path, names, count)
    for name in set(names).difference(map(str, adopted)):
        with contextlib.suppress(OSError):  # it does not count, it only takes room
            store.remove(f"{path}/{name}")
    return adopted


def _serialise(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROW_SCHEMA) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _read(store: Store, path: str, file: str) -> pa.Buffer:
    with as_output_error(file):
        try:
            return store.read(file)
        except FileNotFoundError:
            pass
        try:
            store.list(path)
        except FileNotFoundError:
            raise StaleError(f"{path}: its batch was committed: this task is obsolete") from None
        raise damaged(file)
