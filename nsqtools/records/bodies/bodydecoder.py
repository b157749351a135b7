"""What all decoders of bodies share: bounds, counting, and how values become JSON.

Numbers, texts, lists and maps become JSON's own. NaN and infinities become the texts NaN, Infinity
and -Infinity; bytes become base64; times become RFC 3339, in UTC; decimals and UUIDs become texts.
Protobuf's JSON mapping does the same. Keys that are no texts become texts.
"""

from __future__ import annotations

import base64
import json
import logging
import math
from abc import ABC, abstractmethod
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from nsqtools.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

MAX_BODY = 1 << 20
"""Maximum bytes of a body to decode, nsqd's default: values may take 100 times its size."""
UNDECODED = (("undecoded", "undecoded_total", "Messages that --decode could not decode."),)
"""The metric of a decoder, for ``metrics.of_fields``."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASE_TEXT, _TEXT_RATIO = 16 << 10, 64


def max_text(body: bytes) -> int:
    """Return the maximum bytes of the JSON text of a body."""
    return _BASE_TEXT + _TEXT_RATIO * len(body)


class BodyDecoder(ABC):
    """Turns bodies into JSON texts, a list at a time.

    ``spec`` is the value of ``--decode``, for messages. ``close`` must be called at the end.
    """

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.undecoded = 0
        """The number of bodies that did not decode so far."""

    @abstractmethod
    def decode_all(self, bodies: Sequence[bytes]) -> list[bytes | None]:
        """Return the JSON text of each body, or None if the body does not decode.

        May block; call it in one thread at a time. Raises NSQError if nothing can be decoded any
        more.
        """

    def close(self) -> None:
        """Release everything, and log how many bodies did not decode."""
        if self.undecoded:
            log.warning(
                "--decode %s: did not decode, and used as received: %s",
                self.spec,
                "1 message" if self.undecoded == 1 else f"{self.undecoded:,} messages",
            )


class ValueDecoder(BodyDecoder):
    """Decodes one body after another with a library."""

    def decode_all(self, bodies: Sequence[bytes]) -> list[bytes | None]:
        """Return the JSON text of each body, or None if the body does not decode."""
        found = [self._decoded(body) for body in bodies]
        self.undecoded += found.count(None)
        return found

    def _decoded(self, body: bytes) -> bytes | None:
        if len(body) > MAX_BODY:
            return None
        try:
            text = json_text(self.value(body))
        except Exception:  # a library may raise anything for hostile bytes
            return None
        return text if len(text) <= max_text(body) else None

    @abstractmethod
    def value(self, body: bytes) -> Any:
        """Return the value in a body; any exception means that the body has none."""


def json_text(value: Any) -> bytes:
    """Return a value as JSON in UTF-8, without spaces; raises ValueError or RecursionError."""
    try:
        return _encode(value).encode()
    except (TypeError, ValueError):  # NaN, or a key that is no text
        return _encode(_plain(value)).encode()


def rfc3339(seconds: int, nanoseconds: int) -> str:
    """Return a time since the epoch with 0, 3, 6 or 9 digits after the seconds.

    Raises OverflowError if its year is not 1 to 9999, and ValueError for a second or more of
    nanoseconds.
    """
    if not 0 <= nanoseconds < 1_000_000_000:
        raise ValueError(f"{nanoseconds} nanoseconds")
    text = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    if not nanoseconds:
        return f"{text}Z"
    digits = f"{nanoseconds:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z"


def _known(value: Any) -> str:
    """Return the text of a value for which JSON has no type; raises ValueError."""
    match value:
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case datetime():
            if value.tzinfo is None:
                return value.isoformat()
            since = value - _EPOCH
            return rfc3339(since.days * 86_400 + since.seconds, since.microseconds * 1000)
        case date() | time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}" if value.is_finite() else _number_text(float(value))
        case UUID():
            return str(value)
        case object(seconds=int(seconds), nanoseconds=int(nanoseconds)):  # msgpack.Timestamp
            return rfc3339(seconds, nanoseconds)
    raise RecordError(f"no JSON for {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return a value of types that JSON has."""
    match value:
        case dict():
            return {_key(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float():
            return value if math.isfinite(value) else _number_text(value)
        case None | bool() | int() | str():
            return value
    return _known(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else _encode(plain)


def _number_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


_encode = json.JSONEncoder(
    ensure_ascii=False,
    check_circular=False,  # values made of bytes have no cycles
    allow_nan=False,
    separators=(",", ":"),
    default=_known,
).encode
