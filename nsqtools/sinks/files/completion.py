"""Completion of work files.

A rotated file is complete. A file that a crash left is first cut back to its last complete record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.errors import NSQError, OutputError
from nsqtools.policy.filenames import REV, Revisions
from nsqtools.sinks.files import disk
from nsqtools.sinks.files.journal import DELETE, FileState
from nsqtools.sinks.files.workfile import digest_of, good_part
from nsqtools.sinks.threads import as_output_error
from nsqtools.stores.pinned import pinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqtools.records.layout import Layout
    from nsqtools.sinks.files.aftercare import Aftercare
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.rules import Rules
    from nsqtools.sinks.files.workfile import GoodPart

log = logging.getLogger(__name__)


class Completion:
    """Completes files by the rules, and records the progress in the journal."""

    def __init__(self, rules: Rules, journal: Journal, aftercare: Aftercare) -> None:
        self.rules = rules
        self.journal = journal
        self.revisions = Revisions()
        self.left: list[Entry] = []
        """Entries of ended processes whose files could not be completed, or owe a manifest line."""
        self.damaged: list[str] = []
        """The paths of files with damaged data that was set aside."""
        self._aftercare = aftercare

    def give_name(self, entry: Entry, work: str) -> None:
        """Complete a complete, synced work file under the first of its names that is free.

        The journal has the name and the inode before the file gets the name. ``complete`` must
        follow. Raises OSError, or OutputError if a name without ``<REV>`` is taken.
        """

        def mark(status: os.stat_result) -> None:
            entry.inode, entry.mtime_ns = status.st_ino, status.st_mtime_ns
            entry.owes = self._aftercare.owes
            self.journal.write(entry)

        root = self.rules.output_dir
        for relative, revision in self._names(entry):
            path = self.rules.target_path(relative)
            entry.revision = revision
            entry.completed = replace(entry.completed, name=relative, path=path)
            with (
                pinned(work, entry.root(root)) as file,
                pinned(path, root, make=True) as target,
                contextlib.suppress(FileExistsError),
            ):
                disk.give_name(file, target, target.beside(entry.copy_name()), mark)
                return
        raise OutputError(f"{self.rules.target_path(entry.completed.name)} exists: move it away")

    def complete(self, entry: Entry, work: str) -> None:
        """Finish the completion of a file that has its final name; raises OSError."""
        with pinned(entry.completed.path, self.rules.output_dir) as file:
            file.sync()
        self._retire(entry, work)
        self._aftercare.record(entry)
        if not entry.owes and self.journal.has(entry):
            self.journal.remove(entry)

    def follow(self, entry: Entry) -> None:
        """Count the file and do what the options ask for, once, after ``complete``."""
        self._aftercare.follow(entry)

    def good_part(self, fd: int, path: str, layout: Layout, root: str) -> GoodPart:
        """Reduce a file to its whole records, as ``good_part`` does, and note its damage."""
        found = good_part(fd, path, layout, self.rules.max_msg_size, root)
        if found.damaged:
            self.damaged.append(found.damaged)
        return found

    def discard(self, entry: Entry, work: str) -> None:
        """Remove a work file without records."""
        self._retire(entry, work)
        self.journal.remove(entry)

    def _retire(self, entry: Entry, work: str) -> None:
        disk.retire(work, entry.root(self.rules.output_dir), tidies=bool(entry.work_dir))

    def _names(self, entry: Entry) -> Iterator[tuple[str, int]]:
        """Yield the intended name and revision, then further revisions while names are taken."""
        yield entry.completed.name, entry.revision
        while REV in entry.base:
            if (revision := self.revisions.take(entry.base)) > entry.revision:
                yield posixpath.normpath(entry.base.replace(REV, f"-{revision:06d}")), revision

    # Recovery after a crash.

    def salvage(self, entries: Iterable[Entry]) -> None:
        """Complete the work files of ended processes, and do what completed ones still owe.

        Entries that fail are in ``left``. Each failure is logged, and the other entries are
        processed all the same.
        """
        for entry in entries:
            try:
                self._salvage(entry)
            except (OSError, NSQError) as error:
                self.left.append(entry)
                log.error("%s", self._failure(entry, error))

    def resume(self, path: str) -> None:
        """Try again with a completed file that is left; raises OSError or NSQError."""
        for entry in self.left.copy():  # another topic's thread may remove one
            if entry.completed.path == path and self.journal.has(entry):
                self._salvage(entry)
                self.left.remove(entry)
                return

    def _failure(self, entry: Entry, error: OSError | NSQError) -> str:
        reason = as_output_error(error) if isinstance(error, OSError) else error
        work = entry.work_path(self.rules.output_dir)
        if os.path.lexists(work) or not entry.owes:
            return f"cannot complete {work}, which a crash left behind: {reason}"
        return f"{entry.completed.path} still waits for {entry.owes[0]}: {reason}"

    def _salvage(self, entry: Entry) -> None:
        work = entry.work_path(self.rules.output_dir)
        match entry.state(self.rules.output_dir):
            case FileState.UNDER_WAY:
                self._complete_leftover(entry, work)
            case FileState.NAMED:
                self.complete(entry, work)
                self.follow(entry)
            case FileState.OWING:
                self.complete(entry, work)
                self._aftercare.pay(entry)
            case FileState.GONE if not entry.work_dir_is_there():
                raise OutputError(
                    f"the work directory {entry.work_dir} has been replaced: mount the previous "
                    f"one or, if it is lost, remove {entry.key}.json from the directory .nsqtools"
                )
            case FileState.GONE:
                if entry.owes[:1] != (DELETE,) and not os.path.lexists(entry.completed.path):
                    log.warning("%s", _absence(entry, work))
                self.journal.remove(entry)

    def _complete_leftover(self, entry: Entry, work: str) -> None:
        root = self.rules.output_dir
        fd = disk.hold(work, entry.root(root))
        if fd is None:
            raise OutputError("another process writes to it")
        try:
            found = self.good_part(fd, work, entry.completed.layout, entry.root(root))
            fd = found.fd
            if not found.good:
                self.discard(entry, work)
                return
            if entry.inode and entry.completed.size:  # empty, it was to reserve the name
                with (
                    contextlib.suppress(FileNotFoundError),
                    pinned(entry.completed.path, root) as target,
                ):
                    target.remove_empty()
            entry.completed = replace(
                entry.completed,
                records=found.records,
                size=found.good,
                sha256=digest_of(fd).hexdigest() if self.rules.options.manifest else "",
            )
            self.give_name(entry, work)
            name = entry.completed.name
            records = counted(found.records, "record")
            log.warning("completed %s, which a crash left behind: %s", name, records)
            self.complete(entry, work)
            self.follow(entry)
        finally:
            os.close(fd)


def _absence(entry: Entry, work: str) -> str:
    if entry.owes:
        return f"{entry.completed.path} is gone: it waited for {entry.owes[0]}"
    return f"{work} is gone: another program removed it, or the crash came before its first record"
