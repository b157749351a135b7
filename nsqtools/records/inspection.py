"""Inspection of archives: how much of a file is intact, for recovery and for verification.

A file is read once, from the beginning, in pieces. Memory holds a few pieces and, for JSON, one
line of limited length.

In a compressed file complete members are intact, as their checksums show. In a plain file complete
records are intact. Garbage in the shape of a record cannot be recognised in a plain file, but all
data synced before the garbage is kept.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.errors import RecordError
from nsqtools.records.compression import CutShortError, plain_chunks, unpacked
from nsqtools.records.forms import make_counter
from nsqtools.records.layout import Layout
from nsqtools.records.readers import TooBigError

if TYPE_CHECKING:
    from typing import BinaryIO

    from nsqtools.records.readers import Reader


@dataclass(frozen=True, slots=True)
class Inspection:
    """The intact part of a file. ``problem`` is empty, or one line on the first fault and its
    place.
    """

    good: int
    """Bytes of the file to keep, up to the last complete member or, uncompressed, the last record.
    """
    records: int
    """Number of complete records in those bytes."""
    plain: int
    """Size of those bytes when decompressed."""
    problem: str
    damage: str = ""
    """The fault of the bytes after ``good``, one line like ``problem``."""
    cut_short: bool = False
    """Whether the file ends within a gzip member or zstd frame that is valid so far."""


def inspect(
    file: BinaryIO,
    layout: Layout = Layout(),  # noqa: B008 - it is frozen
    *,
    compression: str = "none",
    max_msg_size: int = 64 << 20,
) -> Inspection:
    """Read a file from its current position to its end, or to the first fault.

    All offsets count from that position.

    ``compression`` is a key of ``compression.METHODS``. In a compressed file only a damaged member
    ends the intact part. A fault in the records of a complete member is a ``problem``, but no
    reason to cut the member away.

    Raises ConfigError if the library for the compression is not installed or the delimiter is
    empty. Raises OSError if the file cannot be read, or has a line too long for a body of
    ``max_msg_size``: the rest of the file is then unknown.
    """
    reader = make_counter(layout, max_msg_size, is_plain=compression == "none")
    if compression != "none":
        return _inspect_members(file, compression, reader)
    for data in plain_chunks(file, compression):
        if _count(reader, data):
            break
    problem = _count(reader, None)
    return Inspection(reader.end, reader.records, reader.end, problem, problem)


def _inspect_members(file: BinaryIO, compression: str, reader: Reader) -> Inspection:
    good = plain = records = total = 0
    fault = problem = damage = ""
    cut_short = False
    try:
        for data, end in unpacked(file, compression):
            total += len(data)
            problem = _count(reader, data)
            if end:  # only now has the checksum confirmed the decoded data
                good, plain, records, fault = end, total, reader.records, problem
        fault = _count(reader, None)
    except RecordError as error:
        damage = str(error)
        # What a crash cut short begins with whole records.
        cut_short = isinstance(error, CutShortError) and problem == fault
    problem = f"{fault}, uncompressed" if fault else damage
    return Inspection(good, records, plain, problem, damage, cut_short)


def _count(reader: Reader, data: bytes | None) -> str:
    """Count the records in a piece of data, None at the end of a file; return the first fault."""
    if not reader.error:
        try:
            if data is None:
                reader.finish()
            else:
                reader.feed(data)
        except RecordError:
            pass
    if isinstance(reader.error, TooBigError):
        raise OSError(errno.EFBIG, str(reader.error))
    return str(reader.error or "")
