"""How a batch becomes bytes: one pass and one join for the whole batch."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.engine.handler import Batch, Message

__all__ = ["Format", "escape_controls", "make_format", "unescape"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_pack_size = struct.Struct(">I").pack

_PLAIN = re.compile(rb"[ -~\n\t]*")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Format(Protocol):
    """Turns a batch into the bytes to write."""

    def render(self, batch: Batch) -> bytes:
        """All records of the batch, in order; nothing for an empty batch."""


def make_format(
    *,
    json: bool = False,
    template: str | None = None,
    delimiter: bytes = b"\n",
    length_prefix: bool = False,
    print_topic: bool = False,
    timestamps: bool = False,
    escape: bool = False,
) -> Format:
    """The format that these options choose.

    Without any: bodies, each followed by ``delimiter``. ``print_topic`` puts ``topic | `` before
    the body as nsq_tail does, ``timestamps`` the time in RFC 3339 before both. ``_Template`` lists
    the verbs of ``template``. ``json`` writes what ``records.JsonLines`` reads, ``length_prefix``
    what ``records.LengthPrefixed`` reads. ``escape`` is for terminals: of what came from nsqd only
    printable text, newline and tab get through raw.

    Of ``json``, ``template`` and ``length_prefix``, which exclude each other and the rest, the
    first counts. Raises ConfigError for a faulty template.
    """
    safe = escape_controls if escape else None
    if json:
        return _JSONLines(escape)
    if template is not None:
        try:
            return _Template(template, safe)
        except ConfigError as error:
            raise ConfigError(f"--format: {error}") from None
    if length_prefix:
        return _LengthPrefixed(safe)
    return _Lines(delimiter, print_topic, timestamps, safe)


def delimiter_bytes(delimiter: str, *, null: bool) -> bytes:
    """The bytes of ``--delimiter``, or of ``--null``; raises ConfigError."""
    try:
        return b"\0" if null else unescape(delimiter)
    except ConfigError as error:
        raise ConfigError(f"--delimiter: {error}") from None


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


_ESCAPE = r"\\x[0-9a-fA-F]{2}|\\.?"
_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\0": b"\0", "\\\\": b"\\"}
_TEXT_TOKENS = re.compile(rf"{_ESCAPE}|[^\\]+", re.DOTALL)
_TEMPLATE_TOKENS = re.compile(rf"{_ESCAPE}|%d\{{[^}}]*\}}|%.?|[^\\%]+", re.DOTALL)


def unescape(text: str) -> bytes:
    r"""The bytes of a ``--delimiter``: UTF-8, with \n \t \r \0 \\ and \xNN.

    Raises ConfigError for another escape, naming its position, from 1.
    """
    return b"".join(_literal(token) for token in _TEXT_TOKENS.finditer(text))


def _literal(token: re.Match[str]) -> bytes:
    text = token[0]
    if not text.startswith("\\"):
        return text.encode("utf-8", "surrogateescape")  # the bytes as they were on the command line
    if text in _ESCAPES:
        return _ESCAPES[text]
    if len(text) == 4:
        return bytes.fromhex(text[2:])
    raise ConfigError(
        f"unknown escape {text} at character {token.start() + 1}: "
        r"expected \n, \t, \r, \0, \\ or \xNN"
    )


def _bodies(messages: Sequence[Message], safe: Callable[[bytes], bytes] | None) -> list[bytes]:
    bodies = [message.body for message in messages]
    return list(map(safe, bodies)) if safe else bodies


@lru_cache(maxsize=64)
def _second(seconds: int) -> bytes:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19].encode()


def _rfc3339(ns: int) -> bytes:
    seconds, rest = divmod(ns, 1_000_000_000)
    return b"%b.%06dZ" % (_second(seconds), rest // 1000)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Bodies, each followed by the delimiter, perhaps with time and topic before."""

    delimiter: bytes
    print_topic: bool
    timestamps: bool
    safe: Callable[[bytes], bytes] | None

    def render(self, batch: Batch) -> bytes:
        messages = batch[:]
        records = _bodies(messages, self.safe)
        prefix = batch.topic.encode() + b" | " if self.print_topic else b""
        if self.timestamps:
            records = [
                b"%b %b%b" % (_rfc3339(message.timestamp), prefix, body)
                for message, body in zip(messages, records, strict=True)
            ]
        elif prefix:
            records = [prefix + body for body in records]
        records.append(b"")  # makes the join end in a delimiter
        return self.delimiter.join(records)


