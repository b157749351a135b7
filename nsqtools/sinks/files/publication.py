"""From a work file to a published one.

One that is rotated is complete; one that a crash left is cut back to its last whole record before.
"""

from __future__ import annotations

import logging
import os
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import NSQError, OutputError
from nsqtools.policy.filenames import REV
from nsqtools.sinks.files import disk
from nsqtools.sinks.files.workfile import digest_of, good_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsqtools.sinks.files.aftercare import Care
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.rules import Rules

log = logging.getLogger(__name__)


class Publication:
    """Publishes files as the rules say; the journal knows how far it has got with each."""

    def __init__(self, rules: Rules, journal: Journal, care: Care) -> None:
        self.rules = rules
        self.journal = journal
        self._care = care

    def give_name(self, entry: Entry, work: str) -> None:
        """Publish a complete, synced work file by the first of its names that is free.

        The journal knows the name and the file before it has the name. ``complete`` does the rest.
        Raises OSError, or OutputError when a name without ``<REV>`` is taken.
        """

        def mark(status: os.stat_result) -> None:
            entry.inode, entry.mtime_ns = status.st_ino, status.st_mtime_ns
            entry.owes = self._care.owes
            self.journal.write(entry)

        for relative, revision in self._names(entry):
            target = self.rules.target_path(relative)
            entry.revision = revision
            entry.published = replace(entry.published, name=relative, path=target)
            try:
                disk.give_name(work, target, entry.copy_path(), mark)
            except FileExistsError:
                continue
            return
        raise OutputError(f"{self.rules.target_path(entry.published.name)} exists: move it away")

    def complete(self, entry: Entry, work: str) -> None:
        """Finish the publication of a file that has its name; raises OSError."""
        disk.sync_directory(os.path.dirname(entry.published.path))
        self._care.record(entry.published)
        self.rules.retire(work)
        if not entry.owes:
            self.journal.remove(entry)
        self._care.follow(entry)

    def discard(self, entry: Entry, work: str) -> None:
        """Remove a work file in which there is nothing to keep."""
        self.rules.retire(work)
        self.journal.remove(entry)

    def _names(self, entry: Entry) -> Iterator[tuple[str, int]]:
        """The name, with its revision, that it is to have, and those while others have that."""
        yield entry.published.name, entry.revision
        while REV in entry.base:
            if (revision := self.rules.revisions.take(entry.base)) > entry.revision:
                yield posixpath.normpath(entry.base.replace(REV, f"-{revision:06d}")), revision

    # What a crash left.

    def salvage(self, entries: Iterable[Entry]) -> list[Entry]:
        """Publish the work files of processes that have ended, and go on with what is owed.

        The result is the entries with which that failed. Each is logged, and does not keep the
        others from it.
        """
        failed = []
        for entry in entries:
            work = entry.work_path(self.rules.output_dir)
            try:
                fd = disk.hold(work)
                if fd is None:
                    self._without_work_file(entry, work)
                    continue
                try:
                    self._with_work_file(entry, work, fd)
                finally:
                    os.close(fd)
            except (OSError, NSQError) as error:
                failed.append(entry)
                reason = getattr(error, "strerror", None) or str(error)
                log.error("%s, which a crash left behind, is not published: %s", work, reason)
        return failed

    def _with_work_file(self, entry: Entry, work: str, fd: int) -> None:
        published = entry.published
        if not entry.is_published():
            found = good_part(fd, work, published.layout, self.rules.max_msg_size)
            if not found.good:
                self.discard(entry, work)
                return
            entry.published = replace(
                published,
                records=found.records,
                size=os.fstat(fd).st_size,
                sha256=digest_of(fd).hexdigest() if self.rules.options.manifest else "",
            )
            self.give_name(entry, work)
            name = entry.published.name
            log.warning("published %s, which a crash left behind: %d records", name, found.records)
        self.complete(entry, work)

    def _without_work_file(self, entry: Entry, work: str) -> None:
        path = entry.published.path
        if os.path.lexists(work):
            raise OutputError("another process writes to it")
        if entry.is_published():
            self._care.record(entry.published)
        if entry.inode and os.path.lexists(path):  # perhaps touched since
            if entry.owes:
                self._care.settle(entry)
                return
        elif not entry.work_dir_is_there():
            raise OutputError(
                f"the work directory {entry.work_dir} is another one now: mount the one of before, "
                f"or, if that is gone for good, remove {entry.key}.json from the directory "
                ".nsqtools"
            )
        elif entry.owes:
            log.warning("%s is gone: --on-rotate is not run for it", path)
        self.journal.remove(entry)
