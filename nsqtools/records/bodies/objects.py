"""JSON objects without re-encoding: unchanged members stay identical byte for byte."""

from __future__ import annotations

import re
from decimal import Decimal
from json import JSONDecoder
from json.scanner import make_scanner
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from nsqtools.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPACE = re.compile(r"[ \t\n\r]*").match
_KEY = re.compile(
    r'[ \t\n\r]*("(?:[^"\\\x00-\x1f]++|\\.)*+")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL
).match
_AFTER = re.compile(r"[ \t\n\r]*([,}])").match
_EMPTY = re.compile(r"[ \t\n\r]*\}").match
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = frozenset(("true", "false", "null"))


class Member(NamedTuple):
    """A member of an object: its decoded key, and key and value as written."""

    key: str
    raw_key: str
    raw: str


def text_of(body: bytes) -> str:
    """Return a body as JSON text (RFC 8259); raises RecordError if it is not JSON.

    The body must be UTF-8 without a byte order mark. NaN and Infinity are not JSON.
    """
    try:
        text = body.decode()
        end = _space(text, _decode(text, _space(text, 0))[1])
    except (ValueError, StopIteration, RecursionError) as error:
        raise RecordError("not JSON") from error
    if end != len(text):
        raise RecordError("not JSON")
    return text


def members_of(body: bytes) -> list[Member]:
    """Return the members of an object, in order, with repeated keys.

    Raises RecordError if the body is not JSON, or not an object.
    """
    try:
        text = body.decode()
        start = _space(text, 0)
        if text[start : start + 1] == "{":
            return _members(text, start + 1)
    except (ValueError, StopIteration, RecursionError) as error:
        raise RecordError("not JSON") from error
    text_of(body)
    raise RecordError("not a JSON object")


def join(members: Sequence[Member]) -> bytes:
    """Return an object of these members, without spaces between them."""
    return f"{{{','.join([f'{each.raw_key}:{each.raw}' for each in members])}}}".encode()


def is_equal(raw: str, wanted: str) -> bool:
    """Whether a JSON value equals ``wanted``, a user's text.

    Texts are compared exactly; numbers by value, whatever their size and notation; true, false and
    null by name. Arrays and objects equal nothing.
    """
    if raw[0] == '"':
        return _string(raw) == wanted
    if raw in _WORDS:
        return raw == wanted
    if raw[0] in "[{" or not _NUMBER.fullmatch(wanted):
        return False
    try:
        return raw == wanted or Decimal(raw) == Decimal(wanted)
    except ArithmeticError:  # an absurdly large exponent
        return False


def _members(text: str, at: int) -> list[Member]:
    """Return the members after the opening brace, from ``at`` on; raises ValueError."""
    found = []
    if match := _EMPTY(text, at):
        at = match.end()
    else:
        while True:
            if not (match := _KEY(text, at)):
                raise ValueError("expected a key and a colon")
            raw_key = match[1]
            start = match.end()
            end = _decode(text, start)[1]
            found.append(Member(_string(raw_key), raw_key, text[start:end]))
            if not (match := _AFTER(text, end)):
                raise ValueError("expected a comma or the end of the object")
            at = match.end()
            if match[1] == "}":
                break
    if _space(text, at) != len(text):
        raise ValueError("expected nothing after the object")
    return found


def _string(raw: str) -> str:
    """Return the text of a JSON string; raises ValueError."""
    if "\\" not in raw:
        return raw[1:-1]
    text, _ = _decode(raw, 0)
    return str(text)


def _space(text: str, at: int) -> int:
    match = _SPACE(text, at)
    assert match
    return match.end()


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


# Numbers remain texts, because Python limits the digits of integers.
_decode = make_scanner(
    JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)  # type: ignore[arg-type]
)
