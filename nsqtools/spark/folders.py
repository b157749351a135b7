"""Local output directories: checks, removal of leftovers, and syncing.

Other file systems, such as HDFS or S3, need none of this.
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
    """Raise ConfigError unless a local directory is writable or can be created; creates nothing."""
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
    """Remove leftovers of killed runs, whose batch directories begin with ``batches``.

    Spark writes to ``.spark-staging-<uuid>`` before it moves files, and not every reader skips
    that. Such a directory belongs to the query if it contains one of its batches. Others stay, as
    their jobs may be running.
    """
    for left in root.glob(f"{_KILLED}*"):
        if any(name.startswith(batches) for _, names, _ in os.walk(left) for name in names):
            shutil.rmtree(left, ignore_errors=True)


def sync(root: Path, leaves: Iterable[Path]) -> None:
    """Make the files of directories durable, and all names from ``root`` down to them.

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
    """Make the content of a file durable; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
