"""``tail --format``: templates for messages, with verbs as in kcat's ``-f``."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.records.layout import ESCAPE, literal
from nsqtools.records.writers import escape_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.proto.messages import Message
    from nsqtools.records.writers import MessageSource

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_pack_size = struct.Struct(">I").pack

_PER_ORIGIN: dict[str, Callable[[MessageSource], str]] = {
    "%t": attrgetter("topic"),
    "%c": attrgetter("channel"),
    "%h": lambda origin: str(origin.source),
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
_OTHER_FORMATS = frozenset({"raw", "json", "length-prefixed", "text"})
"""Words of the option --format of other commands."""
_TOKENS = re.compile(rf"{ESCAPE}|%d\{{[^}}]*\}}|%.?|[^\\%]+", re.DOTALL)
_EPOCH_SECONDS = re.compile(r"(?<!%)(?:%%)*%s")


class Template:
    r"""A Writer for a template: text, verbs, and the escapes of ``layout.unescape``.

    %s body, %S its size, %R its size as 4 bytes big-endian, %t topic, %c channel, %i id,
    %a attempts, %T time in ns since the epoch, %d{strftime} time in UTC (%f: microseconds),
    %h nsqd's address, %% a percent sign. For ``escape`` see ``forms.make_writer``.

    Raises ConfigError for a faulty template.
    """

    def __init__(self, text: str, *, escape: bool = False) -> None:
        self._escape = escape
        self._parts: list[bytes | Callable[[MessageSource], str]] = []
        self._columns: list[Callable[[Message], object]] = []
        try:
            if not text:
                raise ConfigError("the template is empty: nothing would be written")
            if text in _OTHER_FORMATS:
                raise ConfigError(f"{text!r} is no template such as '%s\\n': for JSON, give --json")
            for token in _TOKENS.finditer(text):
                self._add(token)
        except ConfigError as error:
            raise ConfigError(f"--format: {error}") from None

    def _add(self, token: re.Match[str]) -> None:
        verb = token[0]
        if verb in _PER_ORIGIN:
            self._parts.append(_PER_ORIGIN[verb])
        elif verb in _NUMBER:
            self._parts.append(b"%d")
            self._columns.append(_NUMBER[verb])
        elif verb in _TEXT or verb.startswith("%d{"):
            column = _TEXT.get(verb) or _strftime(verb[3:-1], token.start() + 1)
            self._parts.append(b"%b")
            self._columns.append(_escaped(column) if self._escape else column)
        elif verb.startswith("%") and verb != "%%":
            raise ConfigError(
                f"unknown verb {verb} at character {token.start() + 1}: expected {_VERBS}"
            )
        else:
            self._parts.append(b"%%" if verb == "%%" else _quoted(literal(token)))

    def render(self, origin: MessageSource, messages: Sequence[Message]) -> Sequence[bytes]:
        """Return the messages in the format of the template."""
        pattern = b"".join(
            part if isinstance(part, bytes) else self._constant(part(origin))
            for part in self._parts
        )
        if not self._columns:
            return [(pattern % ()) * len(messages)]
        rows = zip(*(map(column, messages) for column in self._columns), strict=True)
        return [b"".join([pattern % row for row in rows])]

    def _constant(self, text: str) -> bytes:
        data = text.encode()
        return _quoted(escape_controls(data) if self._escape else data)


def _quoted(data: bytes) -> bytes:
    return data.replace(b"%", b"%%")


def _escaped(column: Callable[[Message], bytes]) -> Callable[[Message], bytes]:
    return lambda message: escape_controls(column(message))


def _strftime(pattern: str, position: int) -> Callable[[Message], bytes]:
    def column(message: Message) -> bytes:
        when = _EPOCH + timedelta(microseconds=message.timestamp // 1000)
        return when.strftime(pattern).encode("utf-8", "surrogateescape")

    where = f"%d{{{pattern}}} at character {position}"
    if _EPOCH_SECONDS.search(pattern):  # strftime would take UTC for local time
        raise ConfigError(f"{where}: %s is not supported in a date; use %T for the time in ns")
    try:
        _EPOCH.strftime(pattern).encode("utf-8", "surrogateescape")
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return column
