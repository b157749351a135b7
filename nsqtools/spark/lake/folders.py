"""Local directories of outputs and checkpoints: checks and syncing.

Other file systems, such as HDFS or S3, need none of this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from heapq import nlargest

from nsqtools.errors import ConfigError, OutputError
from nsqtools.stores import open_store
from nsqtools.stores.pinned import sync_directory
from nsqtools.stores.places import local

_ENTRY = re.compile(r"\.?([0-9]+)(?:\.crc)?")
_NEWEST = 4
"""Entries that a batch can have written: its own and its checksum, and those of one before."""


def check_output(place: str, flag: str) -> None:
    """Raise ConfigError unless a local directory is writable or can be created; creates nothing.

    Of a store only the URL is checked.
    """
    path = local(place)
    if path is None:
        open_store(place, flag)
        return
    found = path
    while not os.path.lexists(found):
        found = found.parent
    code = 0
    if not os.path.isdir(found):
        code = errno.ENOTDIR
    elif not os.access(found, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        raise ConfigError(f"{flag} {place}: {os.strerror(code)}")


def sync_file(path: str) -> None:
    """Make the content of a file durable; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_log(checkpoint: str, log: str) -> None:
    """Make the newest entries of a log, ``offsets`` or ``commits``, durable; raises OutputError.

    Spark does not sync its logs. Messages are finished after an offset is logged, and rows are
    removed after a commit is logged, so neither entry may be lost in a power failure. The newest
    have the highest numbers: by the wall clock, which may have been set back, others may be newer.
    """
    folder = os.path.join(checkpoint, log)
    try:
        with contextlib.suppress(FileNotFoundError):
            with os.scandir(folder) as entries:
                names = [(_ENTRY.fullmatch(each.name), each.path) for each in entries]
            numbered = [(int(name[1]), path) for name, path in names if name]
            for _, path in nlargest(_NEWEST, numbered):
                sync_file(path)
            sync_file(os.path.join(checkpoint, "metadata"))
            sync_directory(folder)
            sync_directory(checkpoint)
            sync_directory(os.path.dirname(checkpoint))
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: {error.strerror}") from error
