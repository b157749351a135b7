"""httpx requests over nsqtools' own HTTP connections.

With a hundred concurrent requests, httpx's pool takes 2 ms of CPU per request, and this one a
fiftieth of that. A response that has a status line decides, as for nsq_to_http, whatever follows.
"""

from __future__ import annotations

from ssl import SSLError
from typing import TYPE_CHECKING

import httpx

from nsqtools.errors import ConfigError
from nsqtools.net.http.client import Connections, DialError
from nsqtools.net.http.wire import ClosedError, ReplyError
from nsqtools.sinks.http.requests import PreparedRequest, origin_of, render

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from nsqtools.net.http.client import Origin, Proxy
    from nsqtools.net.http.wire import Reply

MAX_BODY = 64 << 10
"""Maximum bytes of a response's body; the connection is closed after more."""
REST_TIMEOUT = 1.0
"""Seconds to read the rest of a response after its status line, to keep the connection."""

_SUCCESS = range(200, 300)
_NO_HEADERS = httpx.Headers()


class _Accepted(httpx.Response):
    """The status and body of a success; making all of httpx's response took 3 us."""

    def __init__(self, reply: Reply) -> None:
        self.status_code = reply.status
        self.headers = _NO_HEADERS
        self.stream = httpx.ByteStream(bytes(reply.body))


class Transport(httpx.AsyncBaseTransport):
    """Sends requests over HTTP/1.1.

    Raises httpx.ConnectError and ConnectTimeout if certainly no part of a request arrived,
    LocalProtocolError for a header with a line break, and ReadError without the status line of a
    response. The caller limits the time for it. ``explain`` turns the error of a connection into
    text; the other arguments are those of Connections.
    """

    def __init__(
        self,
        context: SSLContext | None,
        *,
        connect_timeout: float,
        rest_timeout: float = REST_TIMEOUT,
        proxy_of: Callable[[Origin], Proxy | None] | None = None,
        explain: Callable[[BaseException], str] = str,
    ) -> None:
        self._connections = Connections(
            context,
            connect_timeout=connect_timeout,
            max_body=MAX_BODY,
            rest_timeout=rest_timeout,
            proxy_of=proxy_of,
        )
        self._connect_timeout = connect_timeout
        self._explain = explain

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return the response, without headers if it is a success."""
        try:
            if isinstance(request, PreparedRequest):
                origin, data = request.origin, request.data
            else:
                origin, data = origin_of(request.url), render(request)
            reply = await self._connections.exchange(origin, request.method, data)
        except ValueError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from None
        except ConfigError as error:  # the proxy of a place that a redirect leads to
            raise httpx.ConnectError(str(error), request=request) from None
        except DialError as error:
            raise self._not_connected(error.__cause__ or error, request) from error.__cause__
        except ReplyError as error:
            if error.part is None:
                # TLS 1.3 refuses a client certificate only after the handshake.
                text = str(error)
                if isinstance(error, ClosedError) and isinstance(error.__cause__, SSLError):
                    text = self._explain(error.__cause__)
                raise httpx.ReadError(text, request=request) from error.__cause__
            reply = error.part
        if reply.status in _SUCCESS:
            return _Accepted(reply)
        stream = httpx.ByteStream(bytes(reply.body))
        return httpx.Response(reply.status, headers=reply.headers, stream=stream, request=request)

    async def aclose(self) -> None:
        """Close the connections; current requests fail."""
        self._connections.close()

    def _not_connected(self, error: BaseException, request: httpx.Request) -> httpx.TransportError:
        if isinstance(error, TimeoutError):
            text = f"no connection within {self._connect_timeout:g} s"
            return httpx.ConnectTimeout(text, request=request)
        return httpx.ConnectError(self._explain(error), request=request)
