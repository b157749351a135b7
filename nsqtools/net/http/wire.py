"""HTTP/1.1 as bytes, without sockets: renders requests and parses responses.

Most responses are short, of known length, and arrive in one piece: one regular expression parses
them. h11 parses all others; it takes ten times as long, and is imported only when needed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    import h11

MAX_HEAD = 64 << 10
"""Maximum size of a status line with its headers, in bytes."""

Header = tuple[bytes, bytes]

# As h11, but without obsolete line folding. The expressions do not backtrack.
_FIELD = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([^\x00\n\v\f\r]*+)\r\n"
_HEAD = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [ -~\t\x80-\xff]*+)?+\r\n((?:" + _FIELD + rb")++)\r\n"
)
_FIELDS = re.compile(rb"^" + _FIELD, re.MULTILINE)
# The status line of a final response, and the end of its headers; as lenient as Go.
_STATUS = re.compile(rb"HTTP/[0-9]\.[0-9] +([2-9][0-9][0-9])(?: [^\n]*+)?\r?\n")
_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"\ncontent-length:([^\r]*+)", re.IGNORECASE)
_DIGITS = re.compile(rb"[ \t]*([0-9]{1,5})[ \t]*")
# Headers changing how the body ends, or whether the connection stays open.
_SPECIAL = re.compile(
    rb"\n(?:transfer-encoding:|connection:(?![ \t]*keep-alive[ \t]*\r))", re.IGNORECASE
)
_WITHOUT_BODY = (b"204", b"304")


class ReplyError(Exception):
    """No complete or valid response came; ``part`` is what came of it, if that has a status line.

    The cause, if any, is the OSError at the end of the connection.
    """

    def __init__(self, text: str, part: Reply | None = None) -> None:
        super().__init__(text)
        self.part = part


class ClosedError(ReplyError):
    """The connection was closed before any byte of a response."""


class Reply(NamedTuple):
    """A response. ``fields`` has the lines of its headers, and maybe others that are none.

    ``is_cut`` is true if ``body`` is only the beginning; ``reusable`` is true if the connection can
    carry another request.
    """

    status: int
    fields: bytes
    body: bytes | bytearray
    reusable: bool = False
    is_cut: bool = False

    @property
    def headers(self) -> list[Header]:
        """All headers, with names in lower case."""
        return [(name.lower(), value.strip(b" \t")) for name, value in _FIELDS.findall(self.fields)]

    def header(self, name: str) -> str:
        """Return the first header of this name, or an empty string."""
        key_name = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == key_name), "")


def render(method: str, target: bytes, fields: bytes, body: bytes = b"") -> bytes:
    """Return the bytes of a request; ``fields`` come from ``render_fields``."""
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode("ascii"), target, fields, body)


def render_fields(headers: Iterable[Header]) -> bytes:
    """Return the lines of headers; raises ValueError for a header with a line break or NUL."""
    lines = [b"%b: %b\r\n" % field for field in headers]
    data = b"".join(lines)
    if data.count(b"\n") != len(lines) or data.count(b"\r") != len(lines) or b"\0" in data:
        raise ValueError("a header contains a line break or NUL")
    return data


def fault(error: h11.RemoteProtocolError) -> str:
    """Return what h11 found, without the faulty bytes, which follow as the repr of a bytearray."""
    return str(error).partition(": bytearray(")[0]


class ReplyReader:
    """Parses the response to one request; keeps at most ``max_body`` bytes of its body."""

    __slots__ = ("_body", "_h11", "_head", "_max_body", "_method", "_start")

    def __init__(self, method: str, max_body: int) -> None:
        self._method = method
        self._max_body = max_body
        self._h11: h11.Connection | None = None
        self._head: h11.Response | None = None
        self._start: bytearray  # all bytes of the head, until it is parsed
        self._body = bytearray()

    @property
    def has_input(self) -> bool:
        """Whether part of a response has come."""
        return self._h11 is not None

    @property
    def has_status(self) -> bool:
        """Whether the status line of a response has come, but not yet all of the response."""
        return self._head is not None or (self.has_input and bool(_STATUS.match(self._start)))

    def feed(self, data: bytes) -> Reply | None:
        """Return the response if ``data`` completes it; raises ReplyError."""
        if self._h11 is None:
            if reply := _simple(data):
                return reply
            self._h11 = _expecting(self._method)
            self._start = bytearray()
        return self._feed(self._h11, data)

    def finish(self) -> Reply | None:
        """Return the response completed by the end of the connection; None if nothing came.

        Raises ReplyError.
        """
        if self._h11 is None:
            return None
        reply = self._feed(self._h11, b"")
        if reply is None:
            raise self.error("the connection was closed within the response")
        return reply._replace(reusable=False)

    def error(self, text: str) -> ReplyError:
        """Return the error for an incomplete response."""
        return ReplyError(text, self._part())

    def _feed(self, connection: h11.Connection, data: bytes) -> Reply | None:
        import h11

        if self._head is None:
            self._start += data
        try:
            connection.receive_data(data)
            while (event := connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._head = event
                    if self._method == "CONNECT" and event.status_code < 300:
                        return self._reply(reusable=True)  # the tunnel begins
                elif isinstance(event, h11.InformationalResponse):
                    self._start = bytearray(connection.trailing_data[0])
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > self._max_body:
                        return self._reply(reusable=False)
                elif isinstance(event, h11.EndOfMessage):
                    rest, _ = connection.trailing_data
                    is_idle = connection.our_state is connection.their_state is h11.DONE
                    return self._reply(reusable=is_idle and not rest)
                elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise self.error("the server switched to another protocol or hung up")
        except h11.RemoteProtocolError as error:
            raise self.error(fault(error)) from None
        return None

    def _part(self) -> Reply | None:
        """Return what has come of the response, if that has a status line."""
        if self._head:
            return self._reply(reusable=False)._replace(is_cut=True)
        if self.has_input and (match := _STATUS.match(self._start)):
            end = _END.search(self._start, match.end() - 2)
            fields = bytes(self._start[match.end() : end.end() if end else None])
            return Reply(int(match[1]), fields, b"", is_cut=True)
        return None

    def _reply(self, *, reusable: bool) -> Reply:
        assert self._head
        fields = b"".join([b"%b: %b\r\n" % (name, value) for name, value in self._head.headers])
        is_cut = len(self._body) > self._max_body
        body, self._body = self._body, bytearray()
        del body[self._max_body :]
        return Reply(self._head.status_code, fields, body, reusable, is_cut)


@lru_cache(maxsize=16)
def _simple(data: bytes) -> Reply | None:
    """Return the response if it is complete and has no special headers.

    The responses of a server to the same kind of request are often equal for a second.
    """
    match = _HEAD.match(data)
    if match is None or _SPECIAL.search(data, 0, match.end()):
        return None
    lengths = _LENGTH.findall(data, 0, match.end())
    code, start = match[1], match.end()
    if len(lengths) != 1 or code in _WITHOUT_BODY:
        return None
    length = _DIGITS.fullmatch(lengths[0])
    if length is None or len(data) - start != int(length[1]):
        return None
    return Reply(int(code), match[2], data[start:], reusable=True)


def _expecting(method: str) -> h11.Connection:
    """Return a parser of the response to a request; the request's method is all it needs."""
    import h11

    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "server")]))
    connection.send(h11.EndOfMessage())
    return connection
