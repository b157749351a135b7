"""``to-http`` and endpoints that cannot be reached, trusted or used, and that come back or do not.

Deliveries are counted exactly, by the record of the endpoints.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.posting import Posting
from tests.support.servers import free_port
from tests.support.webserver import HANG, OK, Answer, WebServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd
    from tests.support.tls import Certificates
    from tests.support.webserver import Request


def _tls(certificates: Certificates, kind: str) -> tuple[WebServer, tuple[str, ...]]:
    """An https server, and options for it."""
    trust = ("--http-tls-root-ca-file", str(certificates.ca))
    match kind:
        case "a certificate of another name":
            return WebServer(tls=certificates.other_host), trust
        case "an expired certificate":
            return WebServer(tls=certificates.expired), trust
        case "an unknown authority":
            return WebServer(tls=certificates.other_server), trust
        case "an authority that only we know":
            return WebServer(tls=certificates.server), ()
        case "no certificate of ours":
            return WebServer(tls=certificates.server, client_ca=certificates.ca), trust
    other = ("--http-tls-cert", str(certificates.other_client.cert))
    key = ("--http-tls-key", str(certificates.other_client.key))
    return WebServer(tls=certificates.server, client_ca=certificates.ca), (*trust, *other, *key)


BROKEN_TLS = {
    "a certificate of another name": "mismatch",
    "an expired certificate": "expired",
    "an unknown authority": "name the CA that signed it with --http-tls-root-ca-file",
    "an authority that only we know": "name the CA that signed it with --http-tls-root-ca-file",
    "no certificate of ours": "",
    "a certificate of ours that they do not know": "",
}


@pytest.mark.parametrize("kind", BROKEN_TLS)
def test_tls_that_cannot_be_trusted_carries_nothing(
    posting: Posting,
    certificates: Certificates,
    kind: str,
) -> None:
    posting.publish([b"1", b"2"])
    web, options = _tls(certificates, kind)
    dead = posting.dead_after(2)
    with web:
        poster = posting.start("--post", web.url(), "-vv", *options, *dead)
        poster.finish()
        assert web.requests == []
    assert [letter["body"] for letter in posting.dead_letters()] == ["1", "2"]
    assert BROKEN_TLS[kind] in poster.said, poster.said
    assert "Traceback" not in poster.said


class Strict:
    """Wants a certificate, and unlike asyncio's servers says so to those that have none."""

    def __init__(self, certificates: Certificates) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(certificates.server.cert, certificates.server.key)

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return f"https://127.0.0.1:{self._socket.getsockname()[1]}/"

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            with (
                self._context.wrap_socket(
                    plain, server_side=True, do_handshake_on_connect=False
                ) as tls,
                contextlib.suppress(OSError),
            ):
                with contextlib.suppress(ssl.SSLError):
                    tls.do_handshake()
                socket.socket.shutdown(tls, socket.SHUT_WR)
                while socket.socket.recv(tls, 1000):
                    pass  # closing before all was read would reset the connection

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def test_a_server_that_wants_a_certificate_is_quoted(
    posting: Posting, certificates: Certificates
) -> None:
    posting.publish([b"1"])
    with Strict(certificates) as url:
        trust = "--http-tls-root-ca-file", str(certificates.ca)
        poster = posting.start("--post", url, *trust)
        poster.says("the server requires a client certificate: name one")
        assert poster.end() == 0


class Deaf:
    """Takes connections and says nothing, not even the first word of TLS."""

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        return f"https://127.0.0.1:{self._socket.getsockname()[1]}/"

    def __exit__(self, *_: object) -> None:
        self._socket.close()


UNREACHABLE = {
    "http://127.0.0.1:{port}/": "connection refused",
    "http://no-such-host.invalid/": "cannot connect",
    "http://127.0.0.1:{plain}/ as https": "cannot connect",
    "{deaf}": "no connection within 0.5 s",
}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a good one"])
@pytest.mark.parametrize("url", UNREACHABLE)
def test_who_cannot_be_reached_costs_a_message_nothing_if_there_is_another_one(
    posting: Posting, url: str, beside: bool
) -> None:
    """Alone it costs an attempt, and what nobody took is a dead letter."""
    posting.numbers(2)
    options = posting.dead_after(2)
    limit = "--http-client-connect-timeout", "500ms"
    with WebServer() as web, WebServer() as plain, Deaf() as deaf:
        bad = url.format(port=free_port(), plain=plain.address.port, deaf=deaf)
        if bad.endswith(" as https"):
            bad = bad.removesuffix(" as https").replace("http:", "https:")
            plain.failures.clear()
        endpoints = ("--post", bad, *(("--post", web.url()) if beside else ()))
        poster = posting.start(*endpoints, *options, *limit)
        poster.finish()
        counts = sorted(web.accepted().values())
        plain.failures.clear()
    assert counts == ([1, 1] if beside else [])
    assert len(posting.dead_letters()) == (0 if beside else 2)
    assert UNREACHABLE[url] in poster.said
    channel = posting.channel()
    assert channel["requeue_count"] == (0 if beside else 4)


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


