"""Salvage of archives that a crash left: which parts are whole, and what the other bytes are.

After damage the next whole member, line or chain of records is looked for, so that damage costs no
more than it touches. If nothing whole follows, the rest may be torn: a crash left it before it was
synced, and its messages were never finished. Where both are possible, such as for the last member
of a file, what ends too early is torn.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.checksum import is_torn
from nsqtools.errors import RecordError
from nsqtools.records.compression import METHODS, next_member
from nsqtools.records.envelope import body_of, envelope_of
from nsqtools.records.inspection import inspect
from nsqtools.records.readers import line_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from nsqtools.records.inspection import Inspection
    from nsqtools.records.layout import Layout

_WINDOW = 1 << 20
_ZEROS = 16
"""Minimum zeros at the end of a compressed file after a power failure; no member has so many."""
_CHAIN = 16
"""Number of records with plausible sizes that show where the next record begins."""


class BadRange(NamedTuple):
    """A range of bytes that are no whole records, with place and reason in words."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Salvage:
    """The parts of a file; ``records`` and ``plain`` are the records and the size, decompressed, of
    the kept ones.
    """

    kept: tuple[tuple[int, int], ...]
    records: int
    plain: int
    damaged: tuple[BadRange, ...]
    torn: BadRange | None
    """The end of the file, if it is what a crash leaves."""


def salvage(file: BinaryIO, layout: Layout, *, compression: str, max_msg_size: int) -> Salvage:
    """Look through a file; raises as ``inspect`` does."""
    size = file.seek(0, os.SEEK_END)
    noun = METHODS[compression].noun or "record"
    kept: list[tuple[int, int]] = []
    damaged: list[BadRange] = []
    torn = None
    records = plain = at = 0
    while at < size:
        file.seek(at)
        found = inspect(file, layout, compression=compression, max_msg_size=max_msg_size)
        fault = end = at + found.good
        records, plain = records + found.records, plain + found.plain
        if fault < size:
            if compression != "none":
                follow = next_member(file, fault + 1, compression) or size
            elif layout.format == "json":
                follow = _next_line(file, fault, max_msg_size) or size
            elif layout.format == "length-prefixed":
                end, follow = _next_sizes(file, at, fault, size, max_msg_size)
                records, plain = records - (end < fault), plain - (fault - end)
            else:  # any bytes are a raw record
                follow = size
            why = f"{noun} at byte {end}: {found.damage.partition(': ')[2]}"
            loss = BadRange(end, follow, why)
            if follow == size and _is_torn_end(file, fault, size, layout, compression, found):
                torn = loss
            else:
                damaged.append(loss)
        if end > at:
            kept.append((at, end))
        at = follow if fault < size else size
    return Salvage(tuple(kept), records, plain, tuple(damaged), torn)


def _next_line(file: BinaryIO, fault: int, max_msg_size: int) -> int:
    """Return the offset of the next complete line that is an envelope; 0 for none."""
    limit = line_limit(max_msg_size) or -1
    file.seek(fault)
    file.readline(limit)
    at = file.tell()
    while line := file.readline(limit):
        try:
            if line.endswith(b"\n") and body_of(envelope_of(line)) is not None:
                return at
        except RecordError:
            pass
        at += len(line)
    return 0


def _next_sizes(
    file: BinaryIO, start: int, fault: int, size: int, max_msg_size: int
) -> tuple[int, int]:
    """Return where the damage before or at a fault begins, and where the next record does.

    The size of the record before the fault may be wrong: then the next record begins within it, or
    one flipped bit of its size makes it reach to the next record.
    """
    limit = max_msg_size or size
    last, length = start, 0
    while start < fault:
        file.seek(start)
        last, length = start, int.from_bytes(file.read(4), "big")
        start += 4 + length
    for at in _sizes(file, last + 1, size, limit):
        if _is_chain(file, at, fault, size, limit):
            gap = at - fault
            is_before = last < fault and (gap < 0 or (gap.bit_count() == 1 and not length & gap))
            return last if is_before else fault, at
    return fault, size


def _sizes(file: BinaryIO, start: int, size: int, limit: int) -> Iterator[int]:
    """Yield the offsets of all that may be the size of a record."""
    pattern = re.compile(rb"(?!\0{4})[\0-\x%02x](?=.{3})" % min(limit >> 24, 255), re.DOTALL)
    while start + 4 < size:
        file.seek(start)
        window = file.read(_WINDOW)
        for match in pattern.finditer(window):
            yield start + match.start()
        start += max(len(window) - 3, 1)


def _is_chain(file: BinaryIO, at: int, fault: int, size: int, limit: int) -> bool:
    """Whether records follow each other from an offset on, to the end of the file or for long.

    What leads to the fault again are records within a body.
    """
    for number in range(_CHAIN):
        if at == size:
            return number > 0
        file.seek(at)
        length = int.from_bytes(file.read(4), "big")
        at += 4 + length
        if not 0 < length <= limit or at > size or at == fault:
            return False
    return True


def _is_torn_end(
    file: BinaryIO, fault: int, size: int, layout: Layout, compression: str, found: Inspection
) -> bool:
    """Whether the end of a file is what a crash leaves, as nothing whole follows."""
    if compression != "none":
        file.seek(fault)
        magic = METHODS[compression].magic
        is_begun = magic.startswith(file.read(len(magic)))
        file.seek(max(fault, size - _ZEROS))
        return (is_begun and found.cut_short) or file.read() == bytes(_ZEROS)
    if layout.format != "json":
        return True
    file.seek(fault)
    line = file.readline()
    # A line that lacks nothing but its end is torn as well, unless another byte took its place.
    return not line.endswith(b"\n") and is_torn(line + b"\0\0")
