"""Bytes in, records out: the way back of the formats that can be read again. No I/O here."""

from __future__ import annotations

import base64
import json
import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Delimited",
    "JsonLines",
    "LengthPrefixed",
    "Splitter",
    "Whole",
    "drop_empty",
    "make_splitter",
]

_TIMESTAMPS = range(1 << 63)


class Splitter(ABC):
    """Splits a stream into records; empty records are records.

    What comes before something malformed is returned first, and RecordError raised by the next
    call: which records get through does not depend on how the stream was cut into chunks.
    ``max_size`` is the most bytes of a record, 0 for no limit; a record over it is refused before
    all of it is in memory.
    """

    def __init__(self, *, max_size: int = 0) -> None:
        self.max_size = max_size
        self._error: RecordError | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        """The records that this chunk completes."""
        records: list[bytes] = []
        self._guarded(chunk, records)
        return records

    def finish(self) -> list[bytes]:
        """The records that the end of the stream completes."""
        records: list[bytes] = []
        self._guarded(None, records)
        return records

    def _guarded(self, chunk: bytes | None, records: list[bytes]) -> None:
        if self._error:
            raise self._error
        try:
            if chunk is None:
                self._end(records)
            else:
                self._split(chunk, records)
        except RecordError as error:
            self._error = error
            if chunk is None or not records:
                raise

    @abstractmethod
    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        """Append the records that the chunk completes."""

    @abstractmethod
    def _end(self, records: list[bytes]) -> None:
        """Append the last record, if there is one."""


class Delimited(Splitter):
    """Records that end in a delimiter; the last one need not, unless all are to be ``complete``."""

    def __init__(
        self,
        delimiter: bytes = b"\n",
        *,
        max_size: int = 0,
        complete: bool = False,
        noun: str = "record",
    ) -> None:
        super().__init__(max_size=max_size)
        if not delimiter:
            raise ConfigError("the delimiter is empty: records could not be told apart")
        self._delimiter = delimiter
        self._complete = complete
        self._noun = noun
        self._count = 0
        self._total = 0  # bytes fed
        self._start: list[bytes] = []  # of the record under way; holds no part of a delimiter
        self._start_size = 0
        self._tail = b""  # what follows it, and may begin a delimiter

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._total += len(chunk)
        parts = (self._tail + chunk).split(self._delimiter)
        last = parts.pop()
        if parts:
            if self._start:
                parts[0] = b"".join((*self._start, parts[0]))
                self._start.clear()
                self._start_size = 0
            self._take(parts, records, len(chunk))
        keep = len(self._delimiter) - 1
        cut = max(len(last) - keep, 0)
        if cut:
            self._start.append(last[:cut])
            self._start_size += cut
        self._tail = last[cut:]
        if self._start_size > self.max_size > 0:
            raise self._too_big(self._count)

    def _take(self, parts: list[bytes], records: list[bytes], chunk_size: int) -> None:
        limit = self.max_size
        suspects = parts if chunk_size > limit else parts[:1]  # others lie within the chunk
        if limit and max(map(len, suspects)) > limit:
            good = next(i for i, part in enumerate(suspects) if len(part) > limit)
            records.extend(parts[:good])
            raise self._too_big(self._count + good)
        records.extend(parts)
        self._count += len(parts)

    def _end(self, records: list[bytes]) -> None:
        last = b"".join((*self._start, self._tail))
        if len(last) > self.max_size > 0:
            raise self._too_big(self._count)
        if last and self._complete:
            raise RecordError(
                f"{self._noun} {self._count + 1} at byte {self._total - len(last)} is torn: "
                "no delimiter follows it"
            )
        if last:
            records.append(last)

    def _too_big(self, index: int) -> RecordError:
        return RecordError(f"{self._noun} {index + 1} {_over(self.max_size)}")


class LengthPrefixed(Splitter):
    """Records with their size before them: 4 bytes, big-endian."""

    _size = struct.Struct(">I")

    def __init__(self, *, max_size: int = 0) -> None:
        super().__init__(max_size=max_size)
        self._count = 0
        self._offset = 0  # of the record under way, in the stream
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 4

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._chunks.append(chunk)
        self._have += len(chunk)
        if self._have < self._need:
            return
        data = b"".join(self._chunks)
        position = 0
        read_size = self._size.unpack_from
        while len(data) - position >= 4:
            (size,) = read_size(data, position)
            if size > self.max_size > 0:
                raise RecordError(
                    f"record {self._count + 1} at byte {self._offset + position}: its size {size} "
                    f"{_over(self.max_size)}; is this length-prefixed data?"
                )
            end = position + 4 + size
            if end > len(data):
                self._need = 4 + size
                break
            records.append(data[position + 4 : end])
            self._count += 1
            position = end
        else:
            self._need = 4
        self._chunks = [data[position:]]
        self._have = len(data) - position
        self._offset += position

    def _end(self, records: list[bytes]) -> None:
        if self._have:
            raise RecordError(
                f"the input ends inside record {self._count + 1}, which begins at byte "
                f"{self._offset} and should have {self._need} bytes with its size: "
                f"found {self._have}"
            )


