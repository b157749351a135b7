"""Bodies for people: indented JSON, text, or a dump in hex."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from nsqtools.records.writers import has_controls

_BYTES_A_LINE = 16


class ReadableBody(NamedTuple):
    """The text of a body, and what it is."""

    kind: Literal["json", "text", "bytes"]
    text: str


def readable(body: bytes, limit: int) -> ReadableBody:
    """Return JSON as indented JSON, other printable UTF-8 as it is, and all else as hex.

    The text is cut after about ``limit`` characters, and then says so.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return ReadableBody("bytes", _hex(body, limit))
    if has_controls(text):
        return ReadableBody("bytes", _hex(body, limit))
    try:
        return ReadableBody("json", _cut(_indented(text, limit), limit, len(body)))
    except (ValueError, RecursionError):
        return ReadableBody("text", _cut(text, limit, len(body)))


def _indented(text: str, limit: int) -> str:
    """Indent JSON, up to a bit more than ``limit`` characters.

    The whole may be a thousand times as long as the text: each line has the indent of its depth.
    """
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
        parts.append(part)
        size += len(part)
        if size > limit:
            break
    return "".join(parts)


def _hex(body: bytes, limit: int) -> str:
    """Lines of offset, bytes and characters, as ``hexdump -C`` prints them."""
    lines = []
    for start in range(0, min(len(body), limit), _BYTES_A_LINE):
        part = body[start : start + _BYTES_A_LINE]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):{3 * _BYTES_A_LINE}} {printable}")
    return _cut("\n".join(lines), limit * 6, len(body))


def _cut(text: str, limit: int, size: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n... {size:,} bytes in all"
