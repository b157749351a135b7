"""``to-http`` through proxies, with certificates, and to nginx."""

from __future__ import annotations

import base64
import signal
import socket
import socketserver
import subprocess
import threading
from collections import Counter
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.eventually import eventually
from tests.support.nginx import find_nginx
from tests.support.servers import free_port
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.posting import Posting
    from tests.support.tls import Certificates


class HttpProxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that tunnels and forwards, to ports of this host whatever host was asked for.

    ``heads`` are the first heads of connections.

    With ``refuses`` it answers that instead.
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
        options = "--post", web.url("/in", host), "--http-tls-root-ca-file", str(certificates.ca)
        if how == "flag":
            poster = posting.start(*options, "--proxy", url, "-vv")
        else:
            poster = posting.start(*options, "-vv", env={f"{scheme}_proxy": url})
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


def test_a_proxy_of_the_environment_is_not_for_this_host(posting: Posting) -> None:
    posting.numbers(5)
    with HttpProxy() as proxy, WebServer() as web:
        posting.start("--post", web.url(), env={"http_proxy": proxy.url}).finish()
        assert list(web.deliveries.values()) == [1] * 5
        assert proxy.heads == []


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("fault", ["refused", "407", "garbage"])
def test_a_proxy_that_fails_costs_an_attempt(
    posting: Posting, certificates: Certificates, scheme: str, fault: str
) -> None:
    posting.numbers(2)
    answers = {
        "refused": b"",
        "407": b"HTTP/1.1 407 Who?\r\nContent-Length: 0\r\n\r\n",
        "garbage": b"what?\r\n\r\n",
    }
    tls = certificates.server if scheme == "https" else None
    with HttpProxy(answers[fault]) as proxy, WebServer(tls=tls) as web:
        url = f"http://127.0.0.1:{free_port()}" if fault == "refused" else proxy.url
        options = "--post", web.url(), "--proxy", url, *posting.dead_after(2)
        poster = posting.start(*options)
        poster.finish()
        assert web.connections == 0
        assert len(proxy.heads) == (0 if fault == "refused" else 4)
    assert len(posting.dead_letters()) == 2
    assert "Traceback" not in poster.said


def test_a_client_certificate_is_shown(posting: Posting, certificates: Certificates) -> None:
    posting.numbers(20)
    with WebServer(tls=certificates.server, client_ca=certificates.ca) as web:
        options = (
            *("--http-tls-root-ca-file", str(certificates.ca)),
            *("--http-tls-cert", str(certificates.client.cert)),
            *("--http-tls-key", str(certificates.client.key)),
        )
        posting.start("--post", web.url(host="localhost"), *options).finish()
        assert list(web.deliveries.values()) == [1] * 20


def test_certificates_need_not_be_verified(posting: Posting, certificates: Certificates) -> None:
    posting.numbers(20)
    with WebServer(tls=certificates.expired) as web:
        poster = posting.start("--post", web.url(), "--http-tls-insecure-skip-verify")
        poster.finish()
        assert list(web.deliveries.values()) == [1] * 20


class Nginx:
    """nginx with a log of what it was sent and answered, one line a request."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self._program = find_nginx()
        self.folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "nginx.conf").write_text(
            f"""
            daemon off; pid {folder}/pid; worker_processes 2; error_log stderr;
            events {{ worker_connections 1000; }}
            http {{
              log_format ids '$http_x_nsq_id $status $ssl_client_verify';
              access_log {folder}/log ids;
              {"".join(f"{kind}_temp_path {folder}/{kind};" for kind in TEMPORARY)}
              limit_req_zone $server_name zone=slow:1m rate=100r/s;
              keepalive_requests 7;
              server {{
                listen 127.0.0.1:{self.port};
                listen 127.0.0.1:{self.tls_port} ssl;
                ssl_certificate {certificates.server.cert};
                ssl_certificate_key {certificates.server.key};
                ssl_client_certificate {certificates.ca};
                ssl_verify_client optional;
                location /in {{ return 200 "OK"; }}
                location /none {{ return 204; }}
                location /small {{ client_max_body_size 100; proxy_pass http://127.0.0.1:1; }}
                location /slow {{
                  limit_req zone=slow burst=5 nodelay;
                  proxy_pass http://127.0.0.1:{self.port}/quiet;
                }}
                location /quiet {{ access_log off; return 202; }}
                location /old {{ return 308 /in; }}
                location /mine {{
                  if ($ssl_client_verify != SUCCESS) {{ return 403; }}
                  return 200 "OK";
                }}
              }}
            }}
            """
        )

    def start(self) -> None:
        with (self.folder / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self.folder / "nginx.conf"), "-e", "stderr"],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )
        eventually(self._is_up)

    def _is_up(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port)):
            return True

    def send(self, number: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def secure_url(self, path: str) -> str:
        return f"https://localhost:{self.tls_port}{path}"

    def answers(self) -> list[list[str]]:
        """Id, status and state of the client's certificate of each request."""
        return [line.split() for line in (self.folder / "log").read_text().splitlines()]

    def accepted(self) -> Counter[str]:
        return Counter(row[0] for row in self.answers() if row[1].startswith("2"))


TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@pytest.fixture
def nginx(tmp_path: Path, certificates: Certificates) -> Iterator[Nginx]:
    folder = tmp_path / "nginx"
    folder.mkdir()
    made = Nginx(folder, certificates)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("path", ["/in", "/none"])
def test_nginx_gets_each_message_once_though_it_closes_connections(
    posting: Posting, nginx: Nginx, path: str
) -> None:
    posting.numbers(3000)
    poster = posting.start("--post", nginx.url(path), "--max-attempts", "1")
    poster.finish()
    assert len(nginx.accepted()) == len(nginx.answers()) == 3000
    assert poster.said == ""


def test_nginx_over_tls_with_a_certificate(
    posting: Posting, nginx: Nginx, certificates: Certificates
) -> None:
    posting.numbers(100)
    trust = "--http-tls-root-ca-file", str(certificates.ca)
    mine = (
        *("--http-tls-cert", str(certificates.client.cert)),
        *("--http-tls-key", str(certificates.client.key)),
    )
    posting.start("--post", nginx.secure_url("/mine"), *trust, *mine).finish()
    assert len(nginx.accepted()) == len(nginx.answers()) == 100
    posting.numbers(2)
    posting.start("--post", nginx.secure_url("/mine"), *trust, *posting.dead_after(2)).finish()
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


def test_nginx_that_redirects_is_followed(posting: Posting, nginx: Nginx) -> None:
    posting.publish([b"x" * 100_000] * 5)
    posting.start("--post", nginx.url("/old"), "--follow-redirects").finish()
    assert Counter(row[1] for row in nginx.answers()) == {"308": 5, "200": 5}


@pytest.mark.parametrize("way", ["reloaded", "restarted"])
def test_nginx_that_is_replaced_under_load_gets_each_message_once(
    posting: Posting, nginx: Nginx, way: str
) -> None:
    posting.numbers(6000)
    poster = posting.start("--post", nginx.url("/in"), "-n", "20")
    for moment in (1000, 2000, 3000):
        eventually(lambda moment=moment: len(nginx.answers()) > moment)  # type: ignore[misc]
        if way == "reloaded":
            nginx.send(signal.SIGHUP)
        else:
            nginx.stop(signal.SIGQUIT)
            nginx.start()
    poster.finish()
    assert len(nginx.accepted()) == len(nginx.answers()) == 6000
