"""How much of an archive is good: of what a crash left behind, and of a file to verify.

It is read once, from the beginning, and never held: memory is that of a few pieces and, where lines
are JSON, of the longest line, which has a bound.

Of a compressed file whole members are good: their checksums tell. Of a plain file whole records
are. That cannot tell rubbish that looks like a record; what was synced before it stays good.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.errors import RecordError
from nsqtools.records.compression import CutShortError, plain_chunks, unpacked
from nsqtools.records.layout import Layout
from nsqtools.records.readers import ENVELOPE, Delimited, JsonLines, LengthPrefixed, TooBigError

if TYPE_CHECKING:
    from typing import BinaryIO

    from nsqtools.records.readers import Reader


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file holds. ``problem`` is empty, or one line on the first fault and its place."""

    good: int
    """Bytes of the file to keep: up to here members (or, uncompressed, records) are whole."""
    records: int
    """Whole records in them."""
    plain: int
    """Bytes that they are before compression."""
    problem: str
    cut_short: bool = False
    """Whether the problem is just that the file ends in a gzip member or a zstd frame."""


def inspect(
    file: BinaryIO,
    layout: Layout = Layout(),  # noqa: B008 - it is frozen
    *,
    compression: str = "none",
    max_msg_size: int = 64 << 20,
) -> Inspection:
    """Read the file, from where it stands to its end, or to where it stops being good.

    ``compression`` is a name in ``compression.METHODS``. In a compressed file only a damaged member
    bounds ``good``: a fault in the records of a whole one is a ``problem``, and no reason to cut it
    away.

    Raises ConfigError for a compression without its library or an empty delimiter, and OSError, as
    for a line that is too long for a body of ``max_msg_size``: what the file holds is not known.
    """
    reader = _counter(layout, max_msg_size, is_plain=compression == "none")
    if compression != "none":
        return _inspect_members(file, compression, reader)
    for data in plain_chunks(file, compression):
        if _count(reader, data):
            break
    problem = _count(reader, None)
    return Inspection(reader.end, reader.records, reader.end, problem)


def _inspect_members(file: BinaryIO, compression: str, reader: Reader) -> Inspection:
    good = plain = records = total = 0
    fault = damage = ""
    cut_short = False
    try:
        for data, end in unpacked(file, compression):
            total += len(data)
            problem = _count(reader, data)
            if end:  # only now is it known that what was decoded is what was written
                good, plain, records, fault = end, total, reader.records, problem
        fault = _count(reader, None)
    except RecordError as error:
        damage = str(error)
        cut_short = isinstance(error, CutShortError)
    problem = f"{fault}, uncompressed" if fault else damage
    return Inspection(good, records, plain, problem, cut_short)


def _counter(layout: Layout, max_msg_size: int, *, is_plain: bool) -> Reader:
    match layout.format:
        case "json":
            # Base64 makes 4 bytes of 3; more, as of a text that is all escapes, need a higher one.
            return JsonLines(max_line=max_msg_size * 4 // 3 + ENVELOPE, complete=True)
        case "length-prefixed":
            return LengthPrefixed(complete=True, counting=True)
    return Delimited(layout.delimiter, complete=True, counting=True, fillers=is_plain)


def _count(reader: Reader, data: bytes | None) -> str:
    """Have the reader count the records of this piece, or end with None; its first fault."""
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
