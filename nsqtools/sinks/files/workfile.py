"""A file of an archive while it is written: records are gathered, and synced together."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.config.units import enumerated
from nsqtools.errors import OutputError
from nsqtools.records.compression import method_of
from nsqtools.records.salvage import salvage
from nsqtools.sinks.files import disk
from nsqtools.stores.pinned import pinned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from hashlib import _Hash

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.policy.rotation import OpenFile
    from nsqtools.records.compression import Encoder
    from nsqtools.records.layout import Layout
    from nsqtools.sinks.files.journal import Entry

log = logging.getLogger(__name__)

Part = tuple["Batch", "Sequence[Message]"]
"""Messages of a batch, all of them or some."""


class MovedError(OutputError):
    """The work file was removed, renamed or replaced by another program."""


class CutError(OutputError):
    """Another program made the work file shorter."""


class WorkFile:
    """An open work file, locked by this process.

    ``add`` gathers in memory, ``sync`` writes one member and makes it last. Until then nothing of
    it is safe; ``cut_back`` forgets it on disk and in memory. ``path`` ends in ``disk.WORK``;
    ``entry`` is the file's in the journal. Calls raise OSError.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        facts: OpenFile,
        encoder: Encoder,
        *,
        entry: Entry,
        digest: _Hash | None = None,
    ) -> None:
        self.path = path
        self.facts = facts
        self.entry = entry
        self.digest = digest
        self.is_completed = False
        """Whether the file has its final name."""
        self.used = facts.opened
        """The time of the last addition, in monotonic seconds."""
        self.first: Message | None = None
        self.last: Message | None = None
        self._fd = fd
        self._encoder = encoder
        self._synced = facts.compressed
        self._plain = facts.size
        self._records = facts.records
        self._data: list[bytes] = []
        self._parts: list[Part] = []
        self._unsynced = False
        self._edges: tuple[Message | None, Message | None] = (None, None)

    @property
    def is_dirty(self) -> bool:
        """Whether records wait for a sync."""
        return bool(self._data)

    def add(
        self, records: Sequence[bytes], batch: Batch, messages: Sequence[Message], now: float
    ) -> None:
        """Gather the rendered messages."""
        self._data += records
        self._parts.append((batch, messages))
        self.facts.size += sum(map(len, records))
        self.facts.records += len(messages)
        self.used = now
        if self.first is None:
            self.first = messages[0]
        self.last = messages[-1]

    def sync(self) -> list[Part]:
        """Write the gathered records as one member, fsync it, and return their messages.

        Raises MovedError or CutError, or OSError, and nothing of it is safe then: call
        ``cut_back``, or ``move_to`` and sync again.
        """
        self._write([*map(self._encoder.write, self._data), self._encoder.finish()])
        self._plain = self.facts.size
        self._records = self.facts.records
        self._edges = (self.first, self.last)
        safe, self._parts = self._parts, []
        self._data.clear()
        return safe

    def seal(self) -> None:
        """Make an empty file valid for its reader; other files are already complete."""
        if not self._synced:
            self._write([self._encoder.empty()])

    def cut_back(self) -> None:
        """Drop records that are not safe. What cannot be cut off now is cut by the next sync."""
        self._data.clear()
        self._parts.clear()
        self._encoder.discard()
        self.facts.size = self._plain
        self.facts.records = self._records
        self.first, self.last = self._edges
        with contextlib.suppress(OSError):
            self._truncate()

    def move_to(self, fd: int, path: str, entry: Entry) -> None:
        """Continue in another file with a copy of the safe bytes. Takes over ``fd`` on success."""
        disk.copy_contents(self._fd, fd, 0, self._synced)
        self.close()
        self._fd, self.path, self.entry = fd, path, entry
        self._unsynced = False

    def close(self) -> None:
        """Close the file, which releases its lock. What is safe was synced, so no error counts."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _write(self, pieces: Sequence[bytes]) -> None:
        size = sum(map(len, pieces))
        try:
            if self._truncate() < self._synced:
                raise CutError(f"{self.path}: another program has cut it")
            if size:
                self._unsynced = True
                os.lseek(self._fd, self._synced, os.SEEK_SET)
                disk.write_pieces(self._fd, pieces)
            if self._unsynced:
                os.fsync(self._fd)
                self._unsynced = False
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        if not disk.is_at(self._fd, self.path):
            raise MovedError(f"{self.path}: removed or replaced by another program")
        if self.digest:
            for piece in pieces:
                self.digest.update(piece)
        self._synced += size
        self.facts.compressed = self._synced

    def _truncate(self) -> int:
        """Cut off bytes that are not ours or not safe. Return the size before."""
        size = os.fstat(self._fd).st_size
        if size > self._synced:
            os.ftruncate(self._fd, self._synced)
            self._unsynced = True
        return size


class GoodPart(NamedTuple):
    """What ``good_part`` has left of a file.

    ``fd`` replaces the descriptor, ``good`` is the size of the file, and ``plain`` its size when
    decompressed. ``damaged`` is the path of the file with what was damaged, empty without damage.
    """

    fd: int
    good: int
    records: int
    plain: int
    damaged: str


def good_part(fd: int, path: str, layout: Layout, max_msg_size: int, root: str = "") -> GoodPart:
    """Reduce an archive to its whole records or members, and set everything else aside.

    A torn end goes to another file than damage: its messages were never finished, unless it is the
    fault of another --format or --delimiter. Raises OSError, for a record that is too big to be
    read too: the file is then as it was.
    """
    with open(os.dup(fd), "rb") as whole:
        found = salvage(whole, layout, compression=method_of(path), max_msg_size=max_msg_size)
    damaged = torn = ""
    try:
        if found.damaged:
            parts = [each[:2] for each in found.damaged]
            damaged = disk.set_aside(fd, path, parts, disk.DAMAGED, root)
        if found.torn:
            torn = disk.set_aside(fd, path, [found.torn[:2]], disk.TORN, root)
        fd_now = disk.keep(fd, path, found.kept, root)
    except BaseException:
        if disk.is_at(fd, path):  # otherwise these bytes are in no other file
            for aside in filter(None, (damaged, torn)):
                with pinned(aside, root) as file:
                    file.unlink()
        raise
    if damaged:
        text = enumerated([loss.reason for loss in found.damaged])
        log.error("%s: damaged: %s: put aside in %s, look at it", path, text, damaged)
    if found.torn:
        start, end, why = found.torn
        log.warning("%s: %s: its last %d bytes are put aside in %s", path, why, end - start, torn)
    good = sum(end - start for start, end in found.kept)
    return GoodPart(fd_now, good, found.records, found.plain, damaged)


def digest_of(fd: int) -> _Hash:
    """The sha256 of an open file."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256")
