"""One request to an HTTP API of nsqd or nsqlookupd, and what its reply says.

Replies of version 1 and the envelope of earlier servers, ``{"status_code", "status_txt", "data"}``,
read the same. Every failure of a server is an HTTPError of one line that names it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import ssl
from functools import cache, lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from nsqtools import __version__
from nsqtools.config import ClientConfig
from nsqtools.config.units import format_duration
from nsqtools.errors import ConfigError, HTTPError, show
from nsqtools.lean import httpx
from nsqtools.names import Address
from nsqtools.net.tls import client_context, explain, warn_of_secret_in_clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nsqtools.errors import Reason
    from nsqtools.net.replies import LeftOut

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_REPLY = 64 << 20
"""Longest reply that is read, in bytes; /stats of a very large nsqd is a few MiB."""

_DIGITS = 25
_V1 = "nsq; version=1.0"

# What an unknown topic is called: nsqlookupd before 0.3 said 500 INVALID_ARG_TOPIC.
_UNKNOWN_TOPIC = frozenset({"TOPIC_NOT_FOUND", "INVALID_ARG_TOPIC"})


class URL(NamedTuple):
    """Base of a server's API; ``path`` is escaped, ``query`` is not."""

    scheme: str
    address: Address
    path: str = ""
    query: tuple[tuple[str, str], ...] = ()


