"""httpx requests for messages. Parts shared by all requests to a URL are prepared once.

No part of a message, such as body, id or topic, can add a header, or change more of a URL than its
own value.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, unquote

import httpx

from nsqtools import __version__
from nsqtools.errors import RecordError
from nsqtools.net.http import wire
from nsqtools.net.http.client import PORTS
from nsqtools.records.bodies.objects import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.engine.handler import Message
    from nsqtools.net.http.client import Origin
    from nsqtools.net.http.wire import Header
    from nsqtools.sinks.http.signing import Signer

MAX_IDS = 200
"""Maximum ids of a batch in a header: servers accept header lines of 4 to 8 KiB."""

_GZIP_LEVEL = 6
_OCTETS = b"application/octet-stream"
_FACTS = (
    (b"X-NSQ-Id", b"%(id)b"),
    (b"X-NSQ-Attempts", b"%(attempts)d"),
    (b"X-NSQ-Timestamp", b"%(timestamp)d"),
)
_ZONE = re.compile(rb"%25[^\]]*")

# quote_plus escapes the same bytes as Go's url.QueryEscape.
_ESCAPED = [quote_plus(bytes([byte])) for byte in range(256)]


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """A format that joins several bodies into one; ``fits`` accepts the bodies that it can hold."""

    content_type: bytes
    join: Callable[[Sequence[bytes]], bytes]
    fits: Callable[[bytes], bool]


def _is_json(body: bytes) -> bool:
    try:
        text_of(body)
    except RecordError:
        return False
    return True


def _join_lines(bodies: Sequence[bytes]) -> bytes:
    """JSON has raw line breaks only between tokens, where a space is equivalent, and never NUL."""
    lines = b"\0".join(bodies).replace(b"\n", b" ").replace(b"\r", b" ")
    return lines.replace(b"\0", b"\n") + b"\n"


def _join_array(bodies: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(bodies)


def _join_prefixed(bodies: Sequence[bytes]) -> bytes:
    size = struct.Struct(">I").pack
    return b"".join([part for body in bodies for part in (size(len(body)), body)])


BATCH_FORMATS = {
    "ndjson": BatchFormat(b"application/x-ndjson", _join_lines, _is_json),
    "json-array": BatchFormat(b"application/json", _join_array, _is_json),
    "length-prefixed": BatchFormat(_OCTETS, _join_prefixed, lambda body: True),
}
"""Choices of ``--batch-format``; length-prefixed puts a 4-byte big-endian size before each body."""


def origin_of(url: httpx.URL) -> Origin:
    """Return the origin of a URL."""
    return url.scheme, url.host.replace("%25", "%"), url.port or PORTS[url.scheme]


def render(request: httpx.Request) -> bytes:
    """Return the bytes of a request; raises ValueError for a header with a line break."""
    body = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else b""
    fields = wire.render_fields(request.headers.raw)
    return wire.render(request.method, request.url.raw_path, fields, body)


class PreparedRequest(httpx.Request):
    """The bytes of a request, in ``data``; httpx's parts are made of them only on demand.

    Making them for each request took a tenth of the time.
    """

    def __init__(self, method: str, url: httpx.URL, origin: Origin, data: bytes) -> None:
        self.method = method
        self.url = url
        self.origin = origin
        self.data = data
        self.extensions = {}

    @cached_property
    def headers(self) -> httpx.Headers:  # type: ignore[override]
        """All headers."""
        head, _, _ = self.data.partition(b"\r\n\r\n")
        fields = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
        return httpx.Headers([(name, value) for name, _, value in fields])

    @cached_property
    def stream(self) -> httpx.ByteStream:  # type: ignore[override]
        """The body."""
        return httpx.ByteStream(self.data.partition(b"\r\n\r\n")[2])


class Endpoint:
    """A target URL for messages; ``make_endpoints`` makes endpoints.

    ``name`` is unique and for logs; ``url`` is the target of requests. Both have no user and
    password, and ``name`` has no values of the query.
    """

    method = "POST"

    def __init__(
        self,
        url: httpx.URL,
        name: str,
        headers: Sequence[Header],
        *,
        content_type: bytes = b"",
        form: BatchFormat | None = None,
        signer: Signer | None = None,
        compress: bool = False,
    ) -> None:
        self.url = url
        self.name = name
        self._headers = headers
        self._given = frozenset(key.lower() for key, _ in headers)
        self._content_type = content_type
        self._form = form
        self._signer = signer
        self._compress = compress
        self._origin = origin_of(url)
        self._target = url.raw_path
        self._facts_of_one = _lines(self._own(_FACTS))
        self._heads: dict[tuple[str, str], bytes] = {}
        """The headers shared by all requests, by topic and channel."""

    def fits(self, body: bytes) -> bool:
        """Whether a request can carry this body; ``build`` accepts only such bodies."""
        return self._form is None or self._form.fits(body)

    def build(
        self, topic: str, channel: str, messages: Sequence[Message], now: float
    ) -> httpx.Request:
        """Return the request for these messages; ``now`` is in seconds since the epoch.

        Without a batch format there is one message. The signature covers the body before
        compression, as receivers see it.
        """
        body = self._form.join([each.body for each in messages]) if self._form else messages[0].body
        facts = self._facts(messages)
        if self._signer:
            facts += _lines(self._signer.sign(_webhook_id(messages), now, body))
        if self._compress:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        head = self._head(topic, channel)
        fields = b"%b%bContent-Length: %d\r\n" % (head, facts, len(body))
        data = wire.render(self.method, self._target, fields, body)
        return PreparedRequest(self.method, self.url, self._origin, data)

    def _facts(self, messages: Sequence[Message]) -> bytes:
        """Return the lines of headers about the messages; a batch may have one message."""
        if self._form:
            facts = [(b"X-NSQ-Count", b"%d" % len(messages))]
            if len(messages) <= MAX_IDS:
                facts.append((b"X-NSQ-Ids", b",".join([_identity(each) for each in messages])))
            return _lines(self._own(facts))
        (message,) = messages
        return self._facts_of_one % {
            b"id": _identity(message),
            b"attempts": message.attempts,
            b"timestamp": message.timestamp,
        }

    def _own(self, headers: Sequence[Header]) -> list[Header]:
        """Return the headers not replaced by the user."""
        return [each for each in headers if each[0].lower() not in self._given]

    def _head(self, topic: str, channel: str) -> bytes:
        """Return the lines of the headers shared by all requests of a topic."""
        head = self._heads.get((topic, channel))
        if head is None:
            # Valid names remain unchanged; in others, quoting prevents line breaks.
            own = [
                (b"Host", _ZONE.sub(b"", self.url.netloc)),
                (b"User-Agent", f"nsqtools/{__version__}".encode()),
                *self._content(),
                (b"X-NSQ-Topic", quote(topic, safe="#").encode()),
                (b"X-NSQ-Channel", quote(channel, safe="#").encode()),
            ]
            head = wire.render_fields([*self._own(own), *self._headers])
            self._heads[topic, channel] = head
        return head

    def _content(self) -> list[Header]:
        """Return the headers of the body, except its length."""
        default = self._form.content_type if self._form else _OCTETS
        headers = [(b"Content-Type", self._content_type or default)]
        if self._compress:
            headers.append((b"Content-Encoding", b"gzip"))
        return headers

    def __repr__(self) -> str:
        return f"<Endpoint {self.method} {self.name}>"


class GetEndpoint(Endpoint):
    """A URL with %s in the path or query, to be replaced by the escaped body."""

    method = "GET"

    def __init__(self, url: httpx.URL, name: str, headers: Sequence[Header]) -> None:
        super().__init__(url, name, headers)
        self._before, _, self._after = url.raw_path.partition(b"%s")
        self._segment = (
            self._before.rpartition(b"/")[2],
            self._after.partition(b"?")[0].partition(b"/")[0],
        )

    def fits(self, body: bytes) -> bool:
        """Whether the body leads nowhere else: . or .. as a part of the path would."""
        if len(body) > 2:
            return True
        start, end = self._segment
        return b"?" in self._before or start + body + end not in (b".", b"..")

    def build(
        self, topic: str, channel: str, messages: Sequence[Message], now: float
    ) -> httpx.Request:
        """Return the request for a single message."""
        value = "".join([_ESCAPED[byte] for byte in messages[0].body]).encode()
        target = b"%b%b%b" % (self._before, value, self._after)
        fields = self._head(topic, channel) + self._facts(messages)
        data = wire.render(self.method, target, fields)
        return PreparedRequest(self.method, _FilledURL(self.url, target), self._origin, data)

    def _content(self) -> list[Header]:
        return []


class _FilledURL(httpx.URL):
    """A URL with another path and query; httpx would parse it again, and allows only 64 KiB."""

    def __init__(self, url: httpx.URL, raw_path: bytes) -> None:
        super().__init__(url)
        self._raw_path = raw_path

    @property
    def raw_path(self) -> bytes:
        return self._raw_path

    @property
    def path(self) -> str:
        return unquote(self._raw_path.partition(b"?")[0].decode("ascii"))

    def __str__(self) -> str:
        start = f"{self.scheme}://{self.netloc.decode('ascii')}"
        return start + self._raw_path.decode("ascii")

    def __repr__(self) -> str:
        return f"URL({str(self)!r})"


def _lines(headers: Sequence[Header]) -> bytes:
    """Return the lines of headers that cannot contain a line break."""
    return b"".join([b"%b: %b\r\n" % each for each in headers])


def _identity(message: Message) -> bytes:
    """Return the id, hexadecimal digits from nsqd; any other id is made safe."""
    return message.id if message.id.isalnum() else message.id.hex().encode()


def _webhook_id(messages: Sequence[Message]) -> bytes:
    """Return the same id for each delivery; message ids are unique per topic and nsqd only."""
    ids = [b"%b-%d" % (_identity(each), each.timestamp) for each in messages]
    if len(ids) == 1:
        return ids[0]
    return b"batch-" + hashlib.sha256(b",".join(ids)).hexdigest()[:32].encode()
