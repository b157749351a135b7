"""A small HTTP/1.1 server on h11, and what the APIs of nsqd and nsqlookupd have in common.

Replies follow ``internal/http_api`` of nsqio/nsq: JSON or text, ``{"message": CODE}`` for errors,
and a header that names version 1 of the API. A peer that talks nonsense gets one 4xx and is
closed; one that is slow costs a coroutine and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

import h11

from nsqtools.names import is_valid_name
from nsqtools.sandbox.https import SecureStream
from nsqtools.sandbox.server import StreamServer, peer_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from nsqtools.names import Address

    Handler = Callable[["Request"], Awaitable["Response"]]
    Routes = Mapping[tuple[str, str], Handler]
    Reader = asyncio.StreamReader | SecureStream
    Writer = asyncio.StreamWriter | SecureStream

log = logging.getLogger(__name__)

MAX_HEAD = 64 << 10
"""Longest request line and headers, in bytes."""

TIMEOUT = 120.0
"""Longest time to the end of a request, in seconds, idleness before it included."""

_LINGER = 0.5  # seconds; as net/http, so that a client reads our refusal before it sees a reset
_SLACK = 256 << 10  # bytes of a refused body that are read to keep the connection; as net/http
_READ = 64 << 10
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"
_V1 = (("X-Nsq-Content-Type", "nsq; version=1.0"),)
_BAD_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")
_HTML = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}  # as encoding/json


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``path`` is unescaped, ``query`` is not, ``headers`` have lower-case names.

    ``length`` is the body's, in bytes, as declared or read; where it is far over the server's
    ``max_body``, ``body`` is empty.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    length: int

    def arguments(self) -> dict[str, str]:
        """The query's first value of each name; raises Refused where Go's ``ParseQuery`` fails."""
        found: dict[str, str] = {}
        for part in filter(None, self.query.split("&")):
            name, _, value = part.partition("=")
            if ";" in part or _BAD_ESCAPE.search(part):
                raise Refused(400, "INVALID_REQUEST")
            found.setdefault(unquote_plus(name), unquote_plus(value))
        return found

    def argument(self, name: str) -> str:
        """One of them; raises Refused where it is missing."""
        try:
            return self.arguments()[name]
        except KeyError:
            raise Refused(400, f"MISSING_ARG_{name.upper()}") from None


@dataclass(frozen=True, slots=True)
class Response:
    """One reply; without ``content_type`` the header is left out."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = _V1


class Refused(Exception):  # noqa: N818 - an answer, not a failure of ours
    """Raised by a handler: the reply is this status with ``{"message": message}``."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.response = Response(status, to_json({"message": message}), _JSON, (*_V1, *headers))


def to_json(value: Any) -> bytes:
    """As Go's ``encoding/json`` writes it, in the order of the dict."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_HTML)
    return text.encode("utf-8", "replace")


def json_reply(value: Any) -> Response:
    """A value as a reply of version 1."""
    return Response(200, to_json(value), _JSON)


def text_reply(text: str = "") -> Response:
    """A text as a reply of version 1."""
    return Response(200, text.encode(), _TEXT if text else "")


async def ping(_: Request) -> Response:
    """``/ping``, the one reply that carries no version."""
    return Response(200, b"OK", _TEXT, ())


def names_of(request: Request) -> tuple[str, str]:
    """Topic and channel; raises Refused in the words of ``GetTopicChannelArgs``."""
    if not is_valid_name(topic := request.argument("topic")):
        raise Refused(400, "INVALID_ARG_TOPIC")
    if not is_valid_name(channel := request.argument("channel")):
        raise Refused(400, "INVALID_ARG_CHANNEL")
    return topic, channel


def router(routes: Routes) -> Handler:
    """The handler for a table of (method, path); a path ending in ``/*`` stands for one more part.

    Errors as httprouter's: 404 NOT_FOUND, 405 METHOD_NOT_ALLOWED.
    """
    allowed: dict[str, list[str]] = {}
    for method, path in routes:
        allowed.setdefault(path, []).append(method)

    async def handle(request: Request) -> Response:
        parent, _, last = request.path.rpartition("/")
        path = f"{parent}/*" if last and f"{parent}/*" in allowed else request.path
        if path not in allowed:
            raise Refused(404, "NOT_FOUND")
        if (request.method, path) not in routes:
            methods = ", ".join([*sorted(allowed[path]), "OPTIONS"])
            if request.method == "OPTIONS":
                return Response(headers=(("Allow", methods),))
            raise Refused(405, "METHOD_NOT_ALLOWED", ("Allow", methods))
        return await routes[request.method, path](request)

    return handle


