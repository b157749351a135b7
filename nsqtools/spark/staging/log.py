"""The log of a partition: entries with the names 0, 1, 2, ..., put only if absent.

An entry is the claim of an attempt, a segment of rows, or the seal or end of the log. No entry
follows a seal or end. An attempt owns the partition from its claim until another attempt puts an
entry. Both attempts know the number of the next entry. The first to put this entry fences the
other, whose put is refused. So no attempt has to know whether another is dead, and nothing is ever
renamed or changed. Each entry names the attempt of the entry before. So a lost entry is noticed,
even if another entry has taken its name.

An entry begins with a JSON header of HEADER bytes, padded with spaces. Its parts follow, each at a
multiple of 64 bytes, for Arrow to use in place.
"""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsqtools.errors import OutputError
from nsqtools.spark.rows import keys_of, rows_of
from nsqtools.stores.interface import as_output_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nsqtools.spark.source.plans import Quota
    from nsqtools.stores.interface import Store

HEADER = 512
_ALIGNMENT = 64
_DIGITS = 8
_TRIES = 100
_PAUSE = 0.1  # seconds


class FencedError(OutputError):
    """Another attempt has taken over the partition; the entry was not put."""


class StaleError(FencedError):
    """The batch was committed; this task or driver is obsolete."""


def damaged(file: str) -> OutputError:
    """Return the error for an unusable file with the only copy of messages."""
    return OutputError(
        f"{file}: missing or damaged, and nsqd no longer has its messages: restore the file, or "
        "use a new checkpoint directory, which loses these messages"
    )


class EntryKind(StrEnum):
    """The kind of an entry."""

    CLAIM = "claim"
    SEGMENT = "segment"
    SEAL = "seal"
    END = "end"
    """As a seal, but the batch was committed without these rows."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry without its parts, but with their sizes in bytes and CRC-32s.

    ``attempt`` is the hex of a uuid, ``after`` is the attempt of the entry before, and ``rows`` is
    the number of rows of a segment.
    """

    number: int
    kind: EntryKind
    attempt: str
    rows: int = 0
    sizes: tuple[int, ...] = ()
    checksums: tuple[int, ...] = ()
    after: str = ""

    @property
    def ends(self) -> bool:
        """Whether no entry may follow."""
        return self.kind in (EntryKind.SEAL, EntryKind.END)

    @property
    def name(self) -> str:
        """The name of its file."""
        return _name(self.number)

    @classmethod
    def from_json(cls, number: int, value: dict[str, Any]) -> LogEntry:
        """Return the entry for the JSON of ``asdict``; raises ValueError, TypeError or KeyError for
        anything else.
        """
        given = {name: tuple(value[name]) for name in ("sizes", "checksums")}
        return cls(**value | given | {"number": number, "kind": EntryKind(value["kind"])})


