"""A server's view of a request."""

from dataclasses import dataclass

import h11
import httpx


def header(request: httpx.Request, name: str) -> str | None:
    """Its only value; None without it."""
    values = request.headers.get_list(name)
    assert len(values) < 2, values
    return values[0] if values else None


@dataclass(frozen=True, slots=True)
class Received:
    """A request as h11, which is strict, reads it; names of headers are in lower case."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


def receive(request: httpx.Request) -> Received:
    """What a server makes of the bytes of the request; raises if it is not exactly one."""
    lines = [
        b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path),
        *[b"%b: %b" % field for field in request.headers.raw],
    ]
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 24)
    server.receive_data(b"\r\n".join([*lines, b"", request.read()]))
    head = server.next_event()
    assert isinstance(head, h11.Request)
    body = b""
    while isinstance(event := server.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert server.trailing_data == (b"", False)
    headers = [(bytes(name), bytes(value)) for name, value in head.headers]
    return Received(bytes(head.method), bytes(head.target), headers, body)