def parse_url(text: str, default_port: int | None = None) -> URL:
    """Read ``host:port`` or ``http(s)://host:port/path?query``, as go-nsq does (``consumer.go``).

    Raises ConfigError naming what is wrong; a missing port is, unless there is a default one.
    """
    try:
        parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    except ValueError as error:
        raise ConfigError(f"address {text!r}: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"address {text!r}: expected host:port, http:// or https://")
    address = Address.parse(parts.netloc, default_port)
    if " " in address.host or not address.host.isprintable():
        raise ConfigError(f"address {text!r}: expected a host name without spaces")
    if reason := _unusable(parts.scheme, address, parts.path):
        raise ConfigError(f"address {text!r}: {reason}")
    query = tuple(parse_qsl(parts.query, keep_blank_values=True))
    return URL(parts.scheme, address, parts.path, query)


def _unusable(scheme: str, address: Address, path: str = "") -> str:
    """Why no request can be made of it, if so."""
    try:
        # The host is decoded for the request's header, which may fail by itself.
        _ = httpx.URL(scheme=scheme, host=address.host, path=path or "/").host
    except (httpx.InvalidURL, UnicodeError) as error:
        return str(error)
    return ""


class _Reply(NamedTuple):
    status: int
    headers: httpx.Headers
    body: bytes


class Deadline:
    """When a command wants its last answer; the clients of all servers that it asks share it."""

    def __init__(self, timeout: float = math.inf) -> None:
        self.begin(timeout)

    def begin(self, timeout: float) -> None:
        """Begin anew; ``timeout`` is in seconds."""
        self._end = monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds, or none."""
        return max(0.0, self._end - monotonic())

    def check(self, address: Address | None) -> None:
        """Raise HTTPError, of the server that was to be asked, if no time is left."""
        if not self.left:
            raise HTTPError("not asked: --timeout had expired", address, reason="silence")


class HTTPClient:
    """One server; an async context manager.

    ``connect_timeout`` is the limit, in seconds, for TCP and for the TLS handshake each,
    ``request_timeout`` for all of a request, besides the ``deadline``. ``tls`` serves https, by
    default verifying against the system's CAs. ``token`` goes out as a bearer token. ``tell`` is
    told of each entry of a reply that cannot be used, with the name of the endpoint; by default
    that is a warning, once. Raises ConfigError for a bad ``url``.
    ``date`` is the header of that name in the last reply. ``at`` is when that was made, in
    monotonic seconds: as near as can be said, midway between the request and its beginning.
    """

    default_port: ClassVar[int]

    def __init__(
        self,
        url: str | URL,
        *,
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None = None,
        token: str = "",
        deadline: Deadline | None = None,
        tell: Callable[[str, str], object] | None = None,
    ) -> None:
        self.url = parse_url(url, self.default_port) if isinstance(url, str) else url
        self.address = self.url.address
        self.date = ""
        self.at = 0.0
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._deadline = deadline or Deadline()
        self._tell = tell or partial(_warn_once, self.address)
        headers = [
            (b"Accept", f"application/vnd.{_V1}".encode()),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", f"nsqtools/{__version__}".encode()),
        ]
        if token:
            if not token.isprintable():
                raise ConfigError("auth_secret: a bearer token cannot hold control characters")
            headers.append((b"Authorization", f"Bearer {token}".encode()))
            if self.url.scheme == "http":
                warn_of_secret_in_clear(self.address)
        if tls is None and self.url.scheme == "https":
            tls = client_context(ClientConfig())
        self._client = httpx.AsyncClient(
            headers=headers,
            verify=tls or _no_cas(),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(request_timeout, connect=connect_timeout),
        )

    @classmethod
    def listed(cls, address: Address, **limits: Any) -> Self:
        """A client for where another server says that this one is, over plain http.

        Raises HTTPError for what can be nowhere: that is a server's fault, and of no other one.
        """
        if reason := _unusable("http", address):
            raise HTTPError(f"cannot be asked there: {show(reason)}", address)
        return cls(URL("http", address), **limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that are kept alive."""
        await self._client.aclose()

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
        """GET an endpoint and decode its data; ``unknown`` is the answer for an unknown topic.

        ``decode`` raises ValueError for data of the wrong shape, and notes what it leaves out.
        """
        reply = await self._exchange("GET", name, params)
        left_out: LeftOut = []
        try:
            status, code, data = _unwrap(reply)
            if status == 200:
                found = decode(data, left_out)
                for each in left_out:
                    self._tell(name, each)
                return found
        except ValueError as error:
            text = f"/{name}: unexpected reply: {error}"
            raise HTTPError(text, self.address, status=reply.status) from error
        if unknown is not None and code in _UNKNOWN_TOPIC:
            return unknown
        raise self._refused(name, reply)

    async def _change(self, name: str, **params: str) -> None:
        """POST to an endpoint that answers with nothing; raises HTTPError unless it did it."""
        reply = await self._exchange("POST", name, params)
        if reply.status == 200 and not reply.body:
            return
        try:
            status, *_ = _unwrap(reply)
        except ValueError as error:
            text = f"/{name}: unexpected reply: {error}"
            raise HTTPError(text, self.address, status=reply.status) from error
        if status != 200:
            raise self._refused(name, reply)

    async def _exchange(self, method: str, name: str, params: Mapping[str, str]) -> _Reply:
        """One request, and its reply whatever its status; raises HTTPError."""
        scheme, address, _, query = self.url
        self._deadline.check(address)
        url = httpx.URL(
            scheme=scheme,
            host=address.host,
            port=address.port,
            path=self._path(name),
            params=[*(pair for pair in query if pair[0] not in params), *params.items()],
        )
        replying = False
        begin = monotonic()
        try:
            async with (
                asyncio.timeout(min(self._request_timeout, self._deadline.left)),
                self._client.stream(method, url) as response,
            ):
                replying = True
                self.at = (begin + monotonic()) / 2
                self.date = response.headers.get("Date", "")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY:
                        text = f"/{name}: the reply is longer than {MAX_REPLY >> 20} MiB"
                        raise HTTPError(text, address, status=response.status_code)
                return _Reply(response.status_code, response.headers, bytes(body))
        except (httpx.HTTPError, OSError) as error:
            text, reason = self._explain(error, replying=replying)
            raise HTTPError(text, address, reason=reason) from error

    def _refused(self, name: str, reply: _Reply) -> HTTPError:
        """The error for a reply that is not a success."""
        status, code, data = _unwrap(reply)
        text = show(code)
        if code == "TLS_REQUIRED":
            port = data.get("https_port") if isinstance(data, dict) else None
            where = Address(self.address.host, port) if type(port) is int and port else "..."
            text = f"TLS_REQUIRED: give its HTTPS address instead, https://{where}"
        elif 300 <= status < 400:
            target = show(reply.headers.get("Location", ""))
            text = f"redirect to {target!r}: redirects are not followed, give the final address"
        line = f"/{name}: {status} {text}".rstrip()
        return HTTPError(line, self.address, status=status, code=code)

    def _explain(self, error: BaseException, *, replying: bool) -> tuple[str, Reason]:
        """One line for what httpx, or the time limit, raised."""
        if isinstance(error, httpx.ConnectTimeout):
            return f"no connection within {format_duration(self._connect_timeout)}", "dial"
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            if not self._deadline.left:
                return "no answer in the time of --timeout", "silence"
            return f"no answer within {format_duration(self._request_timeout)}", "silence"
        cause = next(_system_errors(error), None)
        if isinstance(cause, socket.gaierror):
            return f"cannot resolve {self.address.host!r}", "name"
        reason: Reason = "dial" if isinstance(error, httpx.ConnectError) else ""
        tls = isinstance(cause, ssl.SSLError) or (self.url.scheme == "https" and not replying)
        if cause and tls and not isinstance(cause, ConnectionRefusedError):
            text, reason = explain(cause), "tls"
        elif cause:
            text = os.strerror(cause.errno or 0).lower()
        else:
            text = show(str(error)).rstrip(".") or type(error).__name__
        if replying:
            return f"the reply broke off: {text}", reason
        if cause:
            return text, reason
        return f"no usable reply: {text}: check that this is the server's HTTP port", ""


@cache
def _no_cas() -> ssl.SSLContext:
    """A context for plain http, that of all clients: httpx's own would load its CAs."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@lru_cache(1000)
def _warn_once(address: Address, name: str, left_out: str) -> None:
    log.warning("%s: /%s: left out %s", address, name, left_out)


def _unwrap(reply: _Reply) -> tuple[int, str, Any]:
    """Status, error code and data of a reply, in an envelope or not.

    Raises ValueError for a success that is not JSON; of another reply, the text is the code.
    """
    try:
        # No integer has so many digits: a longer one, which Python refuses, is out of range.
        data = json.loads(reply.body, parse_int=lambda digits: int(digits[:_DIGITS]))
    except (ValueError, RecursionError) as error:
        text = show(reply.body)
        if reply.status != 200:
            return reply.status, text, None
        hint = "check that this is the HTTP port of the right server"
        raise ValueError(f"not JSON, but {text!r}: {hint}") from error
    fields = data if isinstance(data, dict) else {}
    if reply.headers.get("X-NSQ-Content-Type") == _V1 or "status_code" not in fields:
        return reply.status, str(fields.get("message", "")), data
    status = fields["status_code"]
    if reply.status != 200 or type(status) is not int:
        status = reply.status
    return status, str(fields.get("status_txt", "")), fields.get("data")


def _system_errors(error: BaseException | None) -> Iterator[OSError]:
    """The errors with a number behind an error, outermost first."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _system_errors(each)
        elif isinstance(error, OSError) and error.errno:
            yield error
        error = error.__cause__ or error.__context__
