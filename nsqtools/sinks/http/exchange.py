"""HTTP/1.1 of one request and its response as bytes: no sockets here.

Most endpoints answer most requests with a short response of a known length in one piece. One
regular expression reads that; whatever is not exactly so is h11's, which takes ten times as long.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import h11

from nsqtools.lean import httpx

__all__ = [
    "MAX_BODY",
    "Origin",
    "ProtocolError",
    "Reply",
    "ReplyReader",
    "origin_of",
    "render",
    "render_fields",
]

MAX_BODY = 64 << 10
"""Bytes of a response's body that are read; the connection is given up after so many."""

Headers = list[tuple[bytes, bytes]]
Origin = tuple[str, str, int]

_PORTS = {"http": 80, "https": 443}

# What h11 allows in a name and a value, without obsolete line folding. Nothing here backtracks.
_FIELD = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([^\x00\n\v\f\r]*+)\r\n"
_HEAD = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [ -~\t\x80-\xff]*+)?+\r\n((?:" + _FIELD + rb")++)\r\n"
)
_FIELDS = re.compile(_FIELD)
_LENGTH = re.compile(rb"\ncontent-length:([^\r]*+)", re.IGNORECASE)
_DIGITS = re.compile(rb"[ \t]*([0-9]{1,5})[ \t]*")
# What changes the meaning of the length, or of the connection's rest.
_SPECIAL = re.compile(
    rb"\n(?:transfer-encoding:|connection:(?![ \t]*keep-alive[ \t]*\r))", re.IGNORECASE
)
_WITHOUT_BODY = (b"204", b"304")
_SUCCESS = ord("2")


class ProtocolError(Exception):
    """What came is not an HTTP response."""


class Reply(NamedTuple):
    """A response; names of headers are in lower case, and those of a plain success are left out.

    ``body`` is cut off at MAX_BODY. ``reusable``: the connection can carry another request.
    """

    status: int
    headers: Headers
    body: bytes
    reusable: bool


def origin_of(url: httpx.URL) -> Origin:
    """Scheme, host and port."""
    return url.scheme, url.host.replace("%25", "%"), url.port or _PORTS[url.scheme]


def render(request: httpx.Request) -> bytes:
    """The bytes of a request; raises ProtocolError for headers that would break out."""
    body = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else b""
    line = b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)
    return b"".join((line, render_fields(request.headers.raw), b"\r\n", body))


def render_fields(headers: Headers) -> bytes:
    """Lines of headers; raises ProtocolError for one that would break out."""
    data = b"".join([b"%b: %b\r\n" % field for field in headers])
    if data.count(b"\n") != len(headers) or data.count(b"\r") != len(headers) or b"\0" in data:
        raise ProtocolError("a header holds a line break or NUL")
    return data


class ReplyReader:
    """Reads the response to one request of this method."""

    __slots__ = ("_body", "_h11", "_head", "_method", "_size")

    def __init__(self, method: str) -> None:
        self._method = method
        self._h11: h11.Connection | None = None
        self._head: h11.Response | None = None
        self._body: list[bytes] = []
        self._size = 0

    @property
    def has_begun(self) -> bool:
        """Whether anything of a response has come."""
        return self._h11 is not None

    def feed(self, data: bytes) -> Reply | None:
        """The response, if this completes it; raises ProtocolError."""
        if self._h11 is None:
            if reply := _simple(data):
                return reply
            self._h11 = _expecting(self._method)
        return self._feed(data)

    def finish(self) -> Reply | None:
        """The same, as the server sends no more; None if it sent nothing at all."""
        if self._h11 is None:
            return None
        reply = self._feed(b"")
        if reply is None:
            raise ProtocolError("the response breaks off")
        return reply._replace(reusable=False)

    def _feed(self, data: bytes) -> Reply | None:
        connection = self._h11
        if connection is None:  # pragma: no cover
            raise AssertionError
        try:
            connection.receive_data(data)
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.Data):
                    self._body.append(bytes(event.data))
                    self._size += len(event.data)
                    if self._size > MAX_BODY:
                        return self._reply(reusable=False)
                elif isinstance(event, h11.EndOfMessage):
                    return self._reply(reusable=_is_idle(connection))
                elif event is h11.NEED_DATA:
                    return None
                elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise ProtocolError("the server switched to another protocol or hung up")
        except h11.RemoteProtocolError as error:
            raise ProtocolError(str(error)) from None

    def _reply(self, *, reusable: bool) -> Reply:
        if self._head is None:  # pragma: no cover
            raise AssertionError
        headers = [(bytes(name), bytes(value)) for name, value in self._head.headers]
        body = b"".join(self._body)[:MAX_BODY]
        return Reply(self._head.status_code, headers, body, reusable)


def _simple(data: bytes) -> Reply | None:
    """The response, if this is all of it and nothing about it is special."""
    match = _HEAD.match(data)
    if match is None or _SPECIAL.search(data, 0, match.end()):
        return None
    lengths = _LENGTH.findall(data, 0, match.end())
    code, block = match[1], match[2]
    start = match.end()
    if len(lengths) != 1 or code in _WITHOUT_BODY:
        return None
    length = _DIGITS.fullmatch(lengths[0])
    if length is None or len(data) - start != int(length[1]):
        return None
    headers = []
    if code[0] != _SUCCESS:
        headers = [(name.lower(), value.strip(b" \t")) for name, value in _FIELDS.findall(block)]
    return Reply(int(code), headers, data[start:], True)


def _expecting(method: str) -> h11.Connection:
    """A parser of responses to this method; what was sent else is nothing to it."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_BODY)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "endpoint")]))
    connection.send(h11.EndOfMessage())
    return connection


def _is_idle(connection: h11.Connection) -> bool:
    rest, _ = connection.trailing_data
    return connection.our_state is connection.their_state is h11.DONE and not rest
