"""``to-http`` and endpoints: out of reach, not to be trusted, gone and back, behind a proxy; nginx.

Deliveries are counted exactly, by the record of the endpoints.
"""

from __future__ import annotations

import base64
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.nginx import Nginx
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.posting import Posting
    from tests.support.tls import Certificates


def trust(certificates: Certificates) -> tuple[str, ...]:
    return ("--http-tls-root-ca-file", str(certificates.ca))


def test_tls_that_cannot_be_trusted_carries_nothing_unless_it_need_not_be_verified(
    posting: Posting, certificates: Certificates
) -> None:
    posting.publish([b"1", b"2"])
    with WebServer(tls=certificates.other_server) as web:
        options = "-vv", *trust(certificates), *posting.dead_after(2)
        poster = posting.start("--post", web.url(), *options)
        poster.finish()
        assert web.requests == []
        assert [letter["body"] for letter in posting.dead_letters()] == ["1", "2"]
        assert "--http-tls-root-ca-file" in poster.said
        assert "Traceback" not in poster.said
        posting.publish([b"1", b"2"])
        posting.start("--post", web.url(), "--http-tls-insecure-skip-verify").finish()
        assert list(web.deliveries.values()) == [1, 1]


class HttpProxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy that tunnels to ports of this host, whatever host was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.heads: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://me:p%40ss@127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Tunnel(socketserver.BaseRequestHandler):
    server: HttpProxy

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(1 << 16)
        self.server.heads.append(head)
        port = int(head.split()[1].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port)) as other:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
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


def test_requests_over_tls_go_through_the_tunnel_of_a_proxy(
    posting: Posting, certificates: Certificates
) -> None:
    posting.numbers(20)
    with HttpProxy() as proxy, WebServer(tls=certificates.other_host) as web:
        options = "--post", web.url("/in", "elsewhere.test"), *trust(certificates), "-vv"
        poster = posting.start(*options, "--proxy", proxy.url)
        poster.finish()
        assert list(web.deliveries.values()) == [1] * 20
        assert proxy.heads
        for head in proxy.heads:
            assert head.startswith(b"CONNECT elsewhere.test:")
            assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in head
        assert "proxy-authorization" not in web.requests[0].headers
    assert "p%40ss" not in poster.said
    assert "p@ss" not in poster.said


@pytest.fixture
def nginx(tmp_path: Path, certificates: Certificates) -> Iterator[Nginx]:
    """It closes each connection after seven requests."""
    locations = """
        location /in { return 200 "OK"; }
        location /small { client_max_body_size 100; proxy_pass http://127.0.0.1:1; }
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
    client = certificates.client
    identity = "--http-tls-cert", str(client.cert), "--http-tls-key", str(client.key)
    posting.start(*options, *identity).finish()
    assert len(nginx.accepted()) == len(nginx.answers()) == 100
    posting.numbers(2)
    posting.start(*options, *posting.dead_after(2)).finish()
    assert [row[1:] for row in nginx.answers()[100:]] == [["403", "NONE"]] * 4
    assert len(posting.dead_letters()) == 2


def test_nginx_refuses_what_is_too_long_and_it_takes_nothing_else_with_it(
    posting: Posting, nginx: Nginx
) -> None:
    """It answers before it has read the body."""
    posting.publish([b"x" * 1_000_000, b"y" * 4_000])
    options = "--post", nginx.url("/small"), "--drop-on", "413", *posting.dead_after(0)
    posting.start(*options).finish()
    assert [row[1] for row in nginx.answers()] == ["413", "413"]
    assert len(posting.dead_letters()) == 2
