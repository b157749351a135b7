"""The files of a partition as they are read, and errors of the staging as they are told."""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nsqtools.errors import OutputError
from nsqtools.spark.naming import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Ending:
    """How the attempt that completed a partition ended."""

    settled: bool
    """Whether nsqd has certainly processed all FINs."""
    again: int = 0
    """Redelivered messages that were finished but not staged, because they were staged before."""
    notes: tuple[str, ...] = ()
    """Problems to report, one line each."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """The content of a complete partition, in the file that ``naming.manifest`` names."""

    segments: Sequence[Segment]
    ending: Ending

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        names = [str(segment) for segment in self.segments]
        return json.dumps({"segments": names, **asdict(self.ending)}).encode()

    @classmethod
    def parse(cls, data: pa.Buffer, file: str) -> Self:
        """Return the manifest for a result of ``to_bytes``; raises OutputError."""
        try:
            found = json.loads(data.to_pybytes())
            names = found.pop("segments")
            segments = [each for each in map(Segment.parse, names) if each]
            ending = Ending(**found | {"notes": tuple(found["notes"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            raise damaged(file) from None
        if len(segments) < len(names):
            raise damaged(file)
        return cls(segments, ending)


def counted(path: str, names: Sequence[str], count: int) -> list[Segment]:
    """Return the segments that count in an open directory; raises OutputError if one is missing."""
    found = Segment.counted(names, count)
    for number, segment in enumerate(found):
        if segment.number != number:
            raise OutputError(f"{path}: damaged: segment {number} of {count} is missing")
    if len(found) < count:
        raise OutputError(f"{path}: damaged: segment {len(found)} of {count} is missing")
    return found


def rows_of(data: pa.Buffer, segment: Segment, file: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment; raises OutputError if its checksum is wrong."""
    if zlib.crc32(data) != segment.crc:
        raise damaged(file)
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def damaged(file: str) -> OutputError:
    """Return the error for an unusable file that has the only copy of messages."""
    return OutputError(
        f"{file}: missing or damaged, and its messages were finished in nsqd: restore the "
        "file, or continue without the batch with a new checkpoint directory"
    )


@contextlib.contextmanager
def as_output_error(path: str) -> Iterator[None]:
    """Convert OSErrors to OutputError; FileNotFoundError is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OutputError(f"{error.filename or path}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Return the reason in one line."""
    return error.strerror or str(error).strip().partition("\n")[0]
