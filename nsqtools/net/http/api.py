"""The base of the HTTP clients of nsqd and nsqlookupd: sends requests, decodes responses.

It reads version 1 of the API and the envelope of earlier servers, ``{"status_code", "status_txt",
"data"}``. Every failure is an HTTPError of one line naming the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from nsqtools import __version__
from nsqtools.clock import ServerClock, wall_ns
from nsqtools.config.connection import ClientConfig
from nsqtools.config.units import format_duration
from nsqtools.errors import ConfigError, HTTPError, show
from nsqtools.names import Address
from nsqtools.net.http.client import Connections, DialError
from nsqtools.net.http.longjson import LONG, loads
from nsqtools.net.http.replies import ascii_host, is_host
from nsqtools.net.http.wire import ClosedError, ReplyError, render, render_fields
from nsqtools.net.tls import client_context, explain, plain, warn_of_secret_in_clear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsqtools.errors import Reason
    from nsqtools.net.http.replies import LeftOut
    from nsqtools.net.http.wire import Reply

T = TypeVar("T")

log = logging.getLogger(__name__)

_POST_TIMEOUT = 5.0
_POST_REPLY = 64 << 10
_V1 = "nsq; version=1.0"
# Codes for an unknown topic; nsqlookupd before 0.3 answered 500 INVALID_ARG_TOPIC.
_UNKNOWN_TOPIC = frozenset({"TOPIC_NOT_FOUND", "INVALID_ARG_TOPIC"})

# During the TLS handshake, these errors may come from a server that does not speak TLS.
_HUNG_UP = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


class URL(NamedTuple):
    """The base URL of a server's API; ``path`` is percent-encoded, ``query`` is not."""

    scheme: str
    address: Address
    path: str = ""
    query: tuple[tuple[str, str], ...] = ()


