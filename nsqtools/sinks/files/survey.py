"""The state of each file of an archive directory, for ``nsqtools verify``.

All functions block and raise OSError.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

from nsqtools.sinks.files.disk import DAMAGED, TORN, WORK
from nsqtools.sinks.files.journal import FOLDER, entries
from nsqtools.stores.mounted import is_locked

if TYPE_CHECKING:
    from collections.abc import Iterator

FAULTS = ("orphaned", "damaged")
"""States that need somebody's attention."""


class Surveyed(NamedTuple):
    """A file of an archive.

    ``completed`` is complete; ``owing`` as well, and waits for an upload, for example; ``under
    way`` is being written, or will be completed by the next start; ``orphaned`` is a work file
    that no entry of the journal names; ``torn`` has the end of a file that a crash left;
    ``damaged`` has damaged data that recovery has put aside, or is an entry that cannot be read.
    ``note`` has details for people, or is empty.
    """

    path: str
    state: Literal["completed", "owing", "under way", "orphaned", "torn", "damaged"]
    note: str = ""


def survey(output_dir: str) -> Iterator[Surveyed]:
    """Yield the files of an archive; raises OSError for a directory that cannot be read.

    Files in work directories that the journal names are included, hidden files and symbolic links
    are not. Files that are renamed meanwhile may be missing.
    """
    output_dir = os.path.abspath(output_dir)
    damaged: list[tuple[str, OSError | ValueError]] = []
    owing, works, folders = {}, set(), {output_dir}
    for entry in entries(output_dir, lambda *found: damaged.append(found)):
        works.add(entry.work_path(output_dir))
        if entry.work_dir and os.path.isdir(entry.work_dir):
            folders.add(entry.work_dir)
        if entry.owes:
            owing[entry.completed.path] = f"waits for {entry.owes[0]}"
    for path, error in damaged:
        reason = getattr(error, "strerror", None) or error
        yield Surveyed(path, "damaged", f"the journal entry cannot be read: {reason}")
    for path in sorted({path for folder in folders for path in _regular_files(folder)}):
        if path.endswith(WORK):
            yield from _work_file(path, known=path in works)
        elif path.endswith(TORN):
            yield Surveyed(path, "torn", "put aside: an incomplete end that a crash left")
        elif path.endswith(DAMAGED):
            yield Surveyed(path, "damaged", "put aside: look at it, then move it away")
        elif path in owing:
            yield Surveyed(path, "owing", owing[path])
        elif path.startswith(os.path.join(output_dir, "")):
            yield Surveyed(path, "completed")


def _work_file(path: str, *, known: bool) -> Iterator[Surveyed]:
    if is_locked(path):
        yield Surveyed(path, "under way")
    elif known:
        note = "left by a crash: the next start with the same options completes it"
        yield Surveyed(path, "under way", note)
    elif os.path.lexists(path):
        note = "verify it, then remove .part from its name"
        yield Surveyed(path, "orphaned", f"left by a crash, but unknown to the journal: {note}")


def _regular_files(root: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    os.stat(root)
    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if name != FOLDER]
        for name in names:
            path = os.path.join(folder, name)
            if not name.startswith(".") and _is_regular(path):
                yield path


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