class Whole(Splitter):
    """All of the stream as one record."""

    def __init__(self, *, max_size: int = 0) -> None:
        super().__init__(max_size=max_size)
        self._chunks: list[bytes] = []
        self._have = 0

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._chunks.append(chunk)
        self._have += len(chunk)
        if self._have > self.max_size > 0:
            raise RecordError(f"the input {_over(self.max_size)}")

    def _end(self, records: list[bytes]) -> None:
        records.append(b"".join(self._chunks))


class JsonLines(Splitter):
    """Envelopes, one a line, as the JSON format writes them; only the body is looked at.

    With a list for ``timestamps`` that of each record, in ns since the epoch, is required and
    appended to it.
    """

    def __init__(
        self,
        *,
        max_size: int = 0,
        complete: bool = False,
        timestamps: list[int] | None = None,
    ) -> None:
        super().__init__(max_size=max_size)
        self._timestamps = timestamps
        # JSON takes at most 6 bytes for a byte; the rest of the envelope may be someone else's.
        self._lines = Delimited(
            max_size=6 * max_size + 65536 if max_size else 0, complete=complete, noun="line"
        )
        self._count = 0

    def _split(self, chunk: bytes, records: list[bytes]) -> None:
        self._parse(self._lines.feed(chunk), records)

    def _end(self, records: list[bytes]) -> None:
        self._parse(self._lines.finish(), records)

    def _parse(self, lines: list[bytes], records: list[bytes]) -> None:
        for line in lines:
            self._count += 1
            if not line.strip():
                continue
            try:
                envelope = _object(line)
                body = _body(envelope)
                if len(body) > self.max_size > 0:
                    raise RecordError(f"the body {_over(self.max_size)}")
                if self._timestamps is not None:
                    self._timestamps.append(_timestamp(envelope))
            except RecordError as error:
                raise RecordError(f"line {self._count}: {error}") from None
            records.append(body)


def _body(envelope: dict[str, Any]) -> bytes:
    """The body of an envelope; raises RecordError without the place."""
    text, encoded = envelope.get("body"), envelope.get("body_b64")
    if (text is None) == (encoded is None):
        found = "none" if text is None else "both"
        raise RecordError(f"expected either body or body_b64, found {found}")
    name, value = ("body_b64", encoded) if text is None else ("body", text)
    if not isinstance(value, str):
        raise RecordError(f"{name} is {_kind(value)}, expected a string")
    try:
        return base64.b64decode(value, validate=True) if text is None else value.encode()
    except UnicodeEncodeError:
        raise RecordError("body has half of a surrogate pair, which no UTF-8 can hold") from None
    except ValueError as error:
        raise RecordError(f"body_b64 is not base64: {error}") from None


def _timestamp(envelope: dict[str, Any]) -> int:
    value = envelope.get("timestamp")
    if type(value) is int and value in _TIMESTAMPS:
        return value
    if value is None:
        found = "none"
    elif isinstance(value, (int, float)):
        found = json.dumps(value)
    else:
        found = _kind(value)
    raise RecordError(f"expected a timestamp, an integer of ns since the epoch, found {found}")


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # an integer too long, or arrays too deep
        raise RecordError(f"not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise RecordError(f"expected an object with a body, found {_kind(value)}")
    return value


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def _over(max_size: int) -> str:
    return f"is over {max_size} bytes (see --max-msg-size)"


def make_splitter(
    *,
    json: bool = False,
    length_prefix: bool = False,
    whole: bool = False,
    delimiter: bytes = b"\n",
    max_size: int = 0,
    complete: bool = False,
    timestamps: list[int] | None = None,
) -> Splitter:
    """The splitter that these options choose, the first of several; lines without any.

    ``complete`` is for what a program wrote: a last record without its delimiter is then torn.
    ``timestamps`` is that of ``JsonLines``, and left alone by all others.
    """
    if json:
        return JsonLines(max_size=max_size, complete=complete, timestamps=timestamps)
    if length_prefix:
        return LengthPrefixed(max_size=max_size)
    if whole:
        return Whole(max_size=max_size)
    return Delimited(delimiter, max_size=max_size, complete=complete)


def drop_empty(records: Sequence[bytes]) -> Sequence[bytes]:
    """The records that are not empty; nsqd takes no empty message (``nsqd/protocol_v2.go``)."""
    return [record for record in records if record] if b"" in records else records
