"""The envelope: a JSON object on one line, with the body of a message and its metadata."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from nsqtools.errors import RecordError

CONTROLS = "not JSON: it contains control characters"
NEVER_IN_JSON = re.compile(rb"[\x00-\x08\x0e-\x1f]")

_TIMESTAMPS = range(1 << 63)


def envelope_of(line: bytes) -> dict[str, Any]:
    """Parse a line; raises RecordError without the position."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        if NEVER_IN_JSON.search(line):
            raise RecordError(CONTROLS) from None
        raise RecordError(f"not JSON at column {error.colno}") from None
    # an integer with too many digits, or arrays nested too deeply
    except (ValueError, RecursionError):
        raise RecordError("not usable JSON: a number too long, or nested too deeply") from None
    if not isinstance(value, dict):
        raise RecordError(f"expected an object with a body, found {_kind(value)}")
    return value


def body_of(envelope: dict[str, Any]) -> bytes:
    """Return the body of an envelope; raises RecordError without the position."""
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
        raise RecordError("body has half of a surrogate pair, which UTF-8 cannot encode") from None
    except ValueError as error:
        raise RecordError(f"body_b64 is not base64: {error}") from None


def timestamp_of(envelope: dict[str, Any]) -> int:
    """Return the timestamp of an envelope in ns since the epoch; raises RecordError without the
    position.
    """
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