@pytest.mark.parametrize("mode", ["hostpool", "round-robin", "epsilon-greedy"])
def test_half_of_the_endpoints_being_dead_costs_no_message_an_attempt(
    posting: Posting, mode: str
) -> None:
    posting.numbers(500)
    with WebServer() as one, WebServer() as other:
        dead = [f"http://127.0.0.1:{free_port()}/" for _ in range(2)]
        urls = (one.url(), dead[0], other.url(), dead[1])
        options = "--max-attempts", "1", "--mode", mode
        posts = [word for url in urls for word in ("--post", url)]
        posting.start(*posts, *options).finish()
        both = one.deliveries + other.deliveries
        assert len(both) == both.total() == 500
        assert one.requests
        assert other.requests
    assert posting.channel()["requeue_count"] == 0


def test_all_endpoints_dead_and_then_back(posting: Posting) -> None:
    """Once the breakers are open messages are held, however long it takes."""
    posting.numbers(50)
    with WebServer() as one, WebServer() as other:
        for web in (one, other):
            web.refuse()
        posts = "--post", one.url(), "--post", other.url(), "-n", "1"
        poster = posting.start(*posts)
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
    assert poster.said.count("cannot connect: connection refused") == 2
    assert "delivers again" in poster.said


@pytest.mark.nsqd_only("the sandbox times out the same")
def test_an_outage_longer_than_nsqd_lets_messages_be_held(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    """nsqd takes them back, and what it delivers again once the endpoint is back counts."""
    nsqd = make_nsqd("-msg-timeout=1s", "-max-msg-timeout=2s")
    nsqd.create(topic, "c")
    posting = Posting(nsqtools_cli, nsqd, topic, tmp_path)
    posting.numbers(20)
    with WebServer() as web:
        web.refuse()
        poster = posting.start("--post", web.url(), "--max-in-flight", "10")
        eventually(lambda: posting.channel()["timeout_count"], timeout=30)
        web.listen()
        poster.finish(timeout=40)
        assert len(web.deliveries) == 20


def test_an_endpoint_that_is_gone_gets_no_more(posting: Posting) -> None:
    """Its message goes to the other one at once."""
    posting.numbers(100)
    with WebServer(Answer(status=410)) as gone, WebServer() as web:
        posts = "--post", gone.url(), "--post", web.url(), "-n", "1", "--max-attempts", "1"
        poster = posting.start(*posts)
        poster.finish()
        assert len(gone.requests) == 1
        assert len(web.deliveries) == web.deliveries.total() == 100
        assert f"{gone.url()}: gone (status 410)" in poster.said


def test_when_all_endpoints_are_gone_it_ends_and_finishes_nothing(posting: Posting) -> None:
    posting.numbers(100)
    with WebServer(Answer(status=410)) as gone, WebServer(Answer(status=410)) as other:
        posts = "--post", gone.url(), "--post", other.url(), "-n", "1"
        poster = posting.start(*posts)
        assert poster.process.wait(20) == 1
        assert len(gone.requests) == len(other.requests) == 1
    assert poster.said.endswith("nsqtools: every endpoint is gone (status 410)\n")
    channel = posting.channel()
    assert channel["depth"] + channel["deferred_count"] + channel["in_flight_count"] == 100


@pytest.mark.parametrize("slow", [False, True], ids=["that refuses", "that does not answer"])
def test_a_dead_endpoint_of_two_costs_under_2_percent(posting: Posting, slow: bool) -> None:
    """Counted in requests and in messages that came again, not in time."""
    count = 5000
    posting.numbers(count)
    with WebServer(HANG) as dead, WebServer() as web:
        if not slow:
            dead.refuse()
        options = "-n", "50", "--http-client-request-timeout", "1s", "--status-every", "1000000"
        posts = "--post", dead.url(), "--post", web.url()
        poster = posting.start(*posts, *options)
        poster.finish()
        assert len(web.deliveries) == web.deliveries.total() == count
        assert len(dead.requests) < 0.02 * count
    (line,) = [
        text for text in poster.said.splitlines() if dead.url() in text and " failed" in text
    ]
    assert int(line.split(" failed")[0].rpartition(" ")[2]) < 0.02 * count
    assert posting.channel()["requeue_count"] < 0.02 * count
