"""A partition of a batch: a claim while an attempt fills it, sealed once it is complete."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nsqtools.errors import OutputError
from nsqtools.spark.staging.log import EntryKind, FencedError, LogEntry, damaged
from nsqtools.stores.interface import as_output_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from nsqtools.spark.rows import Segment
    from nsqtools.spark.source.plans import TopicOnNsqd
    from nsqtools.spark.staging.log import PartitionLog
    from nsqtools.spark.staging.redelivered import MessageKey, Redelivered


@dataclass(frozen=True, slots=True)
class Ending:
    """How the attempt that completed a partition ended."""

    settled: bool
    """Whether nsqd has certainly processed all FINs."""
    rows: tuple[int, ...] = ()
    """The number of staged messages of each quota."""
    silent: tuple[int, ...] = ()
    """The quotas, by number, of which no message came although nsqd was asked."""
    notes: tuple[str, ...] = ()
    """Problems to report, one line each."""


class Claim:
    """A partition that this attempt fills; not thread-safe.

    ``entries`` are those of the log, of which the last one is this attempt's claim.

    After an error it cannot be used: messages that were not added must not be finished, and the
    next attempt continues with those that were.
    """

    def __init__(
        self, log: PartitionLog, entries: list[LogEntry], redelivered: Redelivered
    ) -> None:
        self._log = log
        self._entries = entries
        self._redelivered = redelivered
        self._attempt = entries[-1].attempt
        self._usable = True

    def adopted(self) -> Counter[TopicOnNsqd]:
        """Return the number of rows of earlier attempts by topic and nsqd; raises OutputError."""
        found: Counter[TopicOnNsqd] = Counter()
        with self._log.explained():
            for entry in self._entries:
                if entry.kind is EntryKind.SEGMENT:
                    keys = self._log.keys(entry)
                    topics, nsqds = (keys[each].to_pylist() for each in ("topic", "nsqd"))
                    found.update(zip(topics, nsqds, strict=True))
        return found

    def staged(self, keys: Set[MessageKey]) -> set[MessageKey]:
        """Return which redelivered messages are staged; they must be finished, but not added.

        Raises OutputError.
        """
        return self._redelivered.find(keys)

    def add(self, segment: Segment) -> None:
        """Store messages durably; afterwards they may be finished.

        Raises FencedError if another attempt has taken over, or OutputError; the messages must not
        be finished then.
        """
        entry = self._put(EntryKind.SEGMENT, segment.serialise(), segment.keys.num_rows)
        self._redelivered.add(entry, segment.keys)

    def seal(self, ending: Ending) -> Sealed:
        """Mark the partition as complete; raises as ``add`` does."""
        segments = [entry for entry in self._entries if entry.kind is EntryKind.SEGMENT]
        content = {"segments": list(map(asdict, segments)), **asdict(ending)}
        self._put(EntryKind.SEAL, [pa.py_buffer(json.dumps(content).encode())])
        self._usable = False
        return Sealed(self._log, segments, ending, self._attempt)

    def _put(self, kind: EntryKind, parts: Sequence[pa.Buffer], rows: int = 0) -> LogEntry:
        path = self._log.path
        if not self._usable:
            raise OutputError(f"{path}: is sealed, or an earlier step has failed")
        self._usable = False
        with as_output_error(path):
            try:
                entry = self._log.put(self._entries, kind, self._attempt, parts, rows)
            except FileNotFoundError:
                entry = None  # removed while it was put
            self._log.check()
            if entry is None:
                raise FencedError(f"{path}: taken over by another attempt of this task")
        self._entries.append(entry)
        self._usable = True
        return entry


@dataclass(frozen=True, slots=True, eq=False)
class Sealed:
    """A complete partition, which has the same rows for every reader; ``attempt`` has sealed it."""

    log: PartitionLog
    segments: Sequence[LogEntry]
    ending: Ending
    attempt: str

    @classmethod
    def read(cls, log: PartitionLog, seal: LogEntry, data: pa.Buffer) -> Sealed:
        """Return the partition that a seal with this part ends. Raises OutputError."""
        try:
            found = json.loads(bytes(data))
            segments = [LogEntry.from_json(each["number"], each) for each in found.pop("segments")]
            if (again := found.pop("again", None)) is not None:  # earlier versions had one quota
                rows = sum(segment.rows for segment in segments)
                found |= {"rows": [rows], "silent": [] if rows or again else [0]}
            lists = {name: tuple(found.pop(name)) for name in ("rows", "silent", "notes")}
            ending = Ending(found["settled"], **lists)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise damaged(f"{log.path}/{seal.name}") from None
        return cls(log, segments, ending, seal.attempt)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(segment.rows for segment in self.segments)

    def batches(self, channel: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they were added, in ROW_SCHEMA.

        Raises StaleError if the batch was committed meanwhile, OutputError for a damaged file.
        """
        for segment in self.segments:
            with self.log.explained():
                batches = list(self.log.rows(segment, channel))
            yield from batches
