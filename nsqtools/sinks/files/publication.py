"""From a complete work file to a published one, for files that are rotated and for leftovers."""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqtools.errors import OutputError
from nsqtools.policy.filenames import REV
from nsqtools.sinks.files import publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.policy.filenames import Revisions
    from nsqtools.sinks.files.journal import Entry, Journal
    from nsqtools.sinks.files.rules import Aftercare, Rules


def give_name(
    entry: Entry, work: str, rules: Rules, journal: Journal, owes: tuple[str, ...]
) -> None:
    """Publish a complete, synced work file by the first of its names that is free.

    The journal knows the name and the file before it has the name. ``complete`` does the rest.
    Raises OSError, or OutputError when a name without ``<REV>`` is taken.
    """

    def mark(status: os.stat_result) -> None:
        entry.inode, entry.mtime_ns, entry.owes = status.st_ino, status.st_mtime_ns, owes
        journal.write(entry)

    for relative, revision in _names(entry, rules.revisions):
        target = rules.target_path(relative)
        entry.revision = revision
        entry.published = replace(entry.published, name=relative, path=target)
        try:
            publish.give_name(work, target, entry.copy_path(), mark)
        except FileExistsError:
            continue
        return
    raise OutputError(f"{rules.target_path(entry.published.name)} exists: move it away")


def complete(entry: Entry, work: str, rules: Rules, journal: Journal, aftercare: Aftercare) -> None:
    """Finish the publication of a file that has its name; raises OSError."""
    publish.sync_directory(os.path.dirname(entry.published.path))
    aftercare.record(entry.published)
    rules.retire(work)
    if not entry.owes:
        journal.remove(entry)
    aftercare.follow(entry)


def _names(entry: Entry, revisions: Revisions) -> Iterator[tuple[str, int]]:
    """The names, with revisions, that it is to have and that it gets while others have them."""
    yield entry.published.name, entry.revision
    while REV in entry.base:
        if (revision := revisions.take(entry.base)) > entry.revision:
            yield posixpath.normpath(entry.base.replace(REV, f"-{revision:06d}")), revision
