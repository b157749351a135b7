"""nsqd's HTTP API, beyond single answers, and how it speaks HTTP/1.1."""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.raw import Connect
    from tests.support.servers import Nsqd


def test_pub_takes_a_chunked_body(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    connection = http.client.HTTPConnection(*nsqd.http, timeout=60)
    parts = iter([b"one", b"two"])
    connection.request("POST", f"/pub?topic={topic}", parts, encode_chunked=True)
    assert connection.getresponse().read() == b"OK"
    connection.close()
    assert connect().subscribe(topic, ready=1).message().body == b"onetwo"


def speak(nsqd: Nsqd, request: bytes) -> bytes:
    """All that is answered until the server closes."""
    with socket.create_connection(nsqd.http, timeout=60) as plain:
        plain.sendall(request)
        return plain.makefile("rb").read()


@pytest.mark.parametrize(
    "head", [b"HTTP/1.0\r\n\r\n", b"HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"]
)
def test_a_connection_is_closed_after_the_answer_where_that_is_asked_for(
    head: bytes, nsqd: Nsqd
) -> None:
    status, *_, body = speak(nsqd, b"GET /ping " + head).split(b"\r\n")
    assert (status.split(b" ", 1)[1], body) == (b"200 OK", b"OK")


def test_a_body_that_waits_for_leave_to_be_sent_gets_it(nsqd: Nsqd, topic: str) -> None:
    with socket.create_connection(nsqd.http, timeout=60) as plain:
        head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        plain.sendall(f"{head}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        reader = plain.makefile("rb")
        assert reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert reader.readline() == b"\r\n"
        plain.sendall(b"body")
        assert reader.read().endswith(b"\r\n\r\nOK")
    assert nsqd.topic(topic)["message_bytes"] == 4


@pytest.mark.parametrize(
    "request_line",
    [
        b"  V2IDENTIFY\n\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n",
        b"GET /ping HTTP/1.1\r\n\r\n",  # no Host
        b"GET /ping HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /pub HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_400_and_closed(request_line: bytes, nsqd: Nsqd) -> None:
    status, _, rest = speak(nsqd, request_line).partition(b"\r\n")
    assert status.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"\r\n\r\n400 Bad Request" in rest
