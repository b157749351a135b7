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
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

import h11

from nsqtools.names import is_valid_name
from nsqtools.sandbox.server import StreamServer, peer_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nsqtools.names import Address

    Handler = Callable[["Request"], Awaitable["Response"]]
    Routes = Mapping[tuple[str, str], Handler]

log = logging.getLogger(__name__)

MAX_HEAD = 64 << 10
"""Longest request line and headers, in bytes."""

TIMEOUT = 120.0
"""Longest time to the end of a request, in seconds, idleness before it included."""

_LINGER = 0.5  # seconds; as net/http, so that a client reads our refusal before it sees a reset
_SLACK = 256 << 10  # bytes of a refused body that are read to keep the connection; as net/http
_READ = 64 << 10
_TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
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
        self.response = Response(status, to_json({"message": message}), JSON, (*_V1, *headers))


def to_json(value: Any) -> bytes:
    """As Go's ``encoding/json`` writes it, in the order of the dict."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_HTML)
    return text.encode("utf-8", "replace")


def json_reply(value: Any) -> Response:
    """A value as a reply of version 1."""
    return Response(200, to_json(value), JSON)


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


async def serve(handler: Handler, host: str, port: int, *, max_body: int = 1 << 20) -> StreamServer:
    """Start a server. A body far over ``max_body`` bytes is not read, but its length is told."""
    server = StreamServer(partial(_converse, handler, max_body + _SLACK))
    await server.start(host, port)
    return server


async def _converse(
    handler: Handler,
    max_body: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer until one end has enough; raises OSError where that is abrupt."""
    peer = peer_address(writer)
    async with asyncio.timeout(None) as limit:
        conversation = _Conversation(handler, max_body, reader, writer, peer)
        going_on = True
        while going_on:
            limit.reschedule(asyncio.get_running_loop().time() + TIMEOUT)
            going_on = await conversation.exchange()
        if writer.can_write_eof():
            writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while await reader.read(_READ):
                    pass
        writer.close()
        await writer.wait_closed()


class _Conversation:
    """The requests of one connection."""

    def __init__(
        self,
        handler: Handler,
        max_body: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Address,
    ) -> None:
        self._handler = handler
        self._max_body = max_body
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    async def exchange(self) -> bool:
        """Answer one request; whether the connection can bear another."""
        try:
            request = await self._read()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            log.debug("%s: %s: %s", self._peer, status.phrase, error)
            if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                text = f"{status} {status.phrase}".encode()
                await self._send(Response(status, text, _TEXT, ()), body=True)
            return False
        if not request:
            return False
        response = await self._answer(request)
        log.debug("%s: %s %s %s", self._peer, response.status, request.method, request.path)
        await self._send(response, body=request.method != "HEAD")
        if not (self._h11.our_state is self._h11.their_state is h11.DONE):
            return False
        self._h11.start_next_cycle()
        return True

    async def _read(self) -> Request | None:
        """The next request, None at the end of the connection; raises h11.RemoteProtocolError."""
        head: h11.Request | None = None
        body: list[bytes] = []
        length = 0
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    reply = h11.InformationalResponse(
                        status_code=100, headers=[], reason="Continue"
                    )
                    self._writer.write(self._h11.send(reply))
                self._h11.receive_data(await self._reader.read(_READ))
            elif isinstance(event, h11.Request):
                head = event
                if (length := _declared_length(head)) > self._max_body:
                    return _request(head, b"", length)
                length = 0
            elif isinstance(event, h11.Data) and head:
                length += len(event.data)
                if length > self._max_body:
                    return _request(head, b"", length)
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage) and head:
                return _request(head, b"".join(body), length)
            else:  # the peer closed between requests
                return None

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except Refused as refused:
            return refused.response
        except Exception as error:
            log.exception("%s %s: %r", request.method, request.path, error)
            return Refused(500, "INTERNAL_ERROR").response

    async def _send(self, response: Response, *, body: bool) -> None:
        headers = [
            *response.headers,
            ("Date", formatdate(usegmt=True)),
            ("Content-Length", str(len(response.body))),
        ]
        if response.content_type:
            headers.append(("Content-Type", response.content_type))
        if self._h11.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        events: list[h11.Event] = [head, h11.EndOfMessage()]
        if body and response.body:
            events.insert(1, h11.Data(data=response.body))
        self._writer.write(b"".join(self._h11.send(event) or b"" for event in events))
        await self._writer.drain()


async def get(address: Address, target: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
    """GET a target such as ``/channels?topic=x``: status and body; raises OSError."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(*address)
            try:
                return await _get(reader, writer, address, target)
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout:g} s") from None
    except h11.ProtocolError as error:
        raise ConnectionError(str(error)) from None


async def _get(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address, target: str
) -> tuple[int, bytes]:
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


def _declared_length(head: h11.Request) -> int:
    return next((int(value) for name, value in head.headers if name == b"content-length"), 0)


def _request(head: h11.Request, body: bytes, length: int) -> Request:
    path, _, query = head.target.decode("ascii").partition("?")
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode(), unquote(path), query, headers, body, length)