class _Server:
    def __init__(self, handler: Handler, max_body: int, tls: ssl.SSLContext | None) -> None:
        self._handler = handler
        self._tls = tls
        self._max_body = max_body + _SLACK

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer until one end has enough; raises OSError or TimeoutError where that is abrupt."""
        async with asyncio.timeout(None) as limit:
            if not self._tls:
                await self._serve(reader, writer, limit)
            else:
                secure = SecureStream(self._tls, reader, writer)
                if await secure.shake_hands():
                    await self._serve(secure, secure, limit)
            if writer.can_write_eof():
                writer.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER):
                    while await reader.read(_READ):
                        pass
            writer.close()
            await writer.wait_closed()

    async def _serve(self, reader: Reader, writer: Writer, limit: asyncio.Timeout) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        while await self._exchange(connection, reader, writer, limit):
            connection.start_next_cycle()

    async def _exchange(
        self,
        connection: h11.Connection,
        reader: Reader,
        writer: Writer,
        limit: asyncio.Timeout,
    ) -> bool:
        """Answer one request; whether the connection can bear another."""
        limit.reschedule(asyncio.get_running_loop().time() + TIMEOUT)
        try:
            request = await _read_request(connection, reader, writer, self._max_body)
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            log.debug("%s: %s: %s", peer_address(writer), status.phrase, error)
            text = f"{status} {status.phrase}".encode()
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await _send(connection, writer, Response(status, text, _TEXT, ()), body=True)
            return False
        if not request:
            return False
        response = await self._answer(request)
        log.debug(
            "%s: %s %s %s", peer_address(writer), response.status, request.method, request.path
        )
        await _send(connection, writer, response, body=request.method != "HEAD")
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except Refused as refused:
            return refused.response
        except Exception as error:
            log.exception("%s %s: %r", request.method, request.path, error)
            return Refused(500, "INTERNAL_ERROR").response


async def serve(
    handler: Handler,
    host: str,
    port: int,
    ssl: ssl.SSLContext | None = None,
    *,
    max_body: int = 1 << 20,
) -> StreamServer:
    """Start a server. A body far over ``max_body`` bytes is not read, but its length is told."""
    server = StreamServer(_Server(handler, max_body, ssl).converse)
    await server.start(host, port)
    return server


async def get(address: Address, target: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
    """GET a target such as ``/channels?topic=x``; raises OSError, TimeoutError or h11's error."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(*address)
        try:
            connection = h11.Connection(h11.CLIENT)
            headers = [("Host", str(address)), ("Connection", "close")]
            head = h11.Request(method="GET", target=target, headers=headers)
            writer.write(connection.send(head) + connection.send(h11.EndOfMessage()))
            status, body = 0, []
            while True:
                match event := connection.next_event():
                    case h11.NEED_DATA:
                        connection.receive_data(await reader.read(_READ))
                    case h11.Response():
                        status = event.status_code
                    case h11.Data():
                        body.append(bytes(event.data))
                    case h11.EndOfMessage():
                        return status, b"".join(body)
        finally:
            writer.transport.abort()


async def _read_request(
    connection: h11.Connection,
    reader: Reader,
    writer: Writer,
    max_body: int,
) -> Request | None:
    """The next request, None at the end of the connection; raises h11.RemoteProtocolError."""
    head: h11.Request | None = None
    body: list[bytes] = []
    length = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                writer.write(connection.send(go_on))
            connection.receive_data(await reader.read(_READ))
        elif isinstance(event, h11.Request):
            head = event
            if (length := _declared_length(head)) > max_body:
                return _request(head, b"", length)
            length = 0
        elif isinstance(event, h11.Data) and head:
            length += len(event.data)
            if length > max_body:
                return _request(head, b"", length)
            body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage) and head:
            return _request(head, b"".join(body), length)
        else:  # the peer closed between requests
            return None


def _declared_length(head: h11.Request) -> int:
    return next((int(value) for name, value in head.headers if name == b"content-length"), 0)


def _request(head: h11.Request, body: bytes, length: int) -> Request:
    path, _, query = head.target.decode("ascii").partition("?")
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode(), unquote(path), query, headers, body, length)


async def _send(
    connection: h11.Connection, writer: Writer, response: Response, *, body: bool
) -> None:
    headers = [
        *response.headers,
        ("Date", formatdate(usegmt=True)),
        ("Content-Length", str(len(response.body))),
    ]
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    if connection.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    reason = HTTPStatus(response.status).phrase
    head = h11.Response(status_code=response.status, headers=headers, reason=reason)
    parts = [connection.send(head)]
    if body and response.body:
        parts.append(connection.send(h11.Data(data=response.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    writer.write(b"".join(part for part in parts if part))
    await writer.drain()
