"""A small HTTP/1.1 server on h11.

A client breaking the protocol gets a 4xx response and is disconnected. A slow client occupies a
coroutine for at most ``HEAD_TIMEOUT`` and ``TIMEOUT`` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

import h11

from nsqtools.clock import wall
from nsqtools.net.http.wire import MAX_HEAD, fault
from nsqtools.net.tcp import StreamServer, peer_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    RequestHandler = Callable[["Request"], Awaitable["Response"]]

log = logging.getLogger(__name__)

HEAD_TIMEOUT = 10.0
"""Maximum time for the head of a request, and for the first byte of a connection, in seconds."""
TIMEOUT = 120.0
"""Maximum time for the rest of a request and its response, and until the next, in seconds."""

TEXT = "text/plain; charset=utf-8"

_LINGER = 0.5  # seconds for a client to read the response before a reset; as net/http
_SLACK = 256 << 10  # bytes to read of a refused body, to keep the connection; as net/http
_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``path`` is decoded, ``query`` is not; ``headers`` have lower-case names.

    ``length`` is the size of the body in bytes. If the body is far over the server's ``max_body``,
    ``body`` is empty.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    length: int


@dataclass(frozen=True, slots=True)
class Response:
    """One response; an empty ``content_type`` means no Content-Type header."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


async def serve(
    handler: RequestHandler, host: str, port: int, *, max_body: int = 1 << 20
) -> StreamServer:
    """Start a server; a request body far over ``max_body`` bytes is not read.

    Port 0 means any free port. Raises OSError with the address as ``filename``.
    """
    server = StreamServer(lambda *streams: _converse(handler, max_body + _SLACK, server, *streams))
    await server.start(host, port)
    return server


async def _converse(
    handler: RequestHandler,
    max_body: int,
    server: StreamServer,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer requests until either side closes; raises OSError if a connection breaks."""
    async with asyncio.timeout(None) as limit:
        conversation = _Conversation(handler, max_body, server, limit, reader, writer)
        conversation.allow(HEAD_TIMEOUT)
        while await conversation.exchange():
            conversation.allow(TIMEOUT)
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
        handler: RequestHandler,
        max_body: int,
        server: StreamServer,
        limit: asyncio.Timeout,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._server = server
        self._limit = limit
        self._handler = handler
        self._max_body = max_body
        self._reader = reader
        self._writer = writer
        self._peer = peer_address(writer)
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)

    def allow(self, seconds: float) -> None:
        """Close the connection after ``seconds`` from now."""
        self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def exchange(self) -> bool:
        """Answer one request; return whether the connection can be used again."""
        try:
            request = await self._read()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            log.debug("%s: %s: %s", self._peer, status.phrase, fault(error))
            if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                text = f"{status} {status.phrase}".encode()
                await self._send(Response(status, text, TEXT))
            return False
        if not request:
            return False
        try:
            response = await self._handler(request)
        except Exception as error:
            log.exception("%s %s: %r", request.method, request.path, error)
            response = Response(500, b"500 Internal Server Error", TEXT)
        log.debug("%s: %s %s %s", self._peer, response.status, request.method, request.path)
        await self._send(response, with_body=request.method != "HEAD")
        if not (self._h11.our_state is self._h11.their_state is h11.DONE):
            return False
        self._h11.start_next_cycle()
        return True

    async def _read(self) -> Request | None:
        """Return the next request; None at the end of the connection.

        Raises h11.RemoteProtocolError.
        """
        head: h11.Request | None = None
        body = bytearray()
        begun = False
        self._server.set_idle(True)
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(
                        status_code=100, headers=[], reason="Continue"
                    )
                    self._writer.write(self._h11.send(go_on))
                data = await self._reader.read(_READ)
                if data and not begun:
                    begun = True
                    self.allow(HEAD_TIMEOUT)
                self._h11.receive_data(data)
            elif isinstance(event, h11.Request):
                head = event
                self._server.set_idle(False)
                self.allow(TIMEOUT)
                if (length := _declared_length(head)) > self._max_body:
                    return _request(head, b"", length)
            elif isinstance(event, h11.Data) and head:
                body += event.data
                if len(body) > self._max_body:
                    return _request(head, b"", len(body))
            elif isinstance(event, h11.EndOfMessage) and head:
                return _request(head, bytes(body), len(body))
            else:  # the client closed between requests
                return None

    async def _send(self, response: Response, *, with_body: bool = True) -> None:
        headers = [
            *response.headers,
            ("Date", formatdate(wall(), usegmt=True)),
            ("Content-Length", str(len(response.body))),
        ]
        if response.content_type:
            headers.append(("Content-Type", response.content_type))
        if self._h11.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        events: list[h11.Event] = [head, h11.EndOfMessage()]
        if with_body and response.body:
            events.insert(1, h11.Data(data=response.body))
        self._writer.write(b"".join(self._h11.send(event) or b"" for event in events))
        await self._writer.drain()


def _declared_length(head: h11.Request) -> int:
    return next((int(value) for name, value in head.headers if name == b"content-length"), 0)


def _request(head: h11.Request, body: bytes, length: int) -> Request:
    path, _, query = head.target.decode("ascii").partition("?")
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode(), unquote(path), query, headers, body, length)
