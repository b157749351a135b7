"""``to-http`` and endpoints: out of reach, not to be trusted, gone and back, behind a proxy; nginx.

Deliveries are counted exactly, by the record of the endpoints.
"""

from __future__ import annotations

import base64
import signal
import socket
import socketserver
import threading
from collections import Counter
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.eventually import eventually
from tests.support.nginx import Nginx
from tests.support.servers import free_port
from tests.support.webserver import HANG, OK, Answer, WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.posting import Posting
    from tests.support.tls import Certificates
    from tests.support.webserver import Request


def trust(certificates: Certificates) -> tuple[str, ...]:
    return ("--http-tls-root-ca-file", str(certificates.ca))


def identity(certificates: Certificates) -> tuple[str, ...]:
    client = certificates.client
    return ("--http-tls-cert", str(client.cert), "--http-tls-key", str(client.key))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("other_host", "mismatch"),
        ("expired", "expired"),
        ("other_server", "--http-tls-root-ca-file"),
        ("server", ""),  # which asks for a certificate of ours
    ],
)
def test_tls_that_cannot_be_trusted_carries_nothing(
    posting: Posting, certificates: Certificates, kind: str, said: str
) -> None:
    posting.publish([b"1", b"2"])
    wanted = certificates.ca if kind == "server" else None
    with WebServer(tls=getattr(certificates, kind), client_ca=wanted) as web:
        options = "-vv", *trust(certificates), *posting.dead_after(2)
        poster = posting.start("--post", web.url(), *options)
        poster.finish()
        assert web.requests == []
    assert [letter["body"] for letter in posting.dead_letters()] == ["1", "2"]
    assert said in poster.said
    assert "Traceback" not in poster.said


def test_certificates_need_not_be_verified(posting: Posting, certificates: Certificates) -> None:
    posting.numbers(20)
    with WebServer(tls=certificates.expired) as web:
        posting.start("--post", web.url(), "--http-tls-insecure-skip-verify").finish()
        assert list(web.deliveries.values()) == [1] * 20


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a good one"])
@pytest.mark.parametrize("kind", ["refuses", "unknown", "no tls", "deaf"])
def test_who_cannot_be_reached_costs_a_message_nothing_if_there_is_another_one(
    posting: Posting, kind: str, beside: bool
) -> None:
    """Alone it costs an attempt, and what nobody took is a dead letter."""
    posting.numbers(2)
    limit = "--http-client-connect-timeout", "300ms"
    deaf = socket.create_server(("127.0.0.1", 0))  # not even the first word of TLS
    with WebServer() as web, WebServer() as plain, deaf:
        bad = {
            "refuses": f"http://127.0.0.1:{free_port()}/",
            "unknown": "http://no-such-host.invalid/",
            "no tls": plain.url().replace("http:", "https:"),
            "deaf": f"https://127.0.0.1:{deaf.getsockname()[1]}/",
        }[kind]
        endpoints = ("--post", bad, *(("--post", web.url()) if beside else ()))
        poster = posting.start(*endpoints, *posting.dead_after(2), *limit)
        poster.finish()
        counts = sorted(web.accepted().values())
        plain.failures.clear()
    assert counts == ([1, 1] if beside else [])
    assert len(posting.dead_letters()) == (0 if beside else 2)
    assert bad in poster.said
    assert posting.channel()["requeue_count"] == (0 if beside else 4)


@pytest.mark.parametrize("after", [0, 500])
def test_connections_reset_before_the_request_was_read(posting: Posting, after: int) -> None:
    posting.publish([b"x" * 1000] * 20)
    with WebServer() as web:
        web.reset(4, after=after)
        posting.start("--post", web.url()).finish()
        assert web.connections > 4
        assert list(web.deliveries.values()) == [1] * 20


@pytest.mark.parametrize("how", ["announced", "unannounced", "reset"])
def test_connections_closed_between_requests_cost_nothing(posting: Posting, how: str) -> None:
    """Every third request is the last of its connection."""
    numbers = iter(range(10**6))

    def answer(request: Request) -> Answer:
        if how == "unannounced" or next(numbers) % 3:
            return OK
        return Answer(close=True) if how == "announced" else Answer(cut="response")

    posting.numbers(500)
    with WebServer(answer, requests_per_connection=3 if how == "unannounced" else 0) as web:
        options = "--post", web.url(), "-n", "20", "--max-attempts", "1"
        poster = posting.start(*options)
        poster.drain()
        web.cut()  # those that are idle
        posting.publish(b"%d" % number for number in range(500, 600))
        poster.finish()
        assert len(web.deliveries) == 600
        assert set(web.deliveries.values()) == {1}
    assert poster.said == ""
    assert posting.channel()["requeue_count"] == 0