def parse_url(text: str, default_port: int | None = None) -> URL:
    """Parse ``host:port`` or ``http(s)://host:port/path?query``, as go-nsq does (``consumer.go``).

    The port may be missing only with a default. Raises ConfigError with the reason.
    """
    try:
        parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    except ValueError as error:
        raise ConfigError(f"address {text!r}: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"address {text!r}: expected host:port, http:// or https://")
    address = Address.parse(parts.netloc, default_port)
    if not is_host(address.host):
        raise ConfigError(f"address {text!r}: expected a host name or an IP address")
    if not parts.path.isprintable():
        raise ConfigError(f"address {text!r}: the path contains a control character")
    query = tuple(parse_qsl(parts.query, keep_blank_values=True))
    return URL(parts.scheme, address, quote(parts.path, safe="/%:@!$&'()*+,;=~"), query)


async def post_json(url: str, body: bytes) -> None:
    """POST a JSON body; raises HTTPError unless a status of 2xx comes within 5 seconds."""
    scheme, address, path, _ = parse_url(url, 443 if url.startswith("https") else 80)
    _, mark, query = url.partition("?")  # sent as it was written
    fields = {
        "Host": str(address),
        "User-Agent": f"nsqtools/{__version__}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = render_fields([(name.encode(), value.encode()) for name, value in fields.items()])
    request = render("POST", f"{path or '/'}{mark}{query}".encode(), lines, body)
    connections = Connections(None, connect_timeout=_POST_TIMEOUT, max_body=_POST_REPLY)
    try:
        async with asyncio.timeout(_POST_TIMEOUT):
            reply = await connections.exchange((scheme, *address), "POST", request)
    except (DialError, ReplyError, TimeoutError) as error:
        raise HTTPError(str(error) or "no response", address) from error
    finally:
        connections.close()
    if not 200 <= reply.status < 300:
        raise HTTPError(f"status {reply.status}", address, status=reply.status)


class Deadline:
    """The end of a command's --timeout, shared by the clients of all asked servers."""

    def __init__(self, timeout: float = math.inf) -> None:
        self.begin(timeout)

    def begin(self, timeout: float) -> None:
        """Restart with a new ``timeout``, in seconds."""
        self._end = monotonic() + timeout

    @property
    def left(self) -> float:
        """The remaining time in seconds; 0 once expired."""
        return max(0.0, self._end - monotonic())

    def check(self, address: Address | None) -> None:
        """Raise HTTPError if no time is left to ask the server at this address."""
        if not self.left:
            raise HTTPError("not asked: --timeout had expired", address, reason="silence")


def limits_within(timeout: float) -> dict[str, float]:
    """Return HTTPClient's timeouts for a command of at most ``timeout`` seconds in total.

    Even if a server hangs, time remains to ask the servers listed by other nsqlookupds.
    """
    return {"connect_timeout": timeout / 4, "request_timeout": timeout * 5 / 8}


class HTTPClient:
    """The HTTP client of one server; an async context manager.

    ``connect_timeout`` is for TCP and the TLS handshake together, ``request_timeout`` for the whole
    request, both in seconds; ``deadline`` limits requests as well. ``tls`` is the context for
    https; by default the system's CAs are trusted. ``token`` is sent as a bearer token. ``tell`` is
    called with the endpoint's name and a description of each unusable entry of a response; by
    default each entry is logged once. No proxy is used. Raises ConfigError for an invalid ``url``.

    ``clock`` is the server's clock by the last response, None if unknown. ``skew`` is its least
    possible lead over this host's wall clock at that time, in seconds, negative if it is behind;
    None if unknown. ``at`` is the estimated time of the response's creation, midway between request
    and response, in monotonic seconds.
    """

    kind: ClassVar[str]
    default_port: ClassVar[int]
    max_reply: ClassVar[int]
    """Maximum size of a response, in bytes."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None = None,
        token: str = "",
        deadline: Deadline | None = None,
        tell: Callable[[str, str], object] | None = None,
    ) -> None:
        self.url = parse_url(url, self.default_port)
        self.address = self.url.address
        self.clock: ServerClock | None = None
        self.skew: float | None = None
        self.at = 0.0
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._deadline = deadline or Deadline()
        self._tell = tell or partial(_warn_once, self.address)
        if tls is None and self.url.scheme == "https":
            tls = client_context(ClientConfig())
        self._fields = self._render_fields(token)
        self._connections = Connections(
            tls, connect_timeout=connect_timeout, max_body=self.max_reply
        )

    @property
    def _fix(self) -> str:
        return f"give the HTTP port of an {self.kind}, {self.default_port} by default"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections kept alive."""
        self._connections.close()

    def _render_fields(self, token: str) -> bytes:
        """Return the headers of all requests."""
        host = ascii_host(self.address.host.partition("%")[0])
        headers = {
            "Host": str(Address(host, self.address.port)),
            "Accept": f"application/vnd.{_V1}",
            "Accept-Encoding": "identity",
            "User-Agent": f"nsqtools/{__version__}",
        }
        if token:
            if not token.isprintable():
                raise ConfigError("auth_secret: a bearer token cannot contain control characters")
            headers["Authorization"] = f"Bearer {token}"
            if self.url.scheme == "http":
                warn_of_secret_in_clear(self.address)
        return render_fields([(name.encode(), value.encode()) for name, value in headers.items()])

    def _path(self, name: str) -> str:
        return f"{self.url.path.rstrip('/')}/{name}"

    async def _read(
        self,
        name: str,
        params: Mapping[str, str],
        decode: Callable[[Any, LeftOut], T],
        *,
        unknown: T | None = None,
    ) -> T:
        """GET an endpoint and decode the response; for an unknown topic return ``unknown``.

        ``decode`` raises ValueError for data of the wrong type, and notes left-out entries.
        """
        left_out: LeftOut = []
        try:
            # Nothing refers to the response any more when its data is decoded.
            data = self._data_of(name, await self._exchange("GET", name, params))
            found = decode(data, left_out)
        except HTTPError as error:
            if unknown is not None and error.code in _UNKNOWN_TOPIC:
                return unknown
            raise
        except ValueError as error:
            raise self._unexpected(name, 200, error) from error
        for each in left_out:
            self._tell(name, each)
        return found

    async def change(self, name: str, **params: str) -> None:
        """POST to an endpoint such as ``topic/create``, with the parameters topic, channel or node.

        Creating an existing topic or channel has no effect. Raises HTTPError on failure.
        """
        reply = await self._exchange("POST", name, params)
        if reply.status != 200 or reply.body:
            self._data_of(name, reply)

    def _decode_object(self, value: dict[str, Any]) -> object:
        """Decode an object while JSON is parsed; by default the object stays as it is."""
        return value

    async def _exchange(self, method: str, name: str, params: Mapping[str, str]) -> Reply:
        """Send one request, and return the response, whatever its status; raises HTTPError."""
        scheme, address, _, query = self.url
        self._deadline.check(address)
        asked = urlencode([*(pair for pair in query if pair[0] not in params), *params.items()])
        target = f"{self._path(name)}?{asked}" if asked else self._path(name)
        fields = self._fields + (b"Content-Length: 0\r\n" if method == "POST" else b"")
        request = render(method, target.encode(), fields)
        began = monotonic()
        try:
            async with asyncio.timeout(min(self._request_timeout, self._deadline.left)):
                reply = await self._connections.exchange((scheme, *address), method, request)
        except (DialError, ReplyError, TimeoutError) as error:
            text, reason = self._explain(error)
            raise HTTPError(text, address, reason=reason) from error
        ended, ours = monotonic(), wall_ns()
        self.at = (began + ended) / 2
        self.clock = ServerClock.of(reply.header("Date"), began, ended)
        self.skew = self.clock.skew(ended, ours) if self.clock else None
        if reply.is_cut:
            text = f"/{name}: the response is larger than {self.max_reply >> 20} MiB"
            raise HTTPError(text, address, status=reply.status)
        if len(reply.body) > LONG:
            await asyncio.sleep(0)  # until then the event loop refers to the response
        return reply

    def _data_of(self, name: str, reply: Reply) -> Any:
        """Return the data of a response; raises HTTPError unless it is a success in JSON."""
        try:
            status, code, data = _unwrap(reply, self._decode_object)
        except ValueError as error:
            raise self._unexpected(name, reply.status, error) from error
        if status == 200:
            return data
        text = show(code)
        if code == "TLS_REQUIRED":
            port = data.get("https_port") if isinstance(data, dict) else None
            address = Address(self.address.host, port) if type(port) is int and port else "..."
            text = f"TLS_REQUIRED: use its HTTPS address https://{address}"
        elif 300 <= status < 400:
            target = show(reply.header("Location"))
            text = f"redirect to {target!r}: redirects are not followed: give the final address"
        elif code == "NOT_FOUND":  # of a path; TOPIC_NOT_FOUND is another code
            text += f": {self._fix}"
        line = f"/{name}: {status} {text}".rstrip()
        raise HTTPError(line, self.address, status=status, code=code)

    def _unexpected(self, name: str, status: int, error: ValueError) -> HTTPError:
        """Return the error for an undecodable response."""
        text = f"/{name}: unexpected response: {error}"
        return HTTPError(text, self.address, status=status)

    def _explain(self, error: DialError | ReplyError | TimeoutError) -> tuple[str, Reason]:
        """Return one line with the reason for a missing response, and the kind of reason."""
        if isinstance(error, TimeoutError):
            if not self._deadline.left:
                return "no response within --timeout", "silence"
            return f"no response within {format_duration(self._request_timeout)}", "silence"
        cause = error.__cause__
        begun = isinstance(error, ReplyError) and error.part is not None
        reason: Reason = "dial" if isinstance(error, DialError) else ""
        if isinstance(cause, TimeoutError):
            return f"no connection within {format_duration(self._connect_timeout)}", "dial"
        if isinstance(cause, socket.gaierror | UnicodeError):
            return f"cannot resolve {self.address.host!r}", "name"
        hung_up = not begun and (isinstance(error, ClosedError) or isinstance(cause, _HUNG_UP))
        if isinstance(cause, ssl.SSLError) or (hung_up and self.url.scheme == "https"):
            cause = cause or ssl.SSLEOFError()
            text, reason = explain(cause), "tls"
        elif isinstance(cause, OSError):
            text = plain(cause)
        else:
            text = show(str(error)).rstrip(".")
        if begun:
            return f"the response is invalid or incomplete: {text}", reason
        if cause:
            return text, reason
        return f"does not answer in HTTP: {self._fix}", ""


@lru_cache(1000)
def _warn_once(address: Address, name: str, left_out: str) -> None:
    log.warning("%s: /%s: left out %s", address, name, left_out)


def _unwrap(
    reply: Reply, decode_object: Callable[[dict[str, Any]], object]
) -> tuple[int, str, Any]:
    """Return status, error code and data of a response, with or without an envelope.

    A successful response without JSON raises ValueError; in an error without JSON the text is the
    code.
    """
    try:
        data = loads(reply.body, decode_object)
    except (ValueError, RecursionError) as error:
        text = show(bytes(reply.body))
        if reply.status != 200:
            return reply.status, text, None
        raise ValueError(f"not JSON, but {text!r}") from error
    fields = data if isinstance(data, dict) else {}
    if reply.header("X-NSQ-Content-Type") == _V1 or "status_code" not in fields:
        return reply.status, str(fields.get("message", "")), data
    status = fields["status_code"]
    if reply.status != 200 or type(status) is not int:
        status = reply.status
    return status, str(fields.get("status_txt", "")), fields.get("data")
