"""JSON that may have a very long list of nsqds, parsed a part at a time."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 1 << 20
"""Size from which a response is long, in bytes."""

_PART = 128 << 10
_DIGITS = 25
_LIST = re.compile(rb'"producers"\s*:\s*\[')


def loads(body: bytes | bytearray, decode_object: Callable[[dict[str, Any]], object]) -> Any:
    """Parse JSON; ``decode_object`` decodes each object. Raises ValueError or RecursionError.

    Of a long list in a bytearray, the entries are removed from it as they are parsed.

    json.loads would hold the whole text of the response beside the response, in blocks so large
    that the C library keeps them. Any list of entries up to ``},`` that is JSON ends between two
    entries: within a text or an object it would be incomplete.
    """
    # A longer integer is out of range, and Python would refuse to parse it. Python 3.11 loses some
    # bytes with each decoder, which would keep the memory around them: so one is for all parts.
    decoder = json.JSONDecoder(
        parse_int=lambda digits: int(digits[:_DIGITS]), object_hook=decode_object
    )

    def parse(text: bytes | bytearray) -> Any:
        return decoder.decode(text.decode(errors="surrogatepass"))

    begin = _LIST.search(body) if len(body) > LONG else None
    if begin is None:
        return parse(body)
    found: list[Any] = []
    rest = body if isinstance(body, bytearray) else bytearray(body)
    head = bytes(rest[: begin.end()])
    del rest[: len(head)]
    while (end := rest.rfind(b"},", 0, _PART)) >= 0:
        try:
            found += parse(b"".join((b"[", rest[: end + 1], b"]")))
        except ValueError:
            break
        del rest[: end + 2]  # the entries take the memory of their text
    # In the rest, null stands for the entries found.
    data = parse(b"".join((head, b"null," if found else b"", rest)))
    for fields in (data, data.get("data")) if isinstance(data, dict) and found else ():
        nsqds = fields.get("producers") if isinstance(fields, dict) else None
        if isinstance(nsqds, list) and nsqds[:1] == [None]:
            nsqds[:1] = found
            return data
    if found:
        raise ValueError("a list of nsqds where none is expected")
    return data
