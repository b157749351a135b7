from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.webserver import (
    HANG,
    OK,
    Answer,
    Request,
    WebServer,
    per_message,
    redirect,
    retry_after,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from http.client import HTTPConnection

    from tests.support.tls import Certificates


@contextlib.contextmanager
def connected(server: WebServer) -> Iterator[HTTPConnection]:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: HTTPConnection, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST" if body else "GET", "/a?b=c", body, sent)
    answer = connection.getresponse()
    return answer.status, answer.read()


@contextlib.contextmanager
def dialled(server: WebServer, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=10) as plain:
        plain.sendall(data)
        yield plain


def read(plain: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = plain.recv(size - len(data))
        assert piece, f"only {data!r}"
        data += piece
    return data


def read_all(plain: socket.socket) -> tuple[bytes, bool]:
    """What came, and whether the connection was reset after it."""
    data = b""
    try:
        while piece := plain.recv(65536):
            data += piece
    except ConnectionResetError:
        return data, True
    return data, False


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


def test_requests_are_remembered_as_they_came_and_counted_per_message() -> None:
    with WebServer() as server, connected(server) as one, connected(server) as two:
        assert ask(one, b"\xff\n", X_NSQ_Id="a", accept="x") == (200, b"OK")
        assert ask(one, X_NSQ_Id="b") == (200, b"OK")
        assert server.deliveries == Counter("ab")
        assert ask(two, b"c", X_NSQ_Ids="a, c") == (200, b"OK")
        first, second, third = server.requests
        assert (first.method, first.target, first.body) == ("POST", "/a?b=c", b"\xff\n")
        assert (first.headers["x-nsq-id"], first.headers["accept"]) == ("a", "x")
        assert (second.method, second.body, second.status, second.sent) == ("GET", b"", 200, 2)
        assert [(each.connection, each.nth) for each in (first, second, third)] == [
            (1, 1),
            (1, 2),
            (2, 1),
        ]
        assert server.deliveries == server.accepted() == Counter("aabc")
        assert server.connections == server.open_connections == 2


def test_requests_in_pieces_chunks_and_rows_are_understood() -> None:
    requests = (
        b"POST /1 HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
        b"POST /2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
        b"HEAD /3 HTTP/1.1\r\nConnection: close\r\n\r\n",
    )
    with WebServer() as server:
        for pieces in (requests, [bytes([each]) for each in b"".join(requests)]):
            with dialled(server) as plain:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for piece in pieces:
                    plain.sendall(piece)
                data, _ = read_all(plain)
                assert data == WHOLE + WHOLE + WHOLE.removesuffix(b"OK")
        assert [(each.target, each.body) for each in server.requests] == [
            ("/1", b"abc"),
            ("/2", b"abc"),
            ("/3", b""),
        ] * 2


def test_answers_come_in_turn_by_message_or_from_a_function() -> None:
    def nth(request: Request) -> Answer:
        return Answer(status=200 + request.nth)

    with WebServer([Answer(status=500, body=b"no")]) as server, connected(server) as client:
        assert [ask(client), ask(client)] == [(500, b"no"), (200, b"OK")]
        server.script = per_message(retry_after("7"), redirect("/x"))
        found = [ask(client, X_NSQ_Id=each)[0] for each in ("a", "b", "a", "b", "b", "a")]
        assert found == [429, 429, 307, 307, 200, 200]
        assert server.accepted() == Counter("ab")
        server.script = nth
        assert ask(client)[0] == 209
        server.script = Answer(status=204)
        assert ask(client) == (204, b"")


def test_headers_are_those_of_the_script() -> None:
    said = [retry_after("1", 503), redirect("/y", 308), Answer(headers=(("Content-Length", "1"),))]
    with WebServer(said) as server, dialled(server, GET * 2) as plain:
        got = plain.recv(4096)
        while got.count(b"\r\n\r\n") < 2 or not got.endswith(b"OK"):
            got += plain.recv(4096)
        assert b"503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 2\r\n" in got
        assert b"308 Permanent Redirect\r\nLocation: /y\r\n" in got
        plain.sendall(GET)
        assert b"\r\nContent-Length: 1\r\n\r\nOK" in plain.recv(4096)


@pytest.mark.parametrize(
    ("answer", "data", "reset", "status"),
    [
        (Answer(cut="request"), b"", True, 0),
        (Answer(cut="request", how="fin"), b"", False, 0),
        (Answer(cut="head"), WHOLE[:19], True, 0),
        (Answer(cut="body"), WHOLE[:-1], True, 0),
        (Answer(cut="body", how="fin"), WHOLE[:-1], False, 0),
        (Answer(cut="response"), WHOLE, True, 200),
        (Answer(cut="response", how="fin"), WHOLE, False, 200),
        (Answer(raw=b"HTP\n", cut="response", how="fin"), b"HTP\n", False, 200),
    ],
)
def test_a_connection_is_cut_where_the_script_says(
    answer: Answer, data: bytes, reset: bool, status: int
) -> None:
    with WebServer(answer) as server, dialled(server, GET) as plain:
        assert read_all(plain) == (data, reset)
        assert [each.status for each in server.requests] == [status]
        eventually(lambda: server.open_connections == 0)


def test_the_next_connections_are_reset_before_or_within_their_first_request() -> None:
    with WebServer() as server:
        server.reset(1)
        with (
            contextlib.suppress(ConnectionResetError),
            dialled(server) as plain,
        ):  # it may come that early
            assert read_all(plain) == (b"", True)
        server.reset(1, after=len(GET) - 1)
        with dialled(server, GET[:-2]) as plain:
            plain.sendall(GET[-2:])
            assert read_all(plain) == (b"", True)
        with connected(server) as client:
            assert ask(client) == (200, b"OK")
        assert (server.connections, len(server.requests)) == (3, 1)


def test_connections_end_after_so_many_requests_or_when_told_to() -> None:
    with WebServer(requests_per_connection=2) as server:
        with dialled(server, GET + GET + GET) as plain:
            assert read_all(plain)[0] == WHOLE + WHOLE
        server.requests_per_connection = 0
        server.script = [OK, Answer(close=True)]
        with dialled(server, GET + GET) as plain:
            assert read_all(plain)[0].endswith(b"Connection: close\r\n\r\nOK")


def test_delays_stand_between_the_parts_of_an_answer() -> None:
    inf = float("inf")
    for answer, data in (
        (HANG, b""),
        (Answer(head_delay=inf), WHOLE[:19]),
        (Answer(body_delay=inf), WHOLE[:-1]),
    ):
        with WebServer(answer) as server, dialled(server, GET) as plain:
            assert read(plain, len(data)) == data
            plain.settimeout(0.05)
            with pytest.raises(TimeoutError):
                plain.recv(1)
    delays = Answer(delay=0.001, head_delay=0.001, body_delay=0.001, body=b"slow")
    with WebServer(delays) as server, connected(server) as client:
        assert [ask(client), ask(client)] == [(200, b"slow")] * 2


def test_a_huge_body_is_sent_as_it_is_taken_and_ends_with_the_client() -> None:
    with WebServer([Answer(size=1 << 20), Answer(size=1 << 40)]) as server:
        with connected(server) as client:
            assert ask(client) == (200, bytes(1 << 20))
        with dialled(server, GET) as plain:
            read(plain, 65536)
        eventually(lambda: server.open_connections == 0)
        _, huge = server.requests
        assert (huge.status, huge.sent < 1 << 30) == (0, True)


def test_held_answers_are_counted_and_come_when_they_are_released() -> None:
    with WebServer() as server, contextlib.ExitStack() as stack:
        server.hold()
        clients = [stack.enter_context(dialled(server, GET)) for _ in range(3)]
        eventually(lambda: len(server.requests) == 3)
        assert [each.status for each in server.requests] == [0] * 3
        server.release()
        for client in clients:
            assert read(client, len(WHOLE)) == WHOLE
        assert server.most_at_once == 3


def test_a_server_that_refuses_is_back_at_the_same_address() -> None:
    with WebServer() as server, dialled(server) as plain:
        plain.sendall(GET)
        assert read(plain, len(WHOLE)) == WHOLE
        server.refuse()
        server.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)
        plain.sendall(GET)
        assert read(plain, len(WHOLE)) == WHOLE
        server.cut()
        assert read_all(plain) == (b"", True)
        server.listen()
        with connected(server) as client:
            assert ask(client) == (200, b"OK")


def test_https_has_the_given_certificate_and_may_want_one(certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    with WebServer(tls=certificates.server, client_ca=certificates.ca) as server:
        assert server.url("/x", "localhost") == f"https://localhost:{server.address.port}/x"
        for client in (None, certificates.client):
            if client:
                context.load_cert_chain(client.cert, client.key)
            connection = http.client.HTTPSConnection(*server.address, context=context, timeout=10)
            with contextlib.closing(connection):
                if client:
                    assert ask(connection, b"body") == (200, b"OK")
                else:
                    with pytest.raises(OSError):  # noqa: PT011 - by its time of noticing
                        ask(connection)
    with WebServer(tls=certificates.expired) as server:
        connection = http.client.HTTPSConnection(*server.address, context=context, timeout=10)
        with contextlib.closing(connection), pytest.raises(ssl.SSLCertVerificationError):
            ask(connection)
        with dialled(server):  # a handshake that never begins
            pass
    with WebServer(Answer(cut="body"), tls=certificates.server) as server:
        connection = http.client.HTTPSConnection(*server.address, context=context, timeout=10)
        with contextlib.closing(connection), pytest.raises((OSError, http.client.IncompleteRead)):
            ask(connection)


@pytest.mark.parametrize("data", [b"\x16\x03\x01\n", b"GET /\r\n\r\n"])
def test_what_is_no_http_is_raised_at_the_end(data: bytes) -> None:
    with (
        pytest.raises(ValueError, match="no HTTP request"),
        WebServer() as server,
        dialled(server, data) as plain,
    ):
        assert read_all(plain) == (b"", True)


def test_an_error_of_the_script_is_raised_at_the_end() -> None:
    def wrong(request: Request) -> Answer:
        raise LookupError(request.target)

    with (
        pytest.raises(LookupError, match="/"),
        WebServer(wrong) as server,
        dialled(server, GET) as plain,
    ):
        assert read_all(plain) == (b"", True)


def test_many_clients_at_once_lose_nothing() -> None:
    def client(server: WebServer, ids: Iterable[str]) -> None:
        with connected(server) as connection:
            for each in ids:
                assert ask(connection, b"x" * 200, X_NSQ_Id=each) == (200, b"OK")

    with WebServer() as server:
        threads = [
            threading.Thread(target=client, args=(server, [f"{n}-{i}" for i in range(100)]))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.deliveries) == len(server.accepted()) == 800
        assert set(server.deliveries.values()) == {1}
