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
    """Whether nsqd has processed all its FINs for certain."""
    again: int = 0
    """Messages that it finished and did not stage, as they were staged before."""
    notes: tuple[str, ...] = ()
    """What somebody should know, in lines; none if all went as planned."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """What a complete partition consists of; the file that ``naming.manifest`` names."""

    segments: Sequence[Segment]
    ending: Ending

    def to_bytes(self) -> bytes:
        """Its file."""
        names = [str(segment) for segment in self.segments]
        return json.dumps({"segments": names, **asdict(self.ending)}).encode()

    @classmethod
    def parse(cls, data: pa.Buffer, file: str) -> Self:
        """What ``to_bytes`` gave; raises OutputError for anything else."""
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
    """The segments that count in a directory being filled; OutputError if one is missing."""
    found = Segment.counted(names, count)
    for number, segment in enumerate(found):
        if segment.number != number:
            raise OutputError(f"{path}: damaged: segment {number} of {count} is missing")
    if len(found) < count:
        raise OutputError(f"{path}: damaged: segment {len(found)} of {count} is missing")
    return found


def rows_of(data: pa.Buffer, segment: Segment, file: str) -> Iterator[pa.RecordBatch]:
    """The rows of a segment; raises OutputError if it is not as it was written."""
    if zlib.crc32(data) != segment.crc:
        raise damaged(file)
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def damaged(file: str) -> OutputError:
    """A file that has the only copy of messages cannot be used."""
    return OutputError(
        f"{file}: missing or damaged, and its messages were finished in nsqd: restore the file, or "
        "go on without the batch with a new checkpoint directory"
    )


@contextlib.contextmanager
def as_output_error(path: str) -> Iterator[None]:
    """OSErrors are for callers to show; that something is gone is for ours to explain."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OutputError(f"{error.filename or path}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Why, in one line."""
    return error.strerror or str(error).strip().partition("\n")[0]
