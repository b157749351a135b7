"""Spark's own logs in a checkpoint, which it does not fsync."""

from __future__ import annotations

import contextlib
import os
from heapq import nlargest

from nsqtools.errors import OutputError
from nsqtools.sinks.files.publish import sync_directory

_NEWEST = 4
"""Entries that a batch can have written: its own and its checksum, and those of one before."""


def sync_log(checkpoint: str, log: str) -> None:
    """Have the newest entries of a log, ``offsets`` or ``commits``, last; raises OutputError.

    Messages are finished under an offset, and rows are removed after a commit: neither may be
    forgotten in a power failure while those are not.
    """
    folder = os.path.join(checkpoint, log)
    try:
        with contextlib.suppress(FileNotFoundError):
            with os.scandir(folder) as entries:
                files = [(each.stat().st_mtime_ns, each.path) for each in entries if each.is_file()]
            for _, path in nlargest(_NEWEST, files):
                _sync(path)
            _sync(os.path.join(checkpoint, "metadata"))
            sync_directory(folder)
            sync_directory(checkpoint)
            sync_directory(os.path.dirname(checkpoint))
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: {error.strerror}") from error


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
