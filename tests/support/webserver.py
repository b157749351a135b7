"""A web server that answers by a script and remembers every request, for tests of deliveries."""

import contextlib
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from nsqtools.names import Address
from tests.support.tls import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request gets: nothing if the server ``hangs``, and half of a body that is ``cut``."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"OK"
    hangs: bool = False
    cut: bool = False


OK = Answer()
HANG = Answer(hangs=True)


def redirect(location: str, status: int = 307) -> Answer:
    return Answer(status=status, headers=(("Location", location),))


@dataclass(slots=True, eq=False)
class Request:
    """A request that was read to its end.

    The names of ``headers`` are in lower case, values of one name are joined by commas. ``at`` is
    in monotonic seconds. ``status`` is that of the answer, even of one that is cut, else 0.
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


Script = Callable[[Request], Answer]


def per_message(*answers: Answer) -> Script:
    """The deliveries of each message (or batch) get these in turn, those after the last OK."""
    seen: Counter[str] = Counter()

    def answer(request: Request) -> Answer:
        key = ",".join(request.ids)
        seen[key] += 1
        return answers[seen[key] - 1] if seen[key] <= len(answers) else OK

    return answer


class WebServer:
    """``with WebServer(script) as server``, then send requests to ``server.url()``.

    The script is one answer for all, or a function of the request. With ``tls`` it is https. What
    was no HTTP and exceptions of the script are raised at the end.
    """

    def __init__(self, script: Answer | Script = OK, *, tls: Certificate | None = None) -> None:
        self.address = Address("127.0.0.1", 0)
        self.script = script
        self.requests: list[Request] = []
        self.failures: list[BaseException] = []
        self.tls = tls.context() if tls else None
        self.open: set[socket.socket] = set()
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._listener: _Listener | None = None

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.refuse()
        self.ended.set()
        for each in tuple(self.open):
            with contextlib.suppress(OSError):  # the client was faster
                each.shutdown(socket.SHUT_RDWR)
        if self.failures and error is None:
            raise self.failures[0]

    @property
    def deliveries(self) -> Counter[str]:
        """How often each X-NSQ-Id came, whatever it got."""
        return Counter(each for request in self.requests[:] for each in request.ids)

    def accepted(self) -> Counter[str]:
        """How often each X-NSQ-Id was answered with 2xx."""
        good = [request for request in self.requests[:] if 200 <= request.status < 300]
        return Counter(each for request in good for each in request.ids)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self.tls else 'http'}://{host}:{self.address.port}{path}"

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

    def take(self, request: Request) -> Answer:
        """What such a request gets, once it may have it."""
        with self._lock:
            self.requests.append(request)
            answer = self.script(request) if callable(self.script) else self.script
        if answer.hangs:
            self.ended.wait()
        return answer


class _Listener(ThreadingHTTPServer):
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, web: WebServer) -> None:
        self.web = web
        super().__init__(web.address, _Connection)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if error and not isinstance(error, OSError):  # those are clients that went away
            self.web.failures.append(error)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        web = self.server.web
        if web.tls:
            self.request = web.tls.wrap_socket(self.request, server_side=True)
        super().setup()
        web.open.add(self.request)

    def finish(self) -> None:
        self.server.web.open.discard(self.request)
        super().finish()
        self.request.close()

    def log_message(self, *_: object) -> None:
        pass

    def send_error(self, code: int, *_: object) -> None:
        raise ValueError(f"no HTTP request: {self.requestline[:100]!r}")

    def _answer(self) -> None:
        headers = {name.lower(): ", ".join(self.headers.get_all(name, [])) for name in self.headers}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, self.path, headers, body, time.monotonic())
        answer = self.server.web.take(request)
        self.close_connection = self.close_connection or answer.cut or answer.hangs
        if answer.hangs:
            return
        request.status = answer.status
        self.send_response(answer.status)
        for header in answer.headers:
            self.send_header(*header)
        data = b""
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
            data = answer.body[: len(answer.body) // 2] if answer.cut else answer.body
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer  # noqa: N815 - names that the base class looks for
