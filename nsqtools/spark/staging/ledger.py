"""The batches of a stream: the place of messages between FIN in nsqd and Spark's commit.

The staging has the only copy of these messages, so each step is durable before the next begins:

    <stream>/b<batch>/offset             the batch is prepared: its offset and its plan
    <stream>/b<batch>/p<partition>/<n>   entry n of a partition's log
    <stream>/done-<batch>                the batch was committed
    <stream>/unread-<batch>              it was committed without all of its rows; they are kept
    <stream>/again-<batch>-<rows>        keys of committed messages, for possible redeliveries

* Prepare. A batch is prepared before Spark logs its offset. So a batch in Spark's log without an
  offset here is in another staging, with the only copy of its messages: it is never recreated.
* Claim, add, seal. The log of a partition (see ``log``) decides which attempt may put the next
  entry. The messages of a segment may be finished only once the segment was put.
* Clean. Spark has committed the batch. First all unsealed logs are ended, so no attempt can put an
  entry. Then the batch is marked as done, and then its files are deleted. Now an obsolete attempt
  may succeed with a put, as the name is free again. So each attempt, after putting an entry, looks
  for the marks of committed batches before relying on the entry. If its put succeeded only because
  the file was deleted, the mark was already there.

A delayed driver, or a driver with a checkpoint set back, finds the marks, too. Several of the
newest marks remain, because a listing may miss some while marks are added and removed.

After a crash between a segment's put and its FINs, nsqd delivers the messages again. The staging
recognises these messages, and finishes them without staging them twice (``redelivered``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqtools.config.units import counted
from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.source.plans import LINE, BatchPlan, Offset
from nsqtools.spark.staging import redelivered
from nsqtools.spark.staging.log import EntryKind, PartitionLog, StaleError, damaged
from nsqtools.spark.staging.partitions import Claim, Sealed
from nsqtools.stores import in_threads
from nsqtools.stores.interface import as_output_error, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsqtools.spark.source.plans import Quota
    from nsqtools.stores.interface import Store

log = logging.getLogger(__name__)

_OFFSET = "offset"
_MARKS = 16


class Ledger:
    """The batches of one stream in a store; driver and executors have their own objects.

    All methods but ``clean`` raise OutputError for errors of the store.
    """

    def __init__(self, store: Store, stream: str) -> None:
        self.store = store
        self.folder = stream
        # The newest batch of which all partitions are sealed, and so never change.
        self._complete: tuple[BatchPlan, list[Sealed | None]] | None = None

    def prepare(self, plan: BatchPlan) -> None:
        """Driver: create a batch; an existing one stays.

        Call this before Spark logs the offset, and never after: see ``expect``. Raises StaleError
        if this batch or a later one was committed.
        """
        folder = self._batch(plan.batch)
        with as_output_error(folder):
            created = self.store.put_if_absent(f"{folder}/{_OFFSET}", plan.to_bytes())
            self.store.sync(folder)
        # Check after the put: a driver not yet visible here will find the batch and remove it.
        if created:
            self._check_live(plan.batch)
        else:
            self.expect(plan.offset)

    def expect(self, offset: Offset) -> BatchPlan:
        """Driver: return the plan of a batch in Spark's log, which must be prepared here.

        Raises OutputError for an unprepared batch. Such a batch was prepared in another staging
        directory, and preparing it again would commit it without its finished messages. Raises
        StaleError as ``prepare`` does.
        """
        self._check_live(offset.batch)
        plan = self.required(offset.batch)
        if plan.offset != offset:
            raise self._other_offset(offset.batch)
        return plan

    def required(self, batch: int) -> BatchPlan:
        """Return the plan of a batch; raises OutputError as ``expect`` does."""
        if prepared := self.prepared(batch):
            return prepared
        raise self._missing(batch)

    def _missing(self, batch: int) -> OutputError:
        self._check_live(batch)
        return OutputError(
            f"{self.store.url(self._batch(batch))}: does not exist: the batch is staged "
            "elsewhere: give its previous --staging (stagingLocation), which the driver and all "
            "executors must share; if that staging is lost, so are its messages: give a new "
            "checkpoint"
        )

    def _other_offset(self, batch: int) -> OutputError:
        path = f"{self._batch(batch)}/{_OFFSET}"
        return OutputError(f"{self.store.url(path)}: was prepared for another offset")

    def prepared(self, batch: int) -> BatchPlan | None:
        """Driver: return the plan of a prepared batch; None if it is not prepared.

        Call this before a batch is planned. Spark does not sync its offset log, so after a power
        failure the last offset may be missing there although messages were finished under it.
        """
        path = f"{self._batch(batch)}/{_OFFSET}"
        with as_output_error(path):
            try:
                data = self.store.get(path)
            except FileNotFoundError:
                return None
        try:
            return BatchPlan.from_bytes(data)
        except (ValueError, ConfigError):
            raise damaged(self.store.url(path)) from None

    def claim(self, offset: Offset, k: int, quotas: Sequence[Quota]) -> Claim | Sealed:
        """Executor: return a complete partition, or take over an incomplete one exclusively.

        Raises StaleError if the batch was committed, and OutputError if it is not prepared here,
        because the driver has another staging directory of the same name.
        """
        own = self.partition_log(offset.batch, k, quotas)
        if self._offset(offset.batch) != offset:
            raise self._other_offset(offset.batch)
        with own.explained():
            entries = own.put_last(EntryKind.CLAIM, uuid4().hex)
            self.store.sync(own.path)
            if entries[-1].kind is EntryKind.SEAL:
                return Sealed.read(own, entries[-1], *own.read(entries[-1]))
            own.check()
            if entries[-1].kind is EntryKind.END:
                raise self._stale(offset.batch)
        queues = {quota.queue for quota in quotas}
        known = redelivered.Redelivered(self, offset.batch, k, queues, own, entries)
        return Claim(own, entries, known)

    def _offset(self, batch: int) -> Offset:
        """Return the offset of a prepared batch without its plan, which may be large."""
        path = f"{self._batch(batch)}/{_OFFSET}"
        with as_output_error(path):
            try:
                line, newline, _ = self.store.get(path, 0, LINE).partition(b"\n")
            except FileNotFoundError:
                raise self._missing(batch) from None
        if not newline:  # of an earlier version
            return self.required(batch).offset
        try:
            return Offset.from_json(json.loads(line))
        except (ValueError, ConfigError):
            raise damaged(self.store.url(path)) from None

    def _check_live(self, batch: int) -> None:
        """If this batch or a later one was committed, remove its files and raise StaleError."""
        if self.done() >= batch:
            with contextlib.suppress(OSError):
                self._remove(batch)
            raise self._stale(batch)

    def _stale(self, batch: int) -> StaleError:
        return StaleError(
            f"{self.store.url(self._batch(batch))}: is already committed, so this task or driver "
            "is obsolete; if the checkpoint was restored from a copy, use a new checkpoint"
        )

    def complete(
        self, plan: BatchPlan, numbers: Iterable[int] | None = None
    ) -> list[Sealed | None]:
        """Return partitions of a batch, by default all; None for incomplete or deleted partitions.

        It takes a listing, and two requests for each partition.
        """
        if self._complete and self._complete[0] == plan and numbers is None:
            return self._complete[1]
        folder = self._batch(plan.batch)
        with as_output_error(folder):
            names = self.store.list_below(folder)

            def sealed(k: int) -> Sealed | None:
                own = self.partition_log(plan.batch, k, plan.tasks[k])
                seal = own.seal(names.get(_partition(k), ()))
                return Sealed.read(own, *seal) if seal else None

            chosen = range(len(plan.tasks)) if numbers is None else numbers
            found = in_threads(sealed, chosen, self.store.threads)
        if numbers is None and None not in found:
            self._complete = plan, found
        return found

    def done(self) -> int:
        """Return the newest committed batch; 0 before the first commit."""
        with as_output_error(self.folder):
            return max(_numbers("done-", self.names()), default=0)

    def pending(self) -> BatchPlan | None:
        """Return the plan of the newest batch unless it was committed.

        Raises OSError or OutputError.
        """
        names = self.names()
        newest = max(self.batches(names), default=0)
        return self.prepared(newest) if newest > max(_numbers("done-", names), default=0) else None

    def clean(self, upto: int) -> None:
        """Driver: remove committed batches up to this one, as far as they exist.

        Raises nothing: failures are logged, and the next call tries again. Unread staged messages
        are kept, and logged.
        """
        try:
            names = self.names()
            done = _numbers("done-", names)
            for batch in self.batches(names):
                if batch <= upto:
                    if batch not in done:
                        self._retire(batch)
                    self._remove(batch)
            names = self.names()
            redelivered.prune(self, names)
            for batch in sorted(_numbers("done-", names))[:-_MARKS]:
                self.store.delete(f"{self.folder}/{_mark('done', batch)}")
            self.store.sweep(self.folder)  # only drivers write there, and none relies on success
        except OSError as error:
            place = self.store.url(self.folder)
            log.warning("%s: cannot remove committed rows: %s", place, reason(error))

    def rows(self) -> int:
        """Return the number of staged messages without another certain copy. Raises OSError."""
        places = [(batch, k) for batch in self.kept() for k in self.partitions(batch)]
        logs = in_threads(
            lambda place: self.partition_log(*place).read_on(), places, self.store.threads
        )
        return sum(entry.rows for entries in logs for entry in entries)

    def _retire(self, batch: int) -> None:
        """End the logs of a committed batch, keep keys for redeliveries, mark the batch as done."""
        known = self._complete[0] if self._complete else None
        plan = known if known and known.batch == batch else self.prepared(batch)
        found: list[Sealed | None] = []
        unread: list[int] = []
        if plan:
            try:
                found = self.complete(plan)
            except OutputError:  # a damaged seal is a seal
                found = [None] * len(plan.tasks)
            ended = in_threads(
                lambda k: found[k] is None and self._end(batch, k),
                range(len(found)),
                self.store.threads,
            )
            unread = [k for k, has_rows in enumerate(ended) if has_rows]
        names = self.names()
        if _mark("done", batch) in names:
            return  # marked by another driver, which may have deleted the missing files
        if plan:
            self._remember(plan, names)
        if unread:
            self._put_mark("unread", batch)
            # nsqd may still have some of these messages, and deliver and stage them again.
            log.warning(
                "%s: batch %d was committed, but not all of it was read: finished messages of "
                "partitions %s are in this staging only: see 'Read the staging' in nsqtools help "
                "lake",
                *(self.store.url(self._batch(batch)), batch, ", ".join(map(str, unread))),
            )
        self._put_mark("done", batch)

    def _end(self, batch: int, k: int) -> bool:
        """End a log that is not known to be sealed; return whether it has rows, all unread."""
        entries = self.partition_log(batch, k).put_last(EntryKind.END, uuid4().hex)
        return entries[-1].kind is EntryKind.END and any(entry.rows for entry in entries)

    def _remember(self, plan: BatchPlan, names: Iterable[str]) -> None:
        """Keep keys for redeliveries.

        ``complete`` is asked again, because its first answer may have failed or be too early. It
        makes no requests if the batch was complete.
        """
        if any(kept.batch == plan.batch for kept in redelivered.kept_keys(names)):
            return
        try:
            redelivered.keep(self, plan.batch, self.complete(plan))
        except (OutputError, OSError) as error:
            full = (errno.ENOSPC, errno.EDQUOT)  # removing the batch makes room
            if isinstance(error, OSError) and error.errno not in full:
                raise
            log.warning("messages of a committed batch may be staged twice: %s", reason(error))

    def _remove(self, batch: int) -> None:
        """Delete the files of a committed batch, unless rows are unread."""
        if _mark("unread", batch) not in self.names():
            self.store.delete(self._batch(batch))

    def _put_mark(self, kind: str, batch: int) -> None:
        self.store.put_if_absent(f"{self.folder}/{_mark(kind, batch)}", uuid4().hex.encode())

    def names(self) -> Sequence[str]:
        """Return the names in the folder of the stream. Raises OSError."""
        return self.store.list(self.folder)

    def batches(self, names: Iterable[str]) -> list[int]:
        """Return the batches among the names, in order."""
        return sorted(_numbers("b", names))

    def kept(self) -> list[int]:
        """Return the batches whose messages may be the only copies, in order. Raises OSError."""
        names = self.names()
        read = _numbers("done-", names) - _numbers("unread-", names)
        return [batch for batch in self.batches(names) if batch not in read]

    def partitions(self, batch: int) -> list[int]:
        """Return the numbers of a batch's partitions with a log. Raises OSError."""
        return sorted(_numbers("p", self.store.list(self._batch(batch))))

    def partition_log(self, batch: int, k: int, quotas: Sequence[Quota] = ()) -> PartitionLog:
        """Return the log of a partition; ``quotas`` are those of its task."""
        path = f"{self._batch(batch)}/{_partition(k)}"
        return PartitionLog(self.store, path, lambda: self._check_live(batch), quotas)

    def _batch(self, batch: int) -> str:
        return f"{self.folder}/b{batch:010d}"


def refuse_orphans(store: Store, own: str) -> None:
    """Raise OutputError if a staging has messages of streams whose names do not begin with own."""
    with as_output_error(store.place):
        for stream in store.list(""):
            if not stream.startswith(own) and (rows := Ledger(store, stream).rows()):
                raise OutputError(
                    f"{store.place}: has {counted(rows, 'message')} of another checkpoint (stream "
                    f"{stream}), which may be the only copies: continue with that checkpoint or, "
                    "if it is lost, see 'Read the staging' in nsqtools help lake"
                )


def _partition(k: int) -> str:
    return f"p{k:05d}"


def _mark(kind: str, batch: int) -> str:
    return f"{kind}-{batch:010d}"


def _numbers(prefix: str, names: Iterable[str]) -> set[int]:
    found = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return {int(number) for number in found if number.isdecimal()}
