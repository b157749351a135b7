"""How nsqd speaks HTTP/1.1, whatever is asked."""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING

from tests.support.raw import http_ask

if TYPE_CHECKING:
    from tests.support.servers import Nsqd

NOT_FOUND = b'{"message":"NOT_FOUND"}'


def test_a_connection_serves_many_requests(nsqd: Nsqd, topic: str) -> None:
    connection = http.client.HTTPConnection(*nsqd.http, timeout=10)
    connection.connect()
    first = connection.sock
    for _ in range(5):
        connection.request("POST", f"/pub?topic={topic}", b"x")
        assert connection.getresponse().read() == b"OK"
        connection.request("GET", "/nowhere")
        assert connection.getresponse().read() == NOT_FOUND
    assert connection.sock is first
    connection.close()


def test_head_is_no_get(nsqd: Nsqd) -> None:
    found = http_ask(nsqd.http, "HEAD /ping")
    assert (found.status, found.body) == (405, b"")


def speak(nsqd: Nsqd, request: bytes) -> bytes:
    """All that is answered until the server closes."""
    with socket.create_connection(nsqd.http, timeout=10) as plain:
        plain.sendall(request)
        return plain.makefile("rb").read()


def test_a_connection_is_closed_after_the_answer_where_that_is_asked_for(nsqd: Nsqd) -> None:
    for request in (
        b"GET /ping HTTP/1.0\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ):
        reply = speak(nsqd, request)
        assert reply.startswith(b"HTTP/1.")
        assert b" 200 OK\r\n" in reply
        assert reply.endswith(b"\r\n\r\nOK")


def test_a_body_that_waits_for_leave_to_be_sent_gets_it(nsqd: Nsqd, topic: str) -> None:
    with socket.create_connection(nsqd.http, timeout=10) as plain:
        head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        plain.sendall(f"{head}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        reader = plain.makefile("rb")
        assert reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert reader.readline() == b"\r\n"
        plain.sendall(b"body")
        assert reader.read().endswith(b"\r\n\r\nOK")
    assert nsqd.topic(topic)["message_bytes"] == 4


def test_requests_sent_at_once_are_answered_in_order(nsqd: Nsqd) -> None:
    one = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    other = b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    reply = speak(nsqd, one + one + other)
    assert reply.count(b"\r\n\r\nOK") == 2
    assert reply.endswith(NOT_FOUND)


def test_what_is_not_http_is_answered_400_and_closed(nsqd: Nsqd) -> None:
    reply = speak(nsqd, b"  V2IDENTIFY\n\n")
    assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
