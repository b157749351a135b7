"""A web server that answers by a script and remembers every request, for tests of deliveries.

It runs an event loop in a thread of its own, so that a test cannot stall it. What a script can say
and what is done about it stand in one file, which makes many lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, Self

from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from types import TracebackType

    from tests.support.tls import Certificate

Cut = Literal["", "request", "head", "body", "response"]
How = Literal["rst", "fin"]

_PATIENCE = 30.0
_PIECE = bytes(1 << 16)
_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_LAST = re.compile(rb" HTTP/1\.0\r\n|\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
_IDS = re.compile(rb"\r\nx-nsq-ids?:[ \t]*([^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request gets; times are in seconds, and ``math.inf`` is for ever.

    ``size`` is that of a body of zeros, sent as fast as it is taken, in place of ``body``.
    ``delay`` passes before anything is sent, ``head_delay`` in the middle of the head and
    ``body_delay`` in the middle of the body. The connection is ``cut`` after the request was read,
    in the middle of the head or the body, or after the response: reset, or closed without
    announcing it, as ``how`` says. ``close`` announces it. Content-Length is added unless
    ``headers`` have it or Transfer-Encoding. ``raw`` is sent as it is instead of head and body.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"OK"
    size: int = 0
    delay: float = 0.0
    head_delay: float = 0.0
    body_delay: float = 0.0
    cut: Cut = ""
    how: How = "rst"
    close: bool = False
    raw: bytes = b""

    @property
    def is_plain(self) -> bool:
        """Whether it is sent in one piece, at once."""
        return not (self.delay or self.head_delay or self.body_delay or self.cut or self.size)


OK = Answer()
HANG = Answer(delay=float("inf"))


def retry_after(value: str, status: int = 429) -> Answer:
    return Answer(status=status, headers=(("Retry-After", value),))


def redirect(location: str, status: int = 307) -> Answer:
    return Answer(status=status, headers=(("Location", location),))


@dataclass(slots=True, eq=False)
class Request:
    """A request that was read to its end.

    ``head`` is as it came, up to the last header. ``at`` is in monotonic seconds. ``status`` is
    that of the answer once it was sent whole, else 0; ``sent`` the bytes sent of its body.
    """

    method: str
    target: str
    head: bytes
    body: bytes
    at: float
    status: int = 0
    sent: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """By name in lower case; values of one name are joined by commas."""
        found: dict[str, str] = {}
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    @property
    def ids(self) -> list[str]:
        """The one of X-NSQ-Id, or those of X-NSQ-Ids."""
        found = _IDS.search(self.head)
        return [each.strip() for each in found[1].decode().split(",")] if found else []


Function = Callable[[Request], Answer]
Script = Answer | Iterable[Answer] | Function
"""One answer for all; some in turn and OK for those after them; or a function of the request."""


def per_message(*answers: Answer) -> Function:
    """The deliveries of each message (or batch) get these in turn, those after the last OK."""
    seen: Counter[str] = Counter()

    def answer(request: Request) -> Answer:
        key = ",".join(request.ids)
        seen[key] += 1
        return answers[seen[key] - 1] if seen[key] <= len(answers) else OK

    return answer


def _as_function(script: Script) -> Function:
    if isinstance(script, Answer):
        return lambda _: script
    if callable(script):
        return script
    answers = iter(script)
    return lambda _: next(answers, OK)


class WebServer:
    """``with WebServer(script) as server``, then send requests to ``server.url()``.

    A function as script is called in the server's thread. Connections are closed, unannounced,
    after ``requests_per_connection``. With ``tls`` it is https, and with ``client_ca`` clients
    have to show a certificate.

    ``connections`` counts those made (with TLS: whose handshake succeeded), ``most_at_once`` is
    the most requests that waited for the end of their answers. What was no HTTP and exceptions of
    the script are raised at the end.
    """

    def __init__(
        self,
        script: Script = OK,
        *,
        tls: Certificate | None = None,
        client_ca: Path | None = None,
        requests_per_connection: int = 0,
    ) -> None:
        self.address = Address("127.0.0.1", 0)
        self.connections = 0
        self.most_at_once = 0
        self.failures: list[Exception] = []
        self.requests_per_connection = requests_per_connection
        self.script = script
        self._tls = _context(tls, client_ca) if tls else None
        self._requests: list[Request] = []
        self._deliveries: Counter[str] = Counter()
        self._counted = 0
        self._waiting = 0
        self._open: set[_Connection] = set()
        self._resets = (0, 0)
        self._listener: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="webserver")
        self._thread.start()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        self._call(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self.failures and error is None:
            raise self.failures[0]

    # What was seen.

    @property
    def requests(self) -> list[Request]:
        """Those up to now, in order of arrival."""
        return self._requests[:]

    @property
    def deliveries(self) -> Counter[str]:
        """How often each X-NSQ-Id came, whatever it got; not to be changed."""
        new = self._requests[self._counted :]
        self._counted += len(new)
        self._deliveries.update(each for request in new for each in request.ids)
        return self._deliveries

    def accepted(self) -> Counter[str]:
        """How often each X-NSQ-Id was answered in full with 2xx."""
        good = [request for request in self._requests if 200 <= request.status < 300]
        return Counter(each for request in good for each in request.ids)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.address.port}{path}"

    # What it is to do from now on.

    @property
    def script(self) -> Function:
        return self._script

    @script.setter
    def script(self, script: Script) -> None:
        self._script = _as_function(script)

    def listen(self) -> None:
        """Accept connections, again after ``refuse``."""
        self._call(self._listen())

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        self._call(self._refuse())

    def cut(self, how: How = "rst") -> None:
        """End all open connections."""

        def end_all() -> None:
            for each in tuple(self._open):
                each.end(how)

        self._call(_called(end_all))

    def reset(self, count: int, *, after: int = 0) -> None:
        """Reset the next connections: as they are made, or once so many bytes have come."""
        self._resets = (count, after)

    def hold(self) -> None:
        """Take requests, but answer none that comes from now on."""
        self._call(_called(self._flowing.clear))

    def release(self) -> None:
        """Answer again, beginning with those that wait."""
        self._call(_called(self._flowing.set))

    # In the server's thread.

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    async def _listen(self) -> None:
        self._listener = await self._loop.create_server(
            lambda: _Connection(self), *self.address, ssl=self._tls, backlog=1024
        )
        self.address = Address(*self._listener.sockets[0].getsockname())

    async def _refuse(self) -> None:
        if self._listener:
            for plain in self._listener.sockets:
                self._loop.remove_reader(plain.fileno())
            await asyncio.sleep(0)  # asyncio forgets sockets whose server is closed too soon
            self._listener.close()
            self._listener = None

    async def _end_all(self) -> None:
        # There is no public way to end handshakes that are under way.
        for transport in tuple(self._loop._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        while self._open:  # noqa: ASYNC110 - they end in the next turns of the loop
            await asyncio.sleep(0)

    def _made(self, connection: _Connection) -> int | None:
        """Count it; the number of bytes after which to reset it."""
        self.connections += 1
        self._open.add(connection)
        count, after = self._resets
        if not count:
            return None
        self._resets = (count - 1, after)
        return after

    def _take(self, request: Request) -> Answer:
        self._requests.append(request)
        return self._script(request)


async def _called(work: Callable[[], object]) -> None:
    work()


class _Connection(asyncio.Protocol):
    """Reads one request after another, and answers each before it looks at the next."""

    _transport: asyncio.Transport

    def __init__(self, server: WebServer) -> None:
        self._server = server
        self._buffer = b""
        self._needed = 0
        self._count = 0
        self._quota: int | None = None
        self._answering: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._quota = self._server._made(self)
        if self._quota == 0:
            self.end("rst")

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._open.discard(self)
        if self._answering:
            self._answering.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._quota is not None:
            self._quota -= len(data)
            if self._quota <= 0:
                self.end("rst")
                return
        self._buffer += data
        self._advance()

    @property
    def is_ending(self) -> bool:
        return self._transport.is_closing()

    def end(self, how: How) -> None:
        """Close it: abruptly, or after what was written."""
        if how == "fin":
            self._transport.close()
        elif not self.is_ending:
            plain: socket.socket = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # the client may have been faster
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _advance(self) -> None:
        while not self._answering and len(self._buffer) > self._needed and not self.is_ending:
            try:
                request = self._parse()
                if request is None:
                    return
                self._answer(request, self._server._take(request))
            except Exception as error:
                self._server.failures.append(error)
                self.end("rst")

    def _parse(self) -> Request | None:
        """The next request, taken out of the buffer, if it is there; ValueError if it is none."""
        data = self._buffer
        end = data.find(b"\r\n\r\n")
        line = _REQUEST_LINE.match(data)
        if end < 0 or not line:
            if b"\n" in data and not line:
                raise ValueError(f"no HTTP request: {data[:100]!r}")
            return None
        start = end + 4
        if length := _LENGTH.search(data, 0, start):
            stop = start + int(length[1])
            self._needed = stop - 1
            if len(data) < stop:
                return None
            body = data[start:stop]
        else:
            body, stop = b"", start
        self._buffer, self._needed = data[stop:], 0
        self._count += 1
        return Request(
            line[1].decode(),
            line[2].decode("latin-1"),
            data[:end],
            body,
            time.monotonic(),
        )

    def _answer(self, request: Request, answer: Answer) -> None:
        server = self._server
        if answer.is_plain and server._flowing.is_set() and self._writable.is_set():
            head, body = _rendered(answer, request.method)
            request.sent, request.status = len(body), answer.status
            self._transport.write(head + body)
            self._answered(request, answer)
            return
        server._waiting += 1
        server.most_at_once = max(server.most_at_once, server._waiting)
        self._answering = server._loop.create_task(self._slowly(request, answer))
        self._answering.add_done_callback(self._next)

    async def _slowly(self, request: Request, answer: Answer) -> None:
        try:
            await self._server._flowing.wait()
            await asyncio.sleep(answer.delay)
            if answer.cut == "request" or not await self._send(request, answer):
                self.end(answer.how)
            else:
                self._answered(request, answer)
        finally:
            self._server._waiting -= 1

    def _next(self, task: asyncio.Task[None]) -> None:
        self._answering = None
        if not task.cancelled():
            if error := task.exception():
                assert isinstance(error, Exception)
                self._server.failures.append(error)
                self.end("rst")
            self._advance()

    async def _send(self, request: Request, answer: Answer) -> bool:
        """Whether all of it was sent: it may be to be cut."""
        head, body = _rendered(answer, request.method)
        half = len(head) // 2 if answer.cut == "head" or answer.head_delay else len(head)
        self._transport.write(head[:half])
        if answer.cut == "head":
            return False
        await asyncio.sleep(answer.head_delay)
        size = len(body) or (answer.size if request.method != "HEAD" else 0)
        if not size:
            request.status = answer.status
        self._transport.write(head[half:])
        if answer.cut == "body" or answer.body_delay:
            await self._pour(request, body, size // 2)
        if answer.cut == "body":
            return False
        await asyncio.sleep(answer.body_delay)
        await self._pour(request, body, size, answer.status)
        return True

    async def _pour(self, request: Request, body: bytes, end: int, status: int = 0) -> None:
        """Send the body up to there; without one, zeros. Who has the last byte sees the status."""
        while (size := min(end - request.sent, len(_PIECE))) > 0 and not self.is_ending:
            start = request.sent
            request.sent += size
            if request.sent == end:
                request.status = status
            self._transport.write(body[start : start + size] or _PIECE[:size])
            await asyncio.sleep(0)
            await self._writable.wait()

    def _answered(self, request: Request, answer: Answer) -> None:
        is_last = self._count == self._server.requests_per_connection
        if answer.cut == "response":
            self.end(answer.how)
        elif is_last or answer.close or _LAST.search(request.head + b"\r\n"):
            self.end("fin")


@lru_cache(maxsize=256)
def _rendered(answer: Answer, method: str) -> tuple[bytes, bytes]:
    """Head and body; a body of zeros is not among them."""
    if answer.raw:
        return answer.raw, b""
    status = answer.status
    reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {v}" for name, v in answer.headers)]
    body = b"" if answer.size else answer.body
    names = {name.lower() for name, _ in answer.headers}
    if status < 200 or status in (204, 304):
        body = b""
    elif not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {answer.size or len(body)}")
    if answer.close:
        lines.append("Connection: close")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head, b"" if method == "HEAD" else body


def _context(tls: Certificate, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    context.load_cert_chain(tls.cert, tls.key)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
