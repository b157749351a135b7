"""Connections to endpoints, kept alive: a transport for httpx's requests and responses.

httpx's own pool takes 2 ms of CPU a request with a hundred in flight; this one a fiftieth. What it
lacks, proxies and HTTP/2, httpx.AsyncHTTPTransport has behind the same method.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from ssl import SSLError
from typing import TYPE_CHECKING, cast

from nsqtools.lean import httpx
from nsqtools.sinks.http.exchange import ProtocolError, Reply, ReplyReader, origin_of, render
from nsqtools.sinks.http.requests import PreparedRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from nsqtools.sinks.http.exchange import Origin

__all__ = ["Transport"]

_MAX_IDLE = 60.0
"""Seconds after which an idle connection is not trusted: something between may have dropped it."""
_HAPPY_EYEBALLS = 0.25
_BUFFER_SIZE = 64 << 10
"""Of what a read fills before it is copied: for a Protocol asyncio makes 256 KiB each time."""


class Transport(httpx.AsyncBaseTransport):
    """Sends requests over HTTP/1.1; a connection carries one at a time.

    Raises httpx.ConnectError and ConnectTimeout when certainly nothing of a request arrived, else
    ReadError or RemoteProtocolError. A request whose kept-alive connection turns out closed, with
    no byte of a response, goes out once more on another. The time for a response is the caller's
    to limit: a call that is cancelled gives its connection up. ``explain`` puts the error of a
    connection that could not be made into words.
    """

    def __init__(
        self,
        context: SSLContext | None,
        *,
        connect_timeout: float,
        explain: Callable[[BaseException], str] = str,
    ) -> None:
        self._context = context
        self._connect_timeout = connect_timeout
        self._explain = explain
        self._idle: defaultdict[Origin, list[_Link]] = defaultdict(list)
        self._links: set[_Link] = set()
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response, with its body, cut off as ``exchange.MAX_BODY`` says."""
        try:
            if isinstance(request, PreparedRequest):
                origin, data = request.origin, request.render()
            else:
                origin, data = origin_of(request.url), render(request)
            reply = await self._send(origin, request.method, data)
        except ProtocolError as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from None
        except httpx.TransportError as error:
            error.request = request
            raise
        return httpx.Response(
            reply.status,
            headers=reply.headers,
            stream=httpx.ByteStream(reply.body),
            request=request,
        )

    async def aclose(self) -> None:
        """Hang up; requests under way fail."""
        for link in list(self._links):
            link.abort()

    async def _send(self, origin: Origin, method: str, data: bytes) -> Reply:
        link = self._take(origin)
        reply = await link.exchange(method, data) if link else None
        if link is None or reply is None:
            link = await self._connect(origin)
            reply = await link.exchange(method, data)
            if reply is None:
                raise httpx.ReadError(self._why_closed(link.error))
        if reply.reusable:
            self._keep(origin, link)
        return reply

    def _keep(self, origin: Origin, link: _Link) -> None:
        idle = self._idle[origin]
        idle.append(link)
        if not idle[0].is_usable(_MAX_IDLE):
            idle.pop(0).abort()

    def _why_closed(self, error: Exception | None) -> str:
        """TLS 1.3 refuses a client certificate only after the handshake."""
        if isinstance(error, SSLError):
            return self._explain(error)
        return "the server closed the connection without a response"

    def _take(self, origin: Origin) -> _Link | None:
        """The connection that was used last, if it can still be used."""
        idle = self._idle[origin]
        while idle:
            link = idle.pop()
            if link.is_usable(_MAX_IDLE):
                return link
            link.abort()
        return None

    async def _connect(self, origin: Origin) -> _Link:
        scheme, host, port = origin
        loop = asyncio.get_running_loop()
        context = self._context if scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, link = await loop.create_connection(
                    lambda: _Link(self._links, self._buffer),
                    host,
                    port,
                    ssl=context or (True if scheme == "https" else None),
                    happy_eyeballs_delay=_HAPPY_EYEBALLS,
                )
        except TimeoutError:
            raise httpx.ConnectTimeout(
                f"no connection within {self._connect_timeout:g} s"
            ) from None
        except OSError as error:
            raise httpx.ConnectError(self._explain(error)) from error
        return link


class _Link(asyncio.BufferedProtocol):
    """One connection; all share the buffer, as each is read at once."""

    def __init__(self, links: set[_Link], buffer: memoryview) -> None:
        self._buffer = buffer
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._reader = ReplyReader("")
        self._waiter: asyncio.Future[Reply | None] | None = None
        self._since = 0.0
        self._lost = False
        self.error: Exception | None = None
        """Why it was lost, if not as it should be."""

    async def exchange(self, method: str, data: bytes) -> Reply | None:
        """Send a request; None if the connection was closed without a byte of a response."""
        self._reader = ReplyReader(method)
        waiter: asyncio.Future[Reply | None] = self._loop.create_future()
        self._waiter = waiter
        self._transport.write(data)
        try:
            reply = await waiter
        except BaseException:
            self.abort()
            raise
        if reply is None or not reply.reusable or self._transport.get_write_buffer_size():
            self.abort()
            return reply._replace(reusable=False) if reply else None
        self._since = self._loop.time()
        return reply

    def is_usable(self, longest: float) -> bool:
        """Whether it is open and was not idle for longer than this, in seconds."""
        return not self._lost and self._loop.time() - self._since < longest

    def abort(self) -> None:
        """Hang up without a goodbye."""
        self._lost = True
        self._transport.abort()

    # For asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As BufferedProtocol."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._links.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """As BufferedProtocol."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """As BufferedProtocol."""
        data = bytes(self._buffer[:nbytes])
        waiter = self._waiter
        if waiter is None:
            self.abort()  # nobody asked
            return
        try:
            reply = self._reader.feed(data)
        except ProtocolError as error:
            self._fail(error)
            return
        if reply is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(reply)

    def eof_received(self) -> None:
        """As BufferedProtocol."""
        self._lost = True
        if self._waiter:
            try:
                self._end(self._reader.finish())
            except ProtocolError as error:
                self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """As BufferedProtocol."""
        self._lost = True
        self.error = error
        self._links.discard(self)
        if self._reader.has_begun:
            self._fail(httpx.ReadError("the connection broke within the response"))
        else:
            self._end(None)

    def _end(self, reply: Reply | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter and not waiter.done():
            waiter.set_result(reply)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter and not waiter.done():
            waiter.set_exception(error)
