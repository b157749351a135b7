"""How much of an archive is good: of what a crash left behind, and of a file to verify.

It is read once, from the beginning, and never held: memory is that of a few pieces and, where lines
are JSON, of the longest line, which has a bound.

Of a compressed file whole members are good: their checksums tell. Of a plain file whole records
are. That cannot tell rubbish that looks like a record; what was synced before it stays good.
"""

from __future__ import annotations

import contextlib
import errno
import re
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.config.units import format_size
from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.members import CutShortError, unpacked
from nsqtools.sinks.records import JsonLines

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["Inspection", "inspect"]

_READ = 1 << 18

_ENVELOPE = 65536
"""Bytes of a line besides its body, at most."""

_NEVER_IN_JSON = re.compile(rb"[\x00-\x08\x0e-\x1f]")


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
    *,
    compression: str = "none",
    json: bool = False,
    length_prefix: bool = False,
    delimiter: bytes = b"\n",
    max_msg_size: int = 64 << 20,
) -> Inspection:
    """Read the file, from where it stands to its end, or to where it stops being good.

    ``json``, ``length_prefix`` and ``delimiter`` are ``formats.make_format``'s, ``compression`` is
    a name in ``compression.METHODS``. In a compressed file only a damaged member bounds ``good``:
    a fault in the records of a whole one is a ``problem``, and no reason to cut it away.

    Raises ConfigError for a compression without its library or an empty delimiter, and OSError, as
    for a line that is too long for a body of ``max_msg_size``: what the file holds is not known.
    """
    is_plain = compression == "none"
    counter: _Counter
    if json:
        counter = _JsonLines(max_msg_size)
    elif length_prefix:
        counter = _LengthPrefixed()
    else:
        counter = _Delimited(delimiter, may_be_filler=is_plain)
    if is_plain:
        return _inspect_plain(file, counter)
    return _inspect_members(file, compression, counter)


def _inspect_plain(file: BinaryIO, counter: _Counter) -> Inspection:
    while not counter.problem and (data := file.read(_READ)):
        counter.feed(data)
    return Inspection(counter.end, counter.records, counter.end, counter.problem or counter.torn())


def _inspect_members(file: BinaryIO, compression: str, counter: _Counter) -> Inspection:
    good = plain = records = total = 0
    fault = damage = ""
    cut_short = False
    try:
        for data, end in unpacked(file, compression):
            total += len(data)
            if not counter.problem:
                counter.feed(data)
            if end:  # only now is it known that what was decoded is what was written
                good, plain, records, fault = end, total, counter.records, counter.problem
        fault = fault or counter.torn()
    except RecordError as error:
        damage = str(error)
        cut_short = isinstance(error, CutShortError)
    problem = f"{fault}, uncompressed" if fault else damage
    return Inspection(good, records, plain, problem, cut_short)


class _Counter(ABC):
    """Counts the whole records of a stream of plain bytes, and knows where the last one ends."""

    def __init__(self) -> None:
        self.records = 0
        self.end = 0
        self.total = 0
        """Bytes fed."""
        self.problem = ""
        """Why what follows ``end`` is no record, however much may come; nothing is fed then."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Take the next bytes, any number."""

    def torn(self) -> str:
        """What is wrong if this is the end of the stream."""
        return f"{self._next()}: it is torn" if self.end < self.total else ""

    def _next(self) -> str:
        return f"record {self.records + 1} at byte {self.end}"


class _Delimited(_Counter):
    """Records that end in a delimiter, counted as ``records.Delimited`` splits them.

    With ``may_be_filler``, empty records that zeros make are none at the end of the stream: a disk
    that lost power leaves zeros for what it had not written.
    """

    def __init__(self, delimiter: bytes, *, may_be_filler: bool) -> None:
        super().__init__()
        if not delimiter:
            raise ConfigError("the delimiter is empty: records could not be told apart")
        self._delimiter = delimiter
        self._filler = may_be_filler and not delimiter.strip(b"\0")
        self._empty = 0  # records since ``end``
        self._begun = False  # the record under way has bytes before the tail
        self._tail = b""  # what may begin a delimiter

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        parts = (self._tail + data).split(self._delimiter)
        last = parts.pop()
        if parts:
            count = self._without_filler(parts) if self._filler else len(parts)
            empty = len(parts) - count
            if count:
                self.records += self._empty + count
                self.end = self.total - len(last) - empty * len(self._delimiter)
                self._empty = 0
            self._empty += empty
            self._begun = False
        cut = max(len(last) - len(self._delimiter) + 1, 0)
        self._begun = self._begun or cut > 0
        self._tail = last[cut:]

    def _without_filler(self, parts: list[bytes]) -> int:
        if not any(parts):  # most of many zeros
            return int(self._begun)
        count = len(parts)
        while count and not parts[count - 1] and not (count == 1 and self._begun):
            count -= 1
        return count


class _LengthPrefixed(_Counter):
    """Records with their size before them: 4 bytes, big-endian.

    None is empty, because no message is (``nsqd/protocol_v2.go``): zeros are no records.
    """

    _size = struct.Struct(">I")

    def __init__(self) -> None:
        super().__init__()
        self._head = b""  # less than a size
        self._next_size = 0  # where the record under way ends, in the stream

    def feed(self, data: bytes) -> None:
        data = self._head + data
        base = self.total - len(self._head)
        self.total = base + len(data)
        begin, position = self.end - base, self._next_size - base
        read_size = self._size.unpack_from
        count = self.records + (position > begin)
        while len(data) - position >= 4:
            (size,) = read_size(data, position)
            begin = position
            if not size:
                break
            position += 4 + size
            count += 1
        whole = position <= len(data)
        self.end = base + (position if whole else begin)
        self.records = count if whole else count - 1
        self._next_size = base + position
        self._head = data[position:]
        if len(self._head) >= 4:
            self.problem = f"{self._next()}: its size is 0, and no message is empty"


class _JsonLines(_Counter):
    """Envelopes, one a line, as ``records.JsonLines`` reads them; blank lines are no records."""

    def __init__(self, max_msg_size: int) -> None:
        super().__init__()
        self._line: list[bytes] = []  # under way
        self._size = 0  # of that
        self._max_msg_size = max_msg_size
        # Base64 makes 4 bytes of 3; more, as of a text that is all escapes, need a higher bound.
        self._longest = max_msg_size * 4 // 3 + _ENVELOPE

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            self._take(b"".join((*self._line, lines, newline)))
            self._line.clear()
            self._size = 0
        self._line.append(rest)
        self._size += len(rest)
        self._check(self._size)
        if not self.problem and _NEVER_IN_JSON.search(rest):  # or it might grow without an end
            self.problem = f"{self._next()}: not JSON"

    def _take(self, block: bytes) -> None:
        lines = block.split(b"\n")[:-1]
        longest = max(map(len, lines))
        with contextlib.suppress(RecordError):
            if longest <= self._longest and len(JsonLines().feed(block)) == len(lines):
                self.records += len(lines)
                self.end += len(block)
                return
        for line in lines:
            self._check(len(line))
            try:
                self.records += len(JsonLines().feed(line + b"\n"))
            except RecordError as error:
                self.problem = f"{self._next()}: {str(error).removeprefix('line 1: ')}"
                return
            self.end += len(line) + 1

    def _check(self, size: int) -> None:
        if not self.problem and size > self._longest:
            allowed = f"--max-msg-size {format_size(self._max_msg_size)} allows"
            text = f"its line is over the {self._longest} bytes that {allowed}"
            raise OSError(errno.EFBIG, f"record {self.records + 1}: {text}")
