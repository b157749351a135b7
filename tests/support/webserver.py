"""A web server that answers by a script and remembers every request, for tests of deliveries."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Literal, Self

from nsqtools.names import Address

if TYPE_CHECKING:
    from types import TracebackType

    from tests.support.tls import Certificate

Cut = Literal["", "request", "head", "body", "response"]
How = Literal["rst", "fin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request gets; ``delay`` is in seconds, and ``math.inf`` is for ever.

    The connection is ``cut`` after the request was read, in the middle of the head or the body, or
    after the response: reset, or closed without announcing it, as ``how`` says. ``close``
    announces it. Content-Length is added unless ``headers`` have it or Transfer-Encoding. ``raw``
    is sent as it is instead of head and body.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"OK"
    delay: float = 0.0
    cut: Cut = ""
    how: How = "rst"
    close: bool = False
    raw: bytes = b""


OK = Answer()
HANG = Answer(delay=math.inf)


def retry_after(value: str) -> Answer:
    return Answer(status=429, headers=(("Retry-After", value),))


def redirect(location: str, status: int = 307) -> Answer:
    return Answer(status=status, headers=(("Location", location),))


@dataclass(slots=True, eq=False)
class Request:
    """A request that was read to its end.

    The names of ``headers`` are in lower case, values of one name are joined by commas. ``at`` is
    in monotonic seconds. ``status`` is that of the answer once it was sent whole, else 0.
    """

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at: float
    status: int = 0

    @property
    def ids(self) -> list[str]:
        """The one of X-NSQ-Id, or those of X-NSQ-Ids."""
        found = self.headers.get("x-nsq-id") or self.headers.get("x-nsq-ids", "")
        return [each.strip() for each in found.split(",") if each]


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

    With ``tls`` it is https.

    ``connections`` counts those made (with TLS: whose handshake succeeded). What was no HTTP and
    exceptions of the script are raised at the end.
    """

    def __init__(
        self,
        script: Script = OK,
        *,
        tls: Certificate | None = None,
    ) -> None:
        self.address = Address("127.0.0.1", 0)
        self.connections = 0
        self.script = script
        self.requests: list[Request] = []
        self.failures: list[BaseException] = []
        self.tls = tls.context() if tls else None
        self.open: set[_Connection] = set()
        self.flowing = threading.Event()
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._listener: _Listener | None = None

    def __enter__(self) -> Self:
        self.flowing.set()
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        self.ended.set()
        self.flowing.set()
        self.cut()
        if self.failures and error is None:
            raise self.failures[0]

    # What was seen.

    @property
    def deliveries(self) -> Counter[str]:
        """How often each X-NSQ-Id came, whatever it got."""
        return Counter(each for request in self.requests[:] for each in request.ids)

    def accepted(self) -> Counter[str]:
        """How often each X-NSQ-Id was answered in full with 2xx."""
        good = [request for request in self.requests[:] if 200 <= request.status < 300]
        return Counter(each for request in good for each in request.ids)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self.tls else 'http'}://{host}:{self.address.port}{path}"

    # What it is to do from now on.

    @property
    def script(self) -> Function:
        return self._script

    @script.setter
    def script(self, script: Script) -> None:
        self._script = _as_function(script)

    def listen(self) -> None:
        """Accept connections, again after ``refuse``."""
        self._listener = _Listener(self)
        self.address = Address(*self._listener.socket.getsockname())
        threading.Thread(target=self._listener.serve_forever, args=(0.01,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._listener:
            self._listener.shutdown()
            self._listener.socket.close()
            self._listener = None

    def cut(self) -> None:
        """End all open connections."""
        for each in tuple(self.open):
            each.hang_up()

    def hold(self) -> None:
        """Take requests, but answer none that comes from now on."""
        self.flowing.clear()

    def release(self) -> None:
        """Answer again, beginning with those that wait."""
        self.flowing.set()

    # What its connections do.

    def take(self, request: Request) -> Answer:
        """What such a request gets, once it may have it."""
        with self._lock:
            self.requests.append(request)
            answer = self._script(request)
        self.flowing.wait()
        if answer.delay:
            self.ended.wait(None if math.isinf(answer.delay) else answer.delay)
        return answer


class _Listener(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, web: WebServer) -> None:
        self.web = web
        super().__init__(web.address, _Connection)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if error and not isinstance(error, OSError):  # those are clients that went away
            self.web.failures.append(error)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        self.close_request(request)  # a connection that is reset must not be closed before


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener
    request: socket.socket

    def setup(self) -> None:
        web = self.server.web
        if web.tls:
            self.request = web.tls.wrap_socket(self.request, server_side=True)
        super().setup()
        web.connections += 1
        web.open.add(self)

    def finish(self) -> None:
        self.server.web.open.discard(self)
        super().finish()
        self.request.close()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the client was faster
            self.request.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass

    def send_error(self, code: int, *_: object) -> None:
        raise ValueError(f"no HTTP request: {self.requestline[:100]!r}")

    def _answer(self) -> None:
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, self.path, headers, body, time.monotonic())
        answer = self.server.web.take(request)
        if answer.close or answer.cut or self.server.web.ended.is_set():
            self.close_connection = True
        if not self.server.web.ended.is_set():
            self._send(answer, request)

    do_GET = do_HEAD = do_POST = _answer  # noqa: N815 - names that the base class looks for

    def _send(self, answer: Answer, request: Request) -> None:
        head, body = _rendered(answer, self.command)
        data = head + body
        if answer.cut in ("request", "head", "body"):
            ends = {"request": 0, "head": len(head) // 2, "body": len(head) + len(body) // 2}
            data = data[: ends[answer.cut]]
        else:  # who has the last byte sees the status
            request.status = answer.status
        self.wfile.write(data)
        if answer.cut and answer.how == "rst":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _rendered(answer: Answer, method: str) -> tuple[bytes, bytes]:
    """Head and body."""
    if answer.raw:
        return answer.raw, b""
    status = answer.status
    reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {v}" for name, v in answer.headers)]
    body = b"" if status < 200 or status in (204, 304) else answer.body
    names = {name.lower() for name, _ in answer.headers}
    if status not in (204, 304) and not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    if answer.close:
        lines.append("Connection: close")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head, b"" if method == "HEAD" else body
