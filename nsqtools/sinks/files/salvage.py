"""What a crash left: work files are cut back to their last whole record and published."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import NSQError, OutputError
from nsqtools.records.compression import method_of
from nsqtools.records.inspection import inspect
from nsqtools.sinks.files import publication, publish

if TYPE_CHECKING:
    from collections.abc import Iterable
    from hashlib import _Hash

    from nsqtools.records.inspection import Inspection
    from nsqtools.records.layout import Layout
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.rules import Aftercare, Rules

log = logging.getLogger(__name__)


def salvage(
    entries: Iterable[Entry], rules: Rules, journal: Journal, aftercare: Aftercare
) -> list[Entry]:
    """Publish the work files of processes that have ended, and go on with what is owed.

    The result is the entries with which that failed. Each is logged, and does not keep the others
    from it.
    """
    failed = []
    for entry in entries:
        work = entry.work_path(rules.output_dir)
        try:
            fd = publish.hold(work)
            try:
                if fd is None:
                    _without_work_file(entry, work, journal, aftercare)
                else:
                    _with_work_file(entry, work, fd, rules, journal, aftercare)
            finally:
                if fd is not None:
                    os.close(fd)
        except (OSError, NSQError) as error:
            failed.append(entry)
            reason = getattr(error, "strerror", None) or str(error)
            log.error("%s, which a crash left behind, is not published: %s", work, reason)
    return failed


def _with_work_file(
    entry: Entry, work: str, fd: int, rules: Rules, journal: Journal, aftercare: Aftercare
) -> None:
    published = entry.published
    if not entry.is_published():
        inspection = good_part(fd, work, published.layout, rules.max_msg_size)
        if not inspection.good:
            rules.retire(work)
            journal.remove(entry)
            return
        entry.published = replace(
            published,
            records=inspection.records,
            size=os.fstat(fd).st_size,
            sha256=digest_of(fd).hexdigest() if rules.digest else "",
        )
        publication.give_name(entry, work, rules, journal, aftercare.owes)
        log.warning(
            "published %s, which a crash left behind: %d records",
            entry.published.name,
            inspection.records,
        )
    publication.complete(entry, work, rules, journal, aftercare)


def _without_work_file(entry: Entry, work: str, journal: Journal, aftercare: Aftercare) -> None:
    path = entry.published.path
    if os.path.lexists(work):
        raise OutputError("another process writes to it")
    if entry.is_published():
        aftercare.record(entry.published)
    if entry.inode and os.path.lexists(path):  # perhaps touched since
        if entry.owes:
            aftercare.settle(entry)
            return
    elif not entry.work_dir_is_there():
        raise OutputError(
            f"the work directory {entry.work_dir} is another one now: mount the one of before, or, "
            f"if that is gone for good, remove {entry.key}.json from the directory .nsqtools"
        )
    elif entry.owes:
        log.warning("%s is gone: --%s is not run for it", path, " and --".join(entry.owes))
    journal.remove(entry)


def good_part(fd: int, path: str, layout: Layout, max_msg_size: int) -> Inspection:
    """Cut an archive back to its last whole record, setting what follows it aside.

    Of a compressed file just the member that a crash kept from being written whole is cut off: it
    was never synced. What follows the last record of a plain one may have been, and be the fault
    of another --format or --delimiter. Raises OSError, for a record that is too big to be read too:
    the file is then as it was.
    """
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        inspection = inspect(
            file,
            layout,
            compression=method_of(path.removesuffix(publish.WORK)),
            max_msg_size=max_msg_size,
        )
    size = os.fstat(fd).st_size
    if inspection.cut_short:
        os.ftruncate(fd, inspection.good)
        os.fsync(fd)
        log.info("%s: %s: cut off", path, inspection.problem)
    elif inspection.good < size:
        aside = publish.set_aside(fd, path, inspection.good, size)
        log.warning(
            "%s: %s: its last %d bytes are put aside in %s",
            path,
            inspection.problem or "torn",
            size - inspection.good,
            aside,
        )
    return inspection


def digest_of(fd: int) -> _Hash:
    """The sha256 of an open file, as far as it goes."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256")
