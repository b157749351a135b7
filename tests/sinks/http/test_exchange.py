"""Requests and responses as bytes."""

from __future__ import annotations

import h11
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqtools.sinks.http import exchange
from nsqtools.sinks.http.exchange import MAX_BODY, ProtocolError, Reply, ReplyReader, render

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: x\r\n\r\nok"


BUSY = OK.replace(b"200", b"503")


def read(*chunks: bytes, method: str = "POST", eof: bool = False) -> Reply | None:
    reader = ReplyReader(method)
    for chunk in chunks:
        if reply := reader.feed(chunk):
            return reply
    return reader.finish() if eof else None


def test_a_plain_response_in_one_piece() -> None:
    assert read(OK) == Reply(200, [], b"ok", reusable=True)


def test_a_refusal_has_its_headers() -> None:
    fields = [(b"content-length", b"2"), (b"server", b"x")]
    assert read(OK.replace(b"200", b"429")) == Reply(429, fields, b"ok", reusable=True)


@pytest.mark.parametrize("cut", range(1, len(BUSY)))
def test_a_response_in_two_pieces_is_the_same(cut: int) -> None:
    assert read(BUSY[:cut], BUSY[cut:]) == read(BUSY)


NAMES = st.sampled_from(["Content-Length", "Transfer-Encoding", "Connection", "Date", "X", "X-y"])
VALUES = st.sampled_from(
    [
        "0",
        "2",
        "3",
        "100000",
        "abc",
        "02",
        "+2",
        "2, 2",
        "chunked",
        "close",
        "keep-alive",
        "",
        " a b ",
        "\x00",
        "é",
    ]
)
HEADS = st.tuples(
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTP/1.1"]),
    st.sampled_from(["200 OK", "204 No Content", "304", "503 ", "100 Continue", "099 x", "20 x"]),
    st.lists(st.tuples(NAMES, st.sampled_from([":", ": ", " : ", ":\t"]), VALUES), max_size=4),
)


@given(
    head=HEADS,
    body=st.sampled_from([b"", b"ok", b"okk", b"2\r\nok\r\n0\r\n\r\n", OK]),
    method=st.sampled_from(["POST", "GET"]),
)
@example(head=("HTTP/1.1", "200 OK", [("Content-Length", ": ", "2")]), body=b"ok", method="POST")
@example(
    head=("HTTP/1.1", "200", [("Content-Length", ":", "0"), ("Content-Length", ":", "100000")]),
    body=b"",
    method="POST",
)
@example(
    head=("HTTP/1.1", "200", [("Content-Length", ":", "2"), ("Content-Length", ":", "abc")]),
    body=b"ok",
    method="POST",
)
@example(head=("HTTP/1.1", "204 No", [("Content-Length", ": ", "2")]), body=b"ok", method="POST")
def test_the_short_way_reads_what_h11_reads(
    head: tuple[str, str, list[tuple[str, str, str]]], body: bytes, method: str
) -> None:
    version, status, fields = head
    lines = [f"{version} {status}", *(f"{name}{colon}{value}" for name, colon, value in fields)]
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
    if (quick := exchange._simple(data)) is None:
        return
    reader = ReplyReader(method)
    reader._h11 = exchange._expecting(method)
    slow = reader.feed(data)
    assert slow
    assert quick == (slow._replace(headers=[]) if quick.status < 300 else slow)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\r\n b\r\n\r\nok",
    ],
)
def test_what_is_not_plain_is_read_as_well(data: bytes) -> None:
    reply = read(data)
    assert reply
    assert (reply.status, reply.body, reply.reusable) == (200, b"ok", True)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 more",
    ],
)
def test_a_connection_that_ends_is_not_used_again(data: bytes) -> None:
    reply = read(data)
    assert reply
    assert (reply.status, reply.body, reply.reusable) == (200, b"ok", False)


def test_without_a_length_the_end_of_the_connection_is_the_end_of_the_body() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    assert read(head, b"o", b"k") is None
    reply = read(head, b"o", b"k", eof=True)
    assert reply
    assert (reply.body, reply.reusable) == (b"ok", False)


@pytest.mark.parametrize("length", [b"Content-Length: 10000000\r\n", b""])
def test_of_a_huge_body_the_beginning_is_enough(length: bytes) -> None:
    reply = read(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n", *[b"x" * 10_000] * 10)
    assert reply
    assert (reply.status, reply.body, reply.reusable) == (200, b"x" * MAX_BODY, False)


def test_no_response_at_all_is_none() -> None:
    assert read(eof=True) is None


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"V2 \x00\x00\x00",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ],
)
def test_what_is_no_response_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data, eof=True)


def test_a_request_is_rendered_as_httpx_describes_it() -> None:
    request = httpx.Request(
        "POST",
        "http://endpoint:8080/a%20b?c=%",
        headers=[(b"Host", b"endpoint"), (b"X-A", b"\xe4")],
    )
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(render(request))
    head = connection.next_event()
    assert isinstance(head, h11.Request)
    assert (head.method, head.target) == (b"POST", request.url.raw_path)
    assert list(head.headers) == [(n.lower(), v) for n, v in request.headers.raw]


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\nX", b"a\rX", b"a\0"])
def test_a_header_cannot_break_out(value: bytes) -> None:
    request = httpx.Request("POST", "http://endpoint/", headers=[(b"Host", b"h"), (b"X", value)])
    with pytest.raises(ProtocolError, match="line break or NUL"):
        render(request)
