"""A small HTTP/1.1 server on h11, and a client.

A peer that talks nonsense gets one 4xx and is closed; one that is slow costs a coroutine and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

import h11

from nsqtools.sandbox.server import StreamServer, peer_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nsqtools.names import Address

    Handler = Callable[["Request"], Awaitable["Response"]]

log = logging.getLogger(__name__)

MAX_HEAD = 64 << 10
"""Longest request line and headers, in bytes."""

TIMEOUT = 120.0
"""Longest time to the end of a request, in seconds, idleness before it included."""

_LINGER = 0.5  # seconds; as net/http, so that a client reads our refusal before it sees a reset
_SLACK = 256 << 10  # bytes of a refused body that are read to keep the connection; as net/http
_READ = 64 << 10
_TEXT = "text/plain; charset=utf-8"


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


@dataclass(frozen=True, slots=True)
class Response:
    """One reply; without ``content_type`` the header is left out."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


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
                await self._send(Response(status, text, _TEXT), body=True)
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
        except Exception as error:
            log.exception("%s %s: %r", request.method, request.path, error)
            return Response(500, b"500 Internal Server Error", _TEXT)

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