def test_half_of_the_endpoints_being_dead_costs_no_message_an_attempt(posting: Posting) -> None:
    posting.numbers(500)
    with WebServer() as one, WebServer() as other:
        dead = [f"http://127.0.0.1:{free_port()}/" for _ in range(2)]
        posts = [w for url in (one.url(), dead[0], other.url(), dead[1]) for w in ("--post", url)]
        posting.start(*posts, "--max-attempts", "1").finish()
        both = one.deliveries + other.deliveries
        assert len(both) == both.total() == 500
        assert one.requests
        assert other.requests
    assert posting.channel()["requeue_count"] == 0


@pytest.mark.parametrize("slow", [False, True], ids=["that refuses", "that does not answer"])
def test_a_dead_endpoint_of_two_costs_under_2_percent(posting: Posting, slow: bool) -> None:
    """Counted in requests and in messages that came again, not in time."""
    count = 3000
    posting.numbers(count)
    with WebServer(HANG) as dead, WebServer() as web:
        if not slow:
            dead.refuse()
        options = "-n", "30", "--http-client-request-timeout", "500ms", "--status-every", "1000000"
        poster = posting.start("--post", dead.url(), "--post", web.url(), *options)
        poster.finish()
        assert len(web.deliveries) == web.deliveries.total() == count
        assert len(dead.requests) < 0.02 * count
    (line,) = [
        text for text in poster.said.splitlines() if dead.url() in text and " failed" in text
    ]
    assert int(line.split(" failed")[0].rpartition(" ")[2]) < 0.02 * count
    assert posting.channel()["requeue_count"] < 0.02 * count


def test_all_endpoints_dead_and_then_back(posting: Posting) -> None:
    """Once the breakers are open messages are held, however long it takes."""
    posting.numbers(50)
    with WebServer() as one, WebServer() as other:
        for web in (one, other):
            web.refuse()
        poster = posting.start("--post", one.url(), "--post", other.url(), "-n", "1")
        poster.says(one.url())
        poster.says(other.url())
        eventually(lambda: posting.channel()["requeue_count"] >= 5)
        eventually(lambda: posting.channel()["in_flight_count"])
        for web in (one, other):
            web.listen()
        poster.finish()
        both = one.deliveries + other.deliveries
        assert len(both) == both.total() == 50
    assert posting.channel()["requeue_count"] < 20
    assert poster.said.count("connection refused") == 2


@pytest.mark.parametrize("mode", ["hostpool", "all"])
def test_an_endpoint_that_is_gone_gets_no_more(posting: Posting, mode: str) -> None:
    """Its message goes to the others at once."""
    posting.numbers(100)
    with WebServer(Answer(status=410)) as gone, WebServer() as web, WebServer() as third:
        posts = [word for each in (gone, web, third) for word in ("--post", each.url())]
        poster = posting.start(*posts, "-n", "1", "--mode", mode, "--max-attempts", "1")
        poster.finish()
        assert len(gone.requests) == 1
        both = web.deliveries + third.deliveries
        assert len(both) == 100
        assert set(both.values()) == {2 if mode == "all" else 1}
        assert f"{gone.url()}: gone" in poster.said


def test_when_all_endpoints_are_gone_it_ends_and_finishes_nothing(posting: Posting) -> None:
    posting.numbers(100)
    with WebServer(Answer(status=410)) as gone, WebServer(Answer(status=410)) as other:
        poster = posting.start("--post", gone.url(), "--post", other.url(), "-n", "1")
        assert poster.process.wait(20) == 1
        assert len(gone.requests) == len(other.requests) == 1
    assert posting.held == 100


class HttpProxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that tunnels and forwards, to ports of this host whatever host was asked for.

    ``heads`` are the first heads of connections. With ``refuses`` it answers that instead.
    """

    daemon_threads = True

    def __init__(self, refuses: bytes = b"") -> None:
        super().__init__(("127.0.0.1", 0), _Way)
        self.heads: list[bytes] = []
        self.refuses = refuses

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Way(socketserver.BaseRequestHandler):
    server: HttpProxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := self.request.recv(1 << 16)):
                return
            head += data
        self.server.heads.append(head)
        if self.server.refuses:
            self.request.sendall(self.server.refuses)
            return
        target = head.split()[1].decode().removeprefix("http://").partition("/")[0]
        port = int(target.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as other:
            if head.startswith(b"CONNECT "):
                self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                other.sendall(head)
            back = threading.Thread(target=_pump, args=(other, self.request))
            back.start()
            _pump(self.request, other)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize("how", ["flag", "environment"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_go_through_a_proxy(
    posting: Posting, certificates: Certificates, scheme: str, how: str
) -> None:
    posting.numbers(20)
    host = "127.0.0.1" if how == "flag" else "elsewhere.test"
    certificate = certificates.server if how == "flag" else certificates.other_host
    tls = certificate if scheme == "https" else None
    with HttpProxy() as proxy, WebServer(tls=tls) as web:
        url = proxy.url.replace("//", "//me:p%40ss@")
        options = "--post", web.url("/in", host), *trust(certificates), "-vv"
        if how == "flag":
            poster = posting.start(*options, "--proxy", url)
        else:
            poster = posting.start(*options, env={f"{scheme}_proxy": url})
        poster.finish()
        assert list(web.deliveries.values()) == [1] * 20
        token = base64.b64encode(b"me:p@ss")
        assert proxy.heads
        for head in proxy.heads:
            start = f"CONNECT {host}:" if tls else f"POST http://{host}:"
            assert head.startswith(start.encode())
            assert b"Proxy-Authorization: Basic " + token in head
        if tls:
            assert "proxy-authorization" not in web.requests[0].headers
    assert "p%40ss" not in poster.said
    assert "p@ss" not in poster.said


@pytest.mark.parametrize(
    ("scheme", "fault"),
    [
        ("http", b"what?\r\n\r\n"),
        ("https", b"what?\r\n\r\n"),
        ("https", b"HTTP/1.1 407 Who?\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_a_proxy_that_fails_costs_an_attempt(
    posting: Posting, certificates: Certificates, scheme: str, fault: bytes
) -> None:
    posting.numbers(2)
    tls = certificates.server if scheme == "https" else None
    with HttpProxy(fault) as proxy, WebServer(tls=tls) as web:
        options = "--post", web.url(), "--proxy", proxy.url, *posting.dead_after(2)
        poster = posting.start(*options)
        poster.finish()
        assert web.connections == 0
        assert len(proxy.heads) == 4
    assert len(posting.dead_letters()) == 2
    assert "Traceback" not in poster.said


@pytest.fixture
def nginx(tmp_path: Path, certificates: Certificates) -> Iterator[Nginx]:
    """It closes each connection after seven requests."""
    locations = """
        location /in { return 200 "OK"; }
        location /small { client_max_body_size 100; proxy_pass http://127.0.0.1:1; }
        location /slow { limit_req zone=slow burst=5 nodelay; proxy_pass http://127.0.0.1:PORT/a; }
        location /a { access_log off; return 202; }
        location /mine { if ($ssl_client_verify != SUCCESS) { return 403; } return 204; }
    """
    made = Nginx(tmp_path / "nginx", locations, certificates)
    made.start()
    yield made
    made.stop()


def test_nginx_over_tls_with_a_certificate(
    posting: Posting, nginx: Nginx, certificates: Certificates
) -> None:
    posting.numbers(100)
    options = "--post", nginx.secure_url("/mine"), *trust(certificates)
    posting.start(*options, *identity(certificates)).finish()
    assert len(nginx.accepted()) == len(nginx.answers()) == 100
    posting.numbers(2)
    posting.start(*options, *posting.dead_after(2)).finish()
    assert [row[1:] for row in nginx.answers()[100:]] == [["403", "NONE"]] * 4
    assert len(posting.dead_letters()) == 2


def test_nginx_that_limits_the_rate_gets_each_message_in_the_end(
    posting: Posting, nginx: Nginx
) -> None:
    posting.numbers(60)
    posting.start("--post", nginx.url("/slow"), "-n", "4").finish(timeout=40)
    counts = Counter(row[1] for row in nginx.answers())
    assert counts["202"] == len(nginx.accepted()) == 60
    assert set(counts) <= {"202", "503"}


def test_nginx_refuses_what_is_too_long_and_it_takes_nothing_else_with_it(
    posting: Posting, nginx: Nginx
) -> None:
    """It answers before it has read the body."""
    posting.publish([b"x" * 1_000_000, b"y" * 4_000])
    options = "--post", nginx.url("/small"), "--drop-on", "413", *posting.dead_after(0)
    posting.start(*options).finish()
    assert [row[1] for row in nginx.answers()] == ["413", "413"]
    assert len(posting.dead_letters()) == 2


@pytest.mark.parametrize("way", ["reloaded", "restarted"])
def test_nginx_that_is_replaced_under_load_gets_each_message_once(
    posting: Posting, nginx: Nginx, way: str
) -> None:
    posting.numbers(4000)
    poster = posting.start("--post", nginx.url("/in"), "-n", "20")
    for moment in (500, 1000, 2000):
        eventually(lambda moment=moment: len(nginx.answers()) > moment)  # type: ignore[misc]
        if way == "reloaded":
            nginx.reload()
        else:
            nginx.stop(signal.SIGQUIT)
            nginx.start()
    poster.finish()
    assert len(nginx.accepted()) == len(nginx.answers()) == 4000
