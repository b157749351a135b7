"""Local directories that are written to: made, rid of what a crash left, and synced.

Those of other file systems, such as HDFS or S3, are left to these.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files.publish import sync_directory
from nsqtools.spark.places import OURS, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
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


@contextlib.contextmanager
def writing(output: str) -> Iterator[None]:
    """Be one of those who write to an output.

    Who is alone removes what killed ones left: Spark writes to a directory with a dot before it
    moves, and not every reader skips that.
    """
    path = local(output)
    if path is None:
        yield
        return
    folder = path / OURS
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "writers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in path.glob(f"{_KILLED}*"):
                shutil.rmtree(left, ignore_errors=True)
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


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