@dataclass(frozen=True, slots=True)
class _LengthPrefixed:
    """The size of the body as 4 bytes, big-endian, then the body."""

    safe: Callable[[bytes], bytes] | None

    def render(self, batch: Batch) -> bytes:
        messages = batch[:]
        sizes = [_pack_size(len(message.body)) for message in messages]
        if self.safe:  # a body of 27 bytes would be announced by an ESC
            sizes = list(map(self.safe, sizes))
        parts = [b""] * (2 * len(sizes))
        parts[::2] = sizes
        parts[1::2] = _bodies(messages, self.safe)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _JSONLines:
    """One object a line; ``body_b64`` in place of ``body`` where the body is not UTF-8."""

    escape: bool

    def render(self, batch: Batch) -> bytes:
        quote = encode_basestring
        head = f'{{"topic":{quote(batch.topic)},"channel":{quote(batch.channel)},"id":'
        nsqd = f',"nsqd":{quote(str(batch.source))},"body'
        lines = []
        for message in batch[:]:
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
        return text.encode()


_PER_BATCH: dict[str, Callable[[Batch], str]] = {
    "%t": attrgetter("topic"),
    "%c": attrgetter("channel"),
    "%h": lambda batch: str(batch.source),
}
_TEXT: dict[str, Callable[[Message], bytes]] = {
    "%s": attrgetter("body"),
    "%R": lambda message: _pack_size(len(message.body)),
    "%i": attrgetter("id"),
}
_NUMBER: dict[str, Callable[[Message], int]] = {
    "%S": lambda message: len(message.body),
    "%a": attrgetter("attempts"),
    "%T": attrgetter("timestamp"),
}
_VERBS = "%s %S %R %t %c %i %a %T %d{...} %h or %%"
_EPOCH_SECONDS = re.compile(r"(?<!%)(?:%%)*%s")


class _Template:
    r"""As kcat's ``-f``: escapes as in ``unescape``, no delimiter of its own, and these verbs.

    %s body, %S its size, %R its size as 4 bytes big-endian, %t topic, %c channel, %i id,
    %a attempts, %T time in ns since the epoch, %d{strftime} time in UTC (%f: microseconds),
    %h nsqd's address, %% a percent sign.
    """

    def __init__(self, text: str, safe: Callable[[bytes], bytes] | None) -> None:
        if not text:
            raise ConfigError("the template is empty: nothing would be written")
        self._safe = safe
        self._parts: list[bytes | Callable[[Batch], str]] = []
        self._columns: list[Callable[[Message], object]] = []
        for token in _TEMPLATE_TOKENS.finditer(text):
            verb = token[0]
            if verb in _PER_BATCH:
                self._parts.append(_PER_BATCH[verb])
            elif verb in _NUMBER:
                self._parts.append(b"%d")
                self._columns.append(_NUMBER[verb])
            elif verb in _TEXT or verb.startswith("%d{"):
                column = _TEXT.get(verb) or _strftime(verb[3:-1], token.start() + 1)
                self._parts.append(b"%b")
                self._columns.append(_composed(safe, column) if safe else column)
            elif verb.startswith("%") and verb != "%%":
                raise ConfigError(
                    f"unknown verb {verb} at character {token.start() + 1}: expected {_VERBS}"
                )
            else:
                self._parts.append(b"%%" if verb == "%%" else _quoted(_literal(token)))

    def render(self, batch: Batch) -> bytes:
        pattern = b"".join(
            part if isinstance(part, bytes) else self._constant(part(batch)) for part in self._parts
        )
        messages = batch[:]
        if not self._columns:
            return (pattern % ()) * len(messages)
        rows = zip(*(map(column, messages) for column in self._columns), strict=True)
        return b"".join([pattern % row for row in rows])

    def _constant(self, text: str) -> bytes:
        data = text.encode()
        return _quoted(self._safe(data) if self._safe else data)


def _quoted(data: bytes) -> bytes:
    return data.replace(b"%", b"%%")


def _composed(
    safe: Callable[[bytes], bytes], column: Callable[[Message], bytes]
) -> Callable[[Message], bytes]:
    return lambda message: safe(column(message))


def _strftime(pattern: str, position: int) -> Callable[[Message], bytes]:
    def column(message: Message) -> bytes:
        when = _EPOCH + timedelta(microseconds=message.timestamp // 1000)
        return when.strftime(pattern).encode("utf-8", "surrogateescape")

    where = f"%d{{{pattern}}} at character {position}"
    if _EPOCH_SECONDS.search(pattern):  # strftime would take UTC for local time
        raise ConfigError(f"{where}: %s is not a part of a date; %T is the time in ns")
    try:
        _EPOCH.strftime(pattern).encode("utf-8", "surrogateescape")
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return column
