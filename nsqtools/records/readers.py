"""Readers split bytes into records. They do no I/O."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.envelope import CONTROLS, NEVER_IN_JSON, body_of, envelope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENVELOPE = 65536
"""Maximum bytes of a line of JSON in addition to its body."""
_ESCAPED = 6
"""Maximum size in JSON of one byte of a body, in bytes."""


def line_limit(max_size: int) -> int:
    """Return the maximum size of a line of JSON with a body of this size; 0 is no limit."""
    return _ESCAPED * max_size + ENVELOPE if max_size else 0


class TooBigError(RecordError):
    """A record exceeds the limit of the reader."""


class Reader(ABC):
    """Splits a stream into records, which may be empty.

    Records before a malformed one are returned first; the next call raises RecordError. Thus the
    result does not depend on how the stream is divided into chunks. ``max_size`` is the maximum
    size of a record in bytes, 0 for no limit; a larger record is refused before all of it is in
    memory. With ``complete``, for files written by a program, an unterminated last record is an
    error.
    """

    def __init__(self, *, max_size: int = 0, complete: bool = False) -> None:
        self.max_size = max_size
        self.complete = complete
        self.records = 0
        """Number of complete records so far."""
        self.end = 0
        """End of the last complete record, in bytes of the stream."""
        self.error: RecordError | None = None
        """The error in the data after ``end``, whatever follows."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the records completed by this chunk."""
        return self._guarded(chunk)

    def finish(self) -> list[bytes]:
        """Return the records completed by the end of the stream."""
        return self._guarded(None)

    def _guarded(self, chunk: bytes | None) -> list[bytes]:
        if self.error:
            raise self.error
        records: list[bytes] = []
        try:
            if chunk is None:
                self._end(records)
            else:
                self._split(chunk, records)
        except RecordError as error:
            self.error = error
            if chunk is None or not records:
                raise
        return records

    @abstractmethod
    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        """Append the records completed by the chunk."""

    @abstractmethod
    def _end(self, records: list[bytes]) -> None:
        """Append the last record, if there is one."""

    def _place(self) -> str:
        """Name the position of the record after the last complete one, for messages."""
        return f"record {self.records + 1} at byte {self.end}"

    def _fault(self, what: str) -> RecordError:
        return RecordError(f"{self._place()}: {what}")


class Delimited(Reader):
    """Records that end in a delimiter. The last record may lack it, unless ``complete``.

    With ``counting`` no record is held: the result has as many bytes objects as records, and they
    show only whether a record is empty. With ``fillers`` and a delimiter of zeros, empty records at
    the end of the stream do not count: after a power failure a disk has zeros in place of unwritten
    data.
    """

    def __init__(
        self,
        delimiter: bytes = b"\n",
        *,
        max_size: int = 0,
        complete: bool = False,
        counting: bool = False,
        fillers: bool = False,
    ) -> None:
        super().__init__(max_size=max_size, complete=complete)
        if not delimiter:
            raise ConfigError("the delimiter is empty: records could not be separated")
        self._delimiter = delimiter
        self._counting = counting
        self._fillers = fillers and not delimiter.strip(b"\0")
        self._empty = 0  # empty records at the end so far, possibly fillers
        self._total = 0  # bytes fed
        self._start: list[bytes] = []  # start of the current record; holds no part of a delimiter
        self._start_size = 0
        self._tail = b""  # rest of the chunk, possibly the start of a delimiter

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._total += len(chunk)
        parts = (self._tail + chunk).split(self._delimiter)
        last = parts.pop()
        if parts:
            if self._start:
                parts[0] = b"".join((*self._start, parts[0]))
                self._start.clear()
                self._start_size = 0
            good = self._before_large(parts, len(chunk))
            self._take(parts[:good], records)
            large = parts[good:]
            behind = sum(len(part) + len(self._delimiter) for part in large)
            self.end = self._total - len(last) - behind
            if large:
                raise self._too_big()
        cut = max(len(last) - len(self._delimiter) + 1, 0)
        if cut and not (self._counting and self._start):
            self._start.append(last[:cut])
        self._start_size += cut
        self._tail = last[cut:]
        if self._start_size > self.max_size > 0:
            raise self._too_big()

    def _before_large(self, parts: Sequence[bytes], chunk_size: int) -> int:
        """Return the number of records before the first record over the limit."""
        limit = self.max_size
        suspects = parts if chunk_size > limit else parts[:1]  # the others lie within the chunk
        if limit and max(map(len, suspects)) > limit:
            return next(i for i, part in enumerate(suspects) if len(part) > limit)
        return len(parts)

    def _take(self, parts: Sequence[bytes], records: list[bytes]) -> None:
        records += parts
        self.records += len(parts)
        if self._fillers and any(parts):
            self._empty = next(n for n, part in enumerate(reversed(parts)) if part)
        elif self._fillers:
            self._empty += len(parts)

    def _end(self, records: list[bytes]) -> None:
        last = b"".join((*self._start, self._tail))
        if len(last) > self.max_size > 0:
            raise self._too_big()
        if self._empty:
            self.records -= self._empty
            self.end -= self._empty * len(self._delimiter)
            raise self._fault("it is incomplete: zeros follow")
        if last and self.complete:
            raise self._fault("it is incomplete: no delimiter follows")
        if last:
            self._take([last], records)

    def _too_big(self) -> TooBigError:
        return TooBigError(f"{self._place()} {_over(self.max_size)}")


