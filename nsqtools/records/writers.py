"""Messages as bytes: one pass and one join for all that arrived together."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.names import Address
    from nsqtools.proto.messages import Message
    from nsqtools.records.layout import Layout

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGE = 8 << 10
_MOST_LARGE = 500
"""How many records may be two pieces each, for ``writev`` takes 1024."""
_pack_size = struct.Struct(">I").pack

_PLAIN = re.compile(rb"[ -~\n\t]*")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Origin(Protocol):
    """Where messages come from; a batch is one."""

    topic: str
    channel: str
    source: Address


class Writer(Protocol):
    """Turns messages into the bytes to write."""

    def render(self, origin: Origin, messages: Sequence[Message]) -> Sequence[bytes]:
        """The records of the messages, in order, for one ``writev``; nothing for none.

        They are one piece, or, of large bodies, several, of which none is a copy of a body.
        """


def make_writer(
    layout: Layout, *, print_topic: bool = False, timestamps: bool = False, escape: bool = False
) -> Writer:
    """What writes the records that ``readers.make_reader`` reads.

    ``print_topic`` puts ``topic | `` before a raw body as nsq_tail does, ``timestamps`` the time in
    RFC 3339 before both. ``escape`` is for terminals: of what came from nsqd only printable text,
    newline and tab get through raw.
    """
    safe = escape_controls if escape else None
    match layout.format:
        case "json":
            return _JSONLines(escape)
        case "length-prefixed":
            return _LengthPrefixed(safe)
    return _Delimited(layout.delimiter, print_topic, timestamps, safe)


def escape_controls(data: bytes) -> bytes:
    r"""The bytes as a terminal may see them.

    Newline, tab and printable UTF-8 stay; every byte of other controls (C0, DEL, C1), of bidi
    overrides and isolates (U+202A-202E, U+2066-2069) and of what is not UTF-8 becomes ``\xNN``.
    """
    if _PLAIN.fullmatch(data):
        return data
    return _CONTROLS.sub(_hex_bytes, data.decode("utf-8", "backslashreplace")).encode()


def _hex_bytes(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())


def _bodies(messages: Sequence[Message], safe: Callable[[bytes], bytes] | None) -> list[bytes]:
    bodies = [message.body for message in messages]
    return list(map(safe, bodies)) if safe else bodies


def _are_large(bodies: Sequence[bytes]) -> bool:
    """Whether to join them costs more than a ``writev`` of many."""
    return len(bodies) <= _MOST_LARGE and sum(map(len, bodies)) >= _LARGE * len(bodies)


@lru_cache(maxsize=64)
def _second(seconds: int) -> bytes:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19].encode()


def _rfc3339(ns: int) -> bytes:
    seconds, rest = divmod(ns, 1_000_000_000)
    return b"%b.%06dZ" % (_second(seconds), rest // 1000)


@dataclass(frozen=True, slots=True)
class _Delimited:
    """Bodies, each followed by the delimiter, perhaps with time and topic before."""

    delimiter: bytes
    print_topic: bool
    timestamps: bool
    safe: Callable[[bytes], bytes] | None

    def render(self, origin: Origin, messages: Sequence[Message]) -> Sequence[bytes]:
        records = _bodies(messages, self.safe)
        prefix = origin.topic.encode() + b" | " if self.print_topic else b""
        if self.timestamps:
            records = [
                b"%b %b%b" % (_rfc3339(message.timestamp), prefix, body)
                for message, body in zip(messages, records, strict=True)
            ]
        elif prefix:
            records = [prefix + body for body in records]
        if _are_large(records):
            return [piece for record in records for piece in (record, self.delimiter)]
        records.append(b"")  # makes the join end in a delimiter
        return [self.delimiter.join(records)]


@dataclass(frozen=True, slots=True)
class _LengthPrefixed:
    """The size of the body as 4 bytes, big-endian, then the body."""

    safe: Callable[[bytes], bytes] | None

    def render(self, origin: Origin, messages: Sequence[Message]) -> Sequence[bytes]:
        sizes = [_pack_size(len(message.body)) for message in messages]
        if self.safe:  # a body of 27 bytes would be announced by an ESC
            sizes = list(map(self.safe, sizes))
        parts = [b""] * (2 * len(sizes))
        parts[::2] = sizes
        parts[1::2] = bodies = _bodies(messages, self.safe)
        return parts if _are_large(bodies) else [b"".join(parts)]


@dataclass(frozen=True, slots=True)
class _JSONLines:
    """One object a line; ``body_b64`` in place of ``body`` where the body is not UTF-8."""

    escape: bool

    def render(self, origin: Origin, messages: Sequence[Message]) -> Sequence[bytes]:
        quote = encode_basestring
        head = f'{{"topic":{quote(origin.topic)},"channel":{quote(origin.channel)},"id":'
        nsqd = f',"nsqd":{quote(str(origin.source))},"body'
        lines = []
        for message in messages:
            try:
                body = f'":{quote(message.body.decode())}}}\n'
            except UnicodeDecodeError:
                body = f'_b64":"{base64.b64encode(message.body).decode()}"}}\n'
            lines.append(
                f'{head}{quote(message.id.decode("latin-1"))},"timestamp":{message.timestamp}'
                f',"attempts":{message.attempts}{nsqd}{body}'
            )
        text = "".join(lines)
        if self.escape:  # JSON has no raw C0 but the newlines, which stay
            text = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        return [text.encode()]
