"""Local directories that are written to: made, rid of what a crash left, and synced.

Those of other file systems, such as HDFS or S3, are left to these.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files.disk import sync_directory
from nsqtools.spark.places import local

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KILLED = ".spark-staging-"


def check_output(place: str, flag: str) -> None:
    """Raise ConfigError unless a local directory can be written to, or made; none is made."""
    path = local(place)
    if path is None:
        return
    found = path
    while not os.path.lexists(found):
        found = found.parent
    code = 0
    if not os.path.isdir(found):
        code = errno.EEXIST if found == path else errno.ENOTDIR
    elif not os.access(found, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        raise ConfigError(f"{flag} {place}: {os.strerror(code)}")


def remove_killed(root: Path, batches: str) -> None:
    """Remove what killed runs of a query left of its batches, whose names begin with ``batches``.

    Spark writes to ``.spark-staging-<uuid>`` before it moves, and not every reader skips that. Such
    a directory is the query's if it has one of a batch in it. Others stay: their jobs may be at
    work.
    """
    for left in root.glob(f"{_KILLED}*"):
        if any(name.startswith(batches) for _, names, _ in os.walk(left) for name in names):
            shutil.rmtree(left, ignore_errors=True)


def sync(root: Path, leaves: Iterable[Path]) -> None:
    """Make the files of directories last, and all names from ``root`` down to them.

    Raises OutputError.
    """
    above: set[Path] = set()
    try:
        for leaf in leaves:
            for entry in os.scandir(leaf):
                if entry.is_file(follow_symlinks=False):
                    sync_file(entry.path)
            above.add(leaf)
            above.update(each for each in leaf.parents if each.is_relative_to(root))
        for folder in sorted(above, key=lambda each: len(each.parts), reverse=True):
            sync_directory(str(folder))
    except OSError as error:
        raise OutputError(f"{error.filename or root}: {error.strerror}") from error


def sync_file(path: str) -> None:
    """Make what is in a file last; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
