"""Writers of records: messages to bytes, with one pass and one join per batch."""

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
    from collections.abc import Sequence

    from nsqtools.proto.messages import Message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGE = 8 << 10
_MOST_LARGE = 500
"""Maximum records that are two pieces each: ``writev`` takes 1024 pieces."""
_pack_size = struct.Struct(">I").pack

_PLAIN = re.compile(rb"[ -~\n\t]*")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class MessageSource(Protocol):
    """The source of messages, such as a batch."""

    topic: str
    channel: str

    @property
    def source(self) -> object:
        """The nsqd, or its data path: ``str()`` names it."""


class Writer(Protocol):
    """Turns messages into the bytes to write."""

    def render(self, origin: MessageSource, messages: Sequence[Message]) -> Sequence[bytes]:
        """Return the records of the messages, in order, for one ``writev``.

        The records are one piece or, for large bodies, several pieces without copies of the bodies.
        """


def has_controls(text: str) -> bool:
    """Whether ``escape_controls`` would escape some of this text."""
    return _CONTROLS.search(text) is not None


def escape_controls(data: bytes) -> bytes:
    r"""Escape bytes for a terminal.

    Newline, tab and printable UTF-8 stay; every byte of other controls (C0, DEL, C1), of bidi
    overrides and isolates (U+202A-202E, U+2066-2069) and of invalid UTF-8 becomes ``\xNN``.
    """
    if _PLAIN.fullmatch(data):
        return data
    return _CONTROLS.sub(_hex_bytes, data.decode("utf-8", "backslashreplace")).encode()


def _hex_bytes(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode())


def _bodies(messages: Sequence[Message], escape: bool) -> list[bytes]:
    bodies = [message.body for message in messages]
    return list(map(escape_controls, bodies)) if escape else bodies


def _are_large(bodies: Sequence[bytes]) -> bool:
    """Whether joining the bodies costs more than a ``writev`` of many pieces."""
    return len(bodies) <= _MOST_LARGE and sum(map(len, bodies)) >= _LARGE * len(bodies)


@lru_cache(maxsize=64)
def _second(seconds: int) -> bytes:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19].encode()


def _rfc3339(ns: int) -> bytes:
    seconds, rest = divmod(ns, 1_000_000_000)
    return b"%b.%06dZ" % (_second(seconds), rest // 1000)


@dataclass(frozen=True, slots=True)
class DelimitedWriter:
    """Writes bodies with a delimiter after each, optionally with time and topic before it."""

    delimiter: bytes
    print_topic: bool
    timestamps: bool
    escape: bool

    def render(self, origin: MessageSource, messages: Sequence[Message]) -> Sequence[bytes]:
        """Return the bodies, each with its delimiter."""
        records = _bodies(messages, self.escape)
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
        records.append(b"")  # the join then ends with a delimiter
        return [self.delimiter.join(records)]


@dataclass(frozen=True, slots=True)
class LengthPrefixedWriter:
    """Writes the size of each body (4 bytes, big-endian), then the body."""

    escape: bool

    def render(self, origin: MessageSource, messages: Sequence[Message]) -> Sequence[bytes]:
        """Return the bodies, each with its size."""
        sizes = [_pack_size(len(message.body)) for message in messages]
        if self.escape:  # 27, the size of a body, is ESC
            sizes = list(map(escape_controls, sizes))
        parts = [b""] * (2 * len(sizes))
        parts[::2] = sizes
        parts[1::2] = bodies = _bodies(messages, self.escape)
        return parts if _are_large(bodies) else [b"".join(parts)]


@dataclass(frozen=True, slots=True)
class JsonWriter:
    """Writes an object per line, with ``body_b64`` instead of ``body`` if it is not UTF-8."""

    escape: bool

    def render(self, origin: MessageSource, messages: Sequence[Message]) -> Sequence[bytes]:
        """Return the lines of the messages."""
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
        if self.escape:  # JSON's only raw C0 controls are newlines, which stay
            text = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        return [text.encode()]
