"""State on disk: a JSON object on one line, with a checksum that shows damage to any of its bytes.

The object's last member is ``crc32``, which covers the others. To all other programs it is plain
JSON, which they may format anew. Version 0.3 wrote its objects without: these are accepted.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

_KEY = "crc32"


def sealed(value: dict[str, Any]) -> bytes:
    """Return an object as a line of JSON with its checksum, without a line end."""
    text = json.dumps(value)
    separator = ", " if value else ""
    return f'{text[:-1]}{separator}"{_KEY}": "{_crc32(text)}"}}'.encode()


def unsealed(line: bytes) -> dict[str, Any]:
    """Return the object on a line without its checksum; white space around it is ignored.

    Raises ValueError, with the reason in words that fit after the name of a file or line, for a
    damaged line and for all that is no JSON object.
    """
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if _KEY in value:
        if value.pop(_KEY) != _crc32(json.dumps(value)):
            raise ValueError("its checksum does not match")
    elif value:
        # Damage to the key alone must not make this an object without a checksum.
        last = next(reversed(value))
        others = {key: each for key, each in value.items() if key != last}
        if value[last] == _crc32(json.dumps(others)):
            raise ValueError("the name of its checksum is wrong")
    return value


def is_torn(line: bytes) -> bool:
    """Whether a line without a line end is the rest of a JSON object after a crash.

    Zeros may follow it. If one other byte follows a whole object, its line end is damaged.
    """
    text = line.decode(errors="replace")
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return True
    rest = text[end:]
    return not isinstance(found, dict) or (len(rest) > 1 and not rest.strip("\0"))


def _crc32(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
