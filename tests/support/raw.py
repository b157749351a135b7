"""Clients of the tests that are nothing but a socket: they send what they are told.

Synchronous, and independent of nsqtools: what a test shows with them is the server's doing.
"""

import contextlib
import http.client
import json
import socket
import ssl
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import snappy

from nsqtools.names import Address
from tests.support import wire

Connect = Callable[..., "Raw"]
"""Connects to an nsqd, to the module's unless told."""

PATIENCE = 15.0
HEARTBEAT = (wire.RESPONSE, b"_heartbeat_")


def sized(body: bytes) -> bytes:
    """A body as commands carry it, after its size."""
    return struct.pack(">i", len(body)) + body


def prefixed(bodies: Iterable[bytes]) -> bytes:
    """Bodies, each after its size."""
    return b"".join(map(sized, bodies))


def unprefixed(data: bytes) -> list[bytes]:
    """The bodies of ``prefixed``, which all have to be whole."""
    found, start = [], 0
    while start < len(data):
        (size,) = struct.unpack_from(">i", data, start)
        body = data[start + 4 : start + 4 + size]
        assert len(body) == size
        found.append(body)
        start += 4 + size
    return found


def mpub(*bodies: bytes) -> bytes:
    """The body of MPUB, without its size."""
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))


class Message(NamedTuple):
    """A message as it was delivered; ``timestamp`` in ns."""

    timestamp: int
    attempts: int
    id: str
    body: bytes


class Raw:
    """A connection to nsqd; a context manager.

    A read that gets nothing within ``PATIENCE`` seconds is a TimeoutError.
    """

    def __init__(self, address: Address, magic: bytes = wire.MAGIC) -> None:
        self.socket = socket.create_connection(address, PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = self.socket.getsockname()
        self.address = f"{host}:{port}"
        self._received = b""
        self._kept: deque[tuple[int, bytes]] = deque()
        self._encode: Callable[[bytes], bytes] = bytes
        self._decode: Callable[[bytes], bytes] = bytes
        self.write(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        self.socket.sendall(self._encode(data))

    def send(self, line: str, body: bytes | None = None) -> None:
        """Send one command, with its size if it has a body."""
        self.write(line.encode() + b"\n" + (b"" if body is None else sized(body)))

    def frame(self) -> tuple[int, bytes]:
        """The type and data of the next frame, whatever it is; EOFError at the end."""
        (size,) = struct.unpack(">I", self._exactly(4))
        data = self._exactly(size)
        return struct.unpack(">I", data[:4])[0], data[4:]

    def next(self) -> tuple[int, bytes]:
        """The next frame that is not a heartbeat; those are answered."""
        while (found := self.frame()) == HEARTBEAT:
            self.send("NOP")
        return found

    def ask(self, line: str, body: bytes | None = None) -> bytes:
        """Send a command, and return the data of the response to it."""
        self.send(line, body)
        return self.response()

    def response(self) -> bytes:
        kind, data = self.next()
        assert kind == wire.RESPONSE, data
        return data

    def failure(self) -> str:
        kind, data = self.next()
        assert kind == wire.ERROR, data
        return data.decode()

    def fatal(self, line: str, body: bytes | None = None) -> str:
        """Send a command; returns its error, after which the connection must be closed."""
        self.send(line, body)
        text = self.failure()
        assert self.ended(), f"not fatal: {text}"
        return text

    def ended(self) -> bool:
        """Whether the server closes now; a frame that arrives instead says no."""
        try:
            self.next()
        except (EOFError, ConnectionError):
            return True
        return False

    def message(self) -> Message:
        kind, data = self._kept.popleft() if self._kept else self.next()
        assert kind == wire.MESSAGE, data
        timestamp, attempts, name = struct.unpack_from(">qH16s", data)
        return Message(timestamp, attempts, name.decode(), data[26:])

    def identify(self, **settings: Any) -> dict[str, Any]:
        """Negotiate; returns what nsqd agrees to, before any TLS or compression begins."""
        body = json.dumps({"feature_negotiation": True, **settings}).encode()
        agreed: dict[str, Any] = json.loads(self.ask("IDENTIFY", body))
        return agreed

    def subscribe(self, topic: str, channel: str = "c", ready: int | None = None) -> Self:
        assert self.ask(f"SUB {topic} {channel}") == b"OK"
        if ready is not None:
            self.send(f"RDY {ready}")
        return self

    def settle(self) -> int:
        """Return when nsqd has carried out all commands of this subscriber so far.

        The answer is how many messages came meanwhile; ``message()`` gives them later.
        """
        before = len(self._kept)
        assert self.carried_out() == []
        return len(self._kept) - before

    def carried_out(self) -> list[str]:
        """As ``settle()``, for commands that may fail; returns their errors."""
        last = f"FIN {'z' * 16}"
        self.send(last)
        errors = []
        while (text := self._error_or_message()) != f"E_FIN_FAILED {last} failed ID not in flight":
            errors += [text] if text else []
        return errors

    def _error_or_message(self) -> str:
        found = self.next()
        if found[0] == wire.MESSAGE:
            self._kept.append(found)
            return ""
        return found[1].decode()

    def start_tls(self, context: ssl.SSLContext) -> None:
        assert not self._received
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def start_snappy(self) -> None:
        self._compress(snappy.StreamCompressor().compress, snappy.StreamDecompressor().decompress)

    def start_deflate(self) -> None:
        deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        self._compress(
            lambda data: deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH),
            zlib.decompressobj(wbits=-zlib.MAX_WBITS).decompress,
        )

    def _compress(self, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes]) -> None:
        self._encode, self._decode = encode, decode
        self._received = decode(self._received)

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            chunk = self.socket.recv(65536)
            if not chunk:
                raise EOFError(self._received)
            self._received += self._decode(chunk)
        found, self._received = self._received[:size], self._received[size:]
        return found


class RawLookupd(Raw):
    """A connection to nsqlookupd, whose replies have no frame type."""

    def __init__(self, address: Address, magic: bytes = b"  V1") -> None:
        super().__init__(address, magic)

    def frame(self) -> tuple[int, bytes]:
        (size,) = struct.unpack(">I", self._exactly(4))
        return wire.RESPONSE, self._exactly(size)


@dataclass(frozen=True, slots=True)
class Answer:
    """Of an HTTP server; names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def http_ask(address: Address, request: str, body: bytes | None = None, **headers: str) -> Answer:
    """One request such as ``"POST /pub?topic=t"``, on a connection of its own."""
    method, target = request.split(" ", 1)
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.putrequest(method, target)
        if body is not None or method in ("POST", "PUT"):
            connection.putheader("Content-Length", str(len(body or b"")))
        for name, text in headers.items():
            connection.putheader(name, text)
        connection.endheaders()
        with contextlib.suppress(ConnectionError):  # the answer may come before the body's end
            connection.send(body or b"")
        reply = connection.getresponse()
        found = {name.lower(): text for name, text in reply.getheaders()}
        return Answer(reply.status, reply.read(), found)
    finally:
        connection.close()
