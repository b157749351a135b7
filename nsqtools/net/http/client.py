"""HTTP connections kept alive between requests: sends requests, returns responses."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import defaultdict, deque
from ssl import create_default_context
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nsqtools.net.hosts import addresses_of
from nsqtools.net.http.replies import ascii_host
from nsqtools.net.http.wire import ClosedError, Reply, ReplyError, ReplyReader, render
from nsqtools.tasks import end

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from ssl import SSLContext

Origin = tuple[str, str, int]
"""Scheme, host and port."""


class Proxy(NamedTuple):
    """A proxy, and the value of Proxy-Authorization for it, if any."""

    origin: Origin
    credentials: bytes = b""


PORTS = {"http": 80, "https": 443}

_MAX_IDLE = 60.0
"""Maximum age of an idle connection, in seconds: a firewall may have dropped an older one."""
_HAPPY_EYEBALLS = 0.25
"""Seconds before the next address of a host is dialled too (RFC 8305)."""
_BUFFER_SIZE = 64 << 10
"""Size of the shared read buffer; for a plain Protocol asyncio allocates 256 KiB per read."""


class DialError(Exception):
    """No connection could be made, so no part of the request was sent.

    The cause is an OSError, a TimeoutError after ``connect_timeout``, or a UnicodeError for a host
    name invalid in DNS; none if a proxy does not connect.
    """


class Connections:
    """Connections to any number of origins; each carries one request at a time.

    ``context`` is for https. ``connect_timeout`` is for TCP and TLS together, in seconds. At most
    ``max_body`` bytes of a response body are read, and for at most ``rest_timeout`` seconds after
    the status line. ``proxy_of`` returns the proxy of an origin.
    """

    def __init__(
        self,
        context: SSLContext | None,
        *,
        connect_timeout: float,
        max_body: int,
        rest_timeout: float | None = None,
        proxy_of: Callable[[Origin], Proxy | None] | None = None,
    ) -> None:
        self._context = context
        self._connect_timeout = connect_timeout
        self._max_body = max_body
        self._rest_timeout = rest_timeout
        self._proxy_of = proxy_of
        self._idle: defaultdict[Origin, list[_ClientProtocol]] = defaultdict(list)
        self._links: set[_ClientProtocol] = set()
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))

    async def exchange(self, origin: Origin, method: str, data: bytes) -> Reply:
        """Send a request, in ``data``, and return the response.

        If a kept-alive connection turns out to be closed, before any byte of a response, the
        request is sent once more on a new connection. There is no response timeout: cancel the call
        to close its connection. Raises DialError or ReplyError.
        """
        proxy = self._proxy_of(origin) if self._proxy_of else None
        if proxy and origin[0] == "http":
            data = _for_proxy(data, origin, proxy)
        link = self._take(origin)
        while True:
            is_new = link is None
            link = link or await self._connect(origin, proxy)
            try:
                reply = await link.send(method, data)
            except BaseException:
                link.abort()
                raise
            if reply is not None:
                break
            link.abort()
            if is_new:
                text = "the server closed the connection without a response"
                raise ClosedError(text) from link.error
            link = None
        if reply.reusable and link.rest():
            self._keep(origin, link)
        else:
            link.abort()
        return reply

    def close(self) -> None:
        """Close all connections; pending requests fail."""
        for link in list(self._links):
            link.abort()

    def _take(self, origin: Origin) -> _ClientProtocol | None:
        """Return the last used connection, if it is still usable."""
        idle = self._idle[origin]
        while idle:
            link = idle.pop()
            if link.is_usable():
                return link
            link.abort()
        return None

    def _keep(self, origin: Origin, link: _ClientProtocol) -> None:
        idle = self._idle[origin]
        idle.append(link)
        if not idle[0].is_usable():
            idle.pop(0).abort()

    async def _connect(self, origin: Origin, proxy: Proxy | None) -> _ClientProtocol:
        try:
            async with asyncio.timeout(self._connect_timeout):
                link = await self._dial(proxy.origin if proxy else origin)
                if proxy and origin[0] == "https":
                    await self._pass(link, origin, proxy)
                return link
        except (OSError, UnicodeError) as error:
            raise DialError(str(error)) from error

    async def _dial(self, origin: Origin) -> _ClientProtocol:
        scheme, name, port = origin
        loop = asyncio.get_running_loop()
        context = (self._context or True) if scheme == "https" else None

        def make() -> _ClientProtocol:
            return _ClientProtocol(self._links, self._buffer, self._max_body, self._rest_timeout)

        async def dial(host: str) -> _ClientProtocol:
            _, link = await loop.create_connection(
                make, host, port, ssl=context, server_hostname=name if context else None
            )
            return link

        return await _first(dial, await addresses_of(name))

    async def _pass(self, link: _ClientProtocol, origin: Origin, proxy: Proxy) -> None:
        """Have the proxy connect to an origin, and begin TLS with that. Raises DialError."""
        place = _authority(origin, keep_port=True)
        fields = b"Host: %b\r\n%b" % (place, _credentials(proxy))
        try:
            reply = await link.send("CONNECT", render("CONNECT", place, fields))
            if reply is None or not 200 <= reply.status < 300:
                answer = f"answered status {reply.status}" if reply else "closed the connection"
                raise DialError(f"the proxy {answer}")
            await link.begin_tls(self._context or create_default_context(), origin[1])
        except ReplyError as error:
            link.abort()
            raise DialError(f"the proxy does not answer in HTTP: {error}") from None
        except BaseException:
            link.abort()
            raise


def _for_proxy(data: bytes, origin: Origin, proxy: Proxy) -> bytes:
    """Return a request as its proxy needs it: the target is a whole URL."""
    line, _, rest = data.partition(b"\r\n")
    method, _, target = line.partition(b" ")
    place = _authority(origin, keep_port=False)
    return b"%b http://%b%b\r\n%b%b" % (method, place, target, _credentials(proxy), rest)


def _credentials(proxy: Proxy) -> bytes:
    return b"Proxy-Authorization: %b\r\n" % proxy.credentials if proxy.credentials else b""


def _authority(origin: Origin, *, keep_port: bool) -> bytes:
    """Return ``host:port`` for a URL, without the zone of an address."""
    scheme, host, port = origin
    host = ascii_host(host.partition("%")[0])
    place = f"[{host}]" if ":" in host else host
    return f"{place}:{port}".encode() if keep_port or port != PORTS[scheme] else place.encode()


async def _first(
    dial: Callable[[str], Coroutine[Any, Any, _ClientProtocol]], hosts: Sequence[str]
) -> _ClientProtocol:
    """Return the first connection to one of the hosts; the others are closed.

    A dial begins after the one before has failed, or has taken a moment (RFC 8305). uvloop has no
    such race, and asyncio's loses the socket if it is cancelled at the moment of success. Raises
    the error of the last dial if all fail.
    """
    if len(hosts) == 1:
        return await dial(hosts[0])
    dials: list[asyncio.Task[_ClientProtocol]] = []
    winner, waiting = None, deque(hosts)
    try:
        while waiting or not all(each.done() for each in dials):
            if waiting:
                dials.append(asyncio.get_running_loop().create_task(dial(waiting.popleft())))
            await asyncio.wait(
                [each for each in dials if not each.done()],
                timeout=_HAPPY_EYEBALLS if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            winner = next((each for each in dials if each.done() and not each.exception()), None)
            if winner:
                return winner.result()
        return dials[-1].result()
    finally:
        await end(dials)
        for each in dials:
            if each is not winner and not each.cancelled() and not each.exception():
                each.result().abort()


class _ClientProtocol(asyncio.BufferedProtocol):
    """One connection. All connections share one buffer; data is copied before the next read."""

    def __init__(
        self,
        links: set[_ClientProtocol],
        buffer: memoryview,
        max_body: int,
        rest_timeout: float | None,
    ) -> None:
        self._buffer = buffer
        self._links = links
        self._max_body = max_body
        self._rest_timeout = rest_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._reader = ReplyReader("", max_body)
        self._waiter: asyncio.Future[Reply | None] | None = None
        self._since = 0.0
        self._lost = False
        self.error: Exception | None = None
        """The cause of a lost connection; None if the server closed it normally."""

    def send(self, method: str, data: bytes) -> asyncio.Future[Reply | None]:
        """Send a request; the result is None if the connection closed before a response began."""
        waiter: asyncio.Future[Reply | None] = self._loop.create_future()
        if self._lost:
            waiter.set_result(None)
            return waiter
        self._reader = ReplyReader(method, self._max_body)
        self._waiter = waiter
        self._transport.write(data)
        return waiter

    async def begin_tls(self, context: SSLContext, name: str) -> None:
        """Begin TLS with the server ``name``; raises OSError."""
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=name)
        if transport is None:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self._transport = transport

    def rest(self) -> bool:
        """Begin to be idle; return False if a part of the request is still unwritten."""
        self._since = self._loop.time()
        return not self._transport.get_write_buffer_size()

    def is_usable(self) -> bool:
        """Whether the connection is open, and not idle for too long."""
        return not self._lost and self._loop.time() - self._since < _MAX_IDLE

    def abort(self) -> None:
        """Close the connection at once."""
        self._lost = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._links.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio: return the buffer for the next read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio: ``nbytes`` are in the buffer."""
        waiter = self._waiter
        if waiter is None:
            self.abort()  # no request is pending
            return
        try:
            reply = self._reader.feed(bytes(self._buffer[:nbytes]))
        except ReplyError as error:
            self._end(error)
            return
        if reply is not None:
            self._end(reply)
        elif self._rest_timeout and self._timer is None and self._reader.has_status:
            self._timer = self._loop.call_later(self._rest_timeout, self._stop_waiting)

    def _stop_waiting(self) -> None:
        self._end(self._reader.error("the response does not end"))

    def eof_received(self) -> None:
        """Called by asyncio: the server sends no more; the transport closes itself."""
        self._lost = True
        if self._waiter:
            try:
                self._end(self._reader.finish())
            except ReplyError as error:
                self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio: the connection is closed."""
        self._lost = True
        self.error = error
        self._links.discard(self)
        if self._reader.has_input:
            broken = self._reader.error("the connection was lost within the response")
            broken.__cause__ = error
            self._end(broken)
        else:
            self._end(None)

    def _end(self, result: Reply | Exception | None) -> None:
        """Give the result to the pending request, if there is one."""
        waiter, self._waiter = self._waiter, None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if waiter and not waiter.done():
            if isinstance(result, Exception):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)