class PartitionLog:
    """The log of a partition, in the folder ``path`` of a store. All methods raise OSError.

    ``check`` raises StaleError if the batch was committed. ``quotas`` are those of the partition's
    task: of segments of earlier versions, the first has topic and nsqd.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        check: Callable[[], None] = lambda: None,
        quotas: Sequence[Quota] = (),
    ) -> None:
        self.store = store
        self.path = path
        self.check = check
        self._queue = quotas[0].queue if quotas else None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Convert OSErrors to OutputError: StaleError if files are missing since a commit."""
        with as_output_error(self.path):
            try:
                yield
            except FileNotFoundError as error:
                self.check()
                raise damaged(error.filename or self.path) from None

    def put(
        self,
        known: Sequence[LogEntry],
        kind: EntryKind,
        attempt: str,
        parts: Sequence[pa.Buffer] = (),
        rows: int = 0,
    ) -> LogEntry | None:
        """Put a durable entry after the known ones; returns None if another attempt has put one."""
        sizes, checksums = tuple(part.size for part in parts), tuple(map(zlib.crc32, parts))
        after = known[-1].attempt if known else ""
        entry = LogEntry(len(known), kind, attempt, rows, sizes, checksums, after)
        header = json.dumps(asdict(entry)).encode().ljust(HEADER)
        assert len(header) == HEADER
        sink = pa.BufferOutputStream()
        sink.write(header)
        for part in parts:
            sink.write(part)
            sink.write(bytes(_padded(part.size) - part.size))
        done = self.store.put_if_absent(self._file(entry.name), memoryview(sink.getvalue()))
        return entry if done else None

    def put_last(self, kind: EntryKind, attempt: str) -> list[LogEntry]:
        """Put an entry after all others unless the log has ended; returns all entries.

        The last of these is the new entry, or else the seal or end. Raises OutputError if no entry
        can be put or read.
        """
        entries: list[LogEntry] = []
        for _ in range(_TRIES):
            if entry := self.put(entries, kind, attempt):
                entries.append(entry)
                return entries
            if not (more := self.read_on(entries)):
                time.sleep(_PAUSE)  # an NFS client may not see the entry yet
                continue
            entries += more
            self.store.sync(self.path)  # their writers may not have synced yet
            if entries[-1].ends:
                return entries
        raise OutputError(f"{self.store.url(self.path)}: damaged: no entry can be put or read")

    def read_on(self, known: Sequence[LogEntry] = ()) -> list[LogEntry]:
        """Return the entries after the known ones, up to the first missing number.

        Raises OutputError for a damaged or lost entry.
        """
        entries = list(known)
        while entry := self._header(len(entries)):
            if entry.after != (entries[-1].attempt if entries else ""):
                raise damaged(self.store.url(self._file(entries[-1].name)))
            entries.append(entry)
        return entries[len(known) :]

    def _header(self, number: int) -> LogEntry | None:
        file = self._file(_name(number))
        try:
            header = self.store.get(file, 0, HEADER)
        except FileNotFoundError:
            return None
        try:
            return LogEntry.from_json(number, json.loads(header))
        except (ValueError, TypeError, KeyError):
            raise damaged(self.store.url(file)) from None

    def seal(self, names: Iterable[str]) -> tuple[LogEntry, pa.Buffer] | None:
        """Return the seal with its part; ``names`` are those in the folder.

        Returns None if the newest entry is no seal, or was just deleted. It takes two requests.
        """
        number = max((int(name) for name in names if name.isdecimal()), default=0)
        entry = self._header(number)
        if entry is None or entry.kind is not EntryKind.SEAL:
            return None
        try:
            (part,) = self.read(entry)
        except FileNotFoundError:
            return None
        return entry, part

    def read(self, entry: LogEntry, count: int | None = None) -> list[pa.Buffer]:
        """Return the parts of an entry, or the first ``count``. Raises OutputError if a checksum
        is wrong.
        """
        file = self._file(entry.name)
        sizes = entry.sizes[:count]
        data = pa.py_buffer(self.store.get(file, HEADER, sum(map(_padded, sizes))))
        if data.size < sum(map(_padded, sizes)):
            raise damaged(self.store.url(file))
        parts, start = [], 0
        for size, checksum in zip(sizes, entry.checksums, strict=False):
            parts.append(part := data.slice(start, size))
            if zlib.crc32(part) != checksum:
                raise damaged(self.store.url(file))
            start += _padded(size)
        return parts

    def keys(self, entry: LogEntry) -> pa.Table:
        """Return the keys of a segment, in KEY_SCHEMA. Raises OutputError as ``read`` does."""
        (keys,) = self.read(entry, 1)
        return keys_of(keys, self._queue)

    def rows(self, entry: LogEntry, channel: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment, in ROW_SCHEMA. Raises OutputError as ``read`` does."""
        keys, rest = self.read(entry)
        yield from rows_of(channel, keys, rest, self._queue)

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"


def _name(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
