"""Spark's own logs in a checkpoint: reading them and making them durable."""

from __future__ import annotations

import contextlib
import json
import os
from heapq import nlargest
from pathlib import Path

from nsqtools.errors import NSQError, OutputError
from nsqtools.sinks.files.disk import sync_directory
from nsqtools.spark.folders import sync_file
from nsqtools.spark.ledger import Ledger
from nsqtools.spark.naming import Segment
from nsqtools.spark.places import local
from nsqtools.spark.plans import Offset
from nsqtools.spark.stores import make_store

_NEWEST = 4
"""Entries that a batch can have written: its own and its checksum, and those of one before."""


def sync_log(checkpoint: str, log: str) -> None:
    """Make the newest entries of a log, ``offsets`` or ``commits``, durable; raises OutputError.

    Spark does not sync its logs. Messages are finished after an offset is logged, and rows are
    removed after a commit is logged, so neither entry may be lost in a power failure.
    """
    folder = os.path.join(checkpoint, log)
    try:
        with contextlib.suppress(FileNotFoundError):
            with os.scandir(folder) as entries:
                files = [(each.stat().st_mtime_ns, each.path) for each in entries if each.is_file()]
            for _, path in nlargest(_NEWEST, files):
                sync_file(path)
            sync_file(os.path.join(checkpoint, "metadata"))
            sync_directory(folder)
            sync_directory(checkpoint)
            sync_directory(os.path.dirname(checkpoint))
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: {error.strerror}") from error


def is_finished(checkpoint: str) -> bool:
    """Whether a local checkpoint has no unfinished batch."""
    path = local(checkpoint)
    if path is None:
        return False
    with contextlib.suppress(OSError):
        return _last(path / "offsets") == _last(path / "commits")
    return False


def committed(checkpoint: str) -> int:
    """Return the last committed batch of a local checkpoint; raises as ``_offset`` does."""
    path = Path(checkpoint)
    offset = _offset(path, _last(path / "offsets") - _last(path / "commits"))
    return offset.batch if offset else 0


def staged(staging: str) -> int:
    """Return the number of messages in a local staging directory."""
    stage = local(staging)
    files = stage.glob("*/b*/p*/*/*.arrow") if stage else ()
    return sum(found.rows for each in files if (found := Segment.parse(each.name)))


def is_unused(checkpoint: str) -> bool:
    """Whether no batch of messages has been planned in a local checkpoint."""
    path = local(checkpoint)
    if path is None:
        return False
    try:
        return (offset := _offset(path)) is None or not offset.batch
    except (OSError, ValueError, LookupError, NSQError):
        return False


def has_forgotten(checkpoint: str, staging: str) -> bool:
    """Whether a batch is staged that a power failure has removed from a local checkpoint's log.

    Also true if that cannot be determined.
    """
    path = local(checkpoint)
    if path is None:
        return True
    try:
        offset = _offset(path)
        if offset is None:
            return False
        ledger = Ledger(*make_store(staging), offset.stream)
        return ledger.staged(offset.batch + 1) is not None
    except (OSError, ValueError, LookupError, NSQError):
        return True


def has_orphans(checkpoint: str, staging: str) -> bool:
    """Whether messages are staged although their checkpoint does not exist."""
    state = local(checkpoint)
    return state is not None and not (state / "offsets").exists() and staged(staging) > 0


def check_staged(checkpoint: str, staging: str) -> None:
    """Raise OutputError if the unfinished batch of a local checkpoint is staged elsewhere.

    The source would raise the same error when Spark asks for the batch.
    """
    path = local(checkpoint)
    if path is None or is_finished(checkpoint):
        return
    try:
        offset, before = _offset(path), _offset(path, 1)
    except (OSError, ValueError, LookupError, NSQError):
        return
    if offset and offset.quotas and offset != before:
        Ledger(*make_store(staging), offset.stream).expect(offset)


def _offset(checkpoint: Path, back: int = 0) -> Offset | None:
    """The last one, or one before; None if there is none. Raises what it may if it is damaged."""
    log = checkpoint / "offsets"
    batch = _last(log) - back
    if batch < 0:
        return None
    return Offset.from_json(json.loads((log / str(batch)).read_text().splitlines()[-1]))


def _last(folder: Path) -> int:
    """The highest batch of a log of Spark's; -1 if there is none."""
    try:
        names = [each.name for each in folder.iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)