class JsonLines(Delimited):
    """Envelopes, one per line, as the JSON writer writes them. Blank lines are not records.

    Only the body is used. ``observe`` is called with each envelope and may raise RecordError to
    refuse it. ``max_line`` is the maximum size of a line in bytes; the default is enough for a body
    of ``max_size``.
    """

    def __init__(
        self,
        *,
        max_size: int = 0,
        max_line: int = 0,
        complete: bool = False,
        observe: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        super().__init__(max_size=max_line or line_limit(max_size), complete=complete)
        self._max_body = max_size
        self._observe = observe
        self._lines = 0

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        super()._split(chunk, records)
        # without this check a line of binary data might grow without limit
        if NEVER_IN_JSON.search(chunk, chunk.rfind(b"\n") + 1):
            raise self._fault(CONTROLS)

    def _take(self, parts: Sequence[bytes], records: list[bytes]) -> None:
        for line in parts:
            if line.strip():
                try:
                    records.append(self._body(line))
                except RecordError as error:
                    raise self._fault(str(error)) from None
                self.records += 1
            self._lines += 1
            self.end += len(line) + 1

    def _body(self, line: bytes) -> bytes:
        envelope = envelope_of(line)
        body = body_of(envelope)
        if len(body) > self._max_body > 0:
            raise RecordError(f"the body {_over(self._max_body)}")
        if self._observe:
            self._observe(envelope)
        return body

    def _place(self) -> str:
        return f"line {self._lines + 1}"


class LengthPrefixed(Reader):
    """Records preceded by their size: 4 bytes, big-endian.

    With ``counting`` no record is held: the result has as many bytes objects as records. An empty
    record is then an error: zeros must not count as records, and messages are never empty
    (``nsqd/protocol_v2.go``).
    """

    _size = struct.Struct(">I")

    def __init__(
        self, *, max_size: int = 0, complete: bool = False, counting: bool = False
    ) -> None:
        super().__init__(max_size=max_size, complete=complete)
        self._counting = counting
        self._held: list[bytes] = []
        self._have = 0  # bytes after ``end``
        self._body = -1  # size of the current record, -1 if unknown

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._have += len(chunk)
        if self._have < 4 + max(self._body, 0):
            if self._body < 0 or not self._counting:
                self._held.append(chunk)
            return
        data = b"".join((*self._held, chunk))
        start = at = len(data) - self._have  # negative if the start of the record was dropped
        size, fault = self._body, ""
        limit = self.max_size or math.inf
        least = 1 if self._counting else 0
        read_size = self._size.unpack_from
        while True:
            if size < 0:
                if len(data) - at < 4:
                    break
                (size,) = read_size(data, at)
                if not least <= size <= limit:
                    fault = self._wrong(size)
                    break
            end = at + 4 + size
            if end > len(data):
                break
            records.append(data[at + 4 : end])
            at, size = end, -1
        self.records += len(records)
        self.end += at - start
        self._have, self._body = len(data) - at, size
        self._held = [] if self._counting and size >= 0 else [data[at:]]
        if fault:
            raise self._fault(fault)

    def _wrong(self, size: int) -> str:
        if not size:
            return "its size is 0, but messages are never empty"
        return f"its size {size} {_over(self.max_size)}; is this length-prefixed data?"

    def _end(self, records: list[bytes]) -> None:
        if self._have:
            size = 4 + max(self._body, 0)
            raise self._fault(
                f"it is incomplete: expected {size} bytes including the size, found {self._have}"
            )


class Whole(Reader):
    """The whole stream as one record."""

    def __init__(self, *, max_size: int = 0) -> None:
        super().__init__(max_size=max_size)
        self._chunks: list[bytes] = []
        self._have = 0

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._chunks.append(chunk)
        self._have += len(chunk)
        if self._have > self.max_size > 0:
            raise TooBigError(f"the input {_over(self.max_size)}")

    def _end(self, records: list[bytes]) -> None:
        records.append(b"".join(self._chunks))


def _over(max_size: int) -> str:
    return f"is over {max_size} bytes, the limit for reading (a higher --max-msg-size raises it)"
