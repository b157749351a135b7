"""Requests and responses as bytes."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqtools.net.http import wire
from nsqtools.net.http.wire import Reply, ReplyError, ReplyReader, render_fields

MAX_BODY = 64 << 10
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: x\r\n\r\nok"
BUSY = OK.replace(b"200", b"503")


def read(*chunks: bytes, method: str = "POST", eof: bool = False) -> Reply | None:
    reader = ReplyReader(method, MAX_BODY)
    for chunk in chunks:
        if reply := reader.feed(chunk):
            return reply
    return reader.finish() if eof else None


@pytest.mark.parametrize(("data", "status"), [(OK, 200), (BUSY, 503)])
def test_a_plain_response_is_read_the_short_way_and_in_pieces_alike(
    data: bytes, status: int
) -> None:
    quick = wire._simple(data)
    assert quick
    assert (quick.status, quick.body, quick.reusable) == (status, b"ok", True)
    assert quick.headers == [(b"content-length", b"2"), (b"server", b"x")]
    assert (quick.header("Server"), quick.header("Location")) == ("x", "")
    for cut in range(1, len(data)):
        reply = read(data[:cut], data[cut:])
        assert reply
        assert same(reply) == same(quick)


def same(reply: Reply) -> tuple[object, ...]:
    """All but how the server spelled the headers."""
    return reply.status, reply.headers, reply.body, reply.reusable, reply.is_cut


NAMES = st.sampled_from(["Content-Length", "Transfer-Encoding", "Connection", "Date", "X", "X-y"])
LENGTHS = ["0", "2", "3", "100000", "abc", "02", "+2", "2, 2"]
VALUES = st.sampled_from([*LENGTHS, "chunked", "close", "keep-alive", "", " a b ", "\x00", "é"])
HEADS = st.tuples(
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTP/1.1"]),
    st.sampled_from(["200 OK", "204 No Content", "304", "503 ", "100 Continue", "099 x", "20 x"]),
    st.lists(st.tuples(NAMES, st.sampled_from([":", ": ", " : ", ":\t"]), VALUES), max_size=4),
)
LENGTH = "Content-Length"


@given(
    head=HEADS,
    body=st.sampled_from([b"", b"ok", b"okk", b"2\r\nok\r\n0\r\n\r\n", OK]),
    method=st.sampled_from(["POST", "GET"]),
)
@example(("HTTP/1.1", "200 OK", [(LENGTH, ": ", "2")]), b"ok", "POST")
@example(("HTTP/1.1", "200", [(LENGTH, ":", "0"), (LENGTH, ":", "100000")]), b"", "POST")
@example(("HTTP/1.1", "200", [(LENGTH, ":", "2"), (LENGTH, ":", "abc")]), b"ok", "POST")
@example(("HTTP/1.1", "204 No", [(LENGTH, ": ", "2")]), b"ok", "POST")
def test_the_short_way_reads_what_h11_reads(
    head: tuple[str, str, list[tuple[str, str, str]]], body: bytes, method: str
) -> None:
    version, status, fields = head
    lines = [f"{version} {status}", *(f"{name}{colon}{value}" for name, colon, value in fields)]
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
    plain = [(LENGTH, ": ", str(len(body)))]
    quick = wire._simple(data)
    assert quick or head not in [("HTTP/1.1", code, plain) for code in ("200 OK", "503 ")]
    if quick is None:
        return
    slow = read(data[:1], data[1:], method=method)
    assert slow
    assert same(quick) == same(slow)


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\r\n b\r\n\r\nok", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (OK + b"HTTP/1.1 200 more", False),
    ],
)
def test_what_is_not_plain_is_read_as_well_and_tells_whether_the_connection_lives(
    data: bytes, reusable: bool
) -> None:
    reply = read(data)
    assert reply
    assert (reply.status, reply.body, reply.reusable) == (200, b"ok", reusable)


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
    assert (reply.status, reply.body) == (200, b"x" * MAX_BODY)
    assert (reply.reusable, reply.is_cut) == (False, True)


ODD = [
    b"X Powered By: me",
    b"Server : x",
    b"no colon",
    b": nobody",
    b"X: \0",
    b"\xff: y",
    b" folded",
]
REPLIES = [
    OK,
    b"HTTP/1.0 200\r\n\r\nok",
    b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1  200 OK\nRetry-After: 7\n\nok",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    *(b"HTTP/1.1 200 OK\r\n" + line + b"\r\nContent-Length: 2\r\n\r\nok" for line in ODD),
]
STATUS_LINE = re.compile(rb"HTTP/\d\.\d +200[^\n]*\n")


@pytest.mark.parametrize("data", REPLIES)
@pytest.mark.parametrize("pieces", [1, 2, 10**6])
def test_at_every_cut_a_status_line_is_kept_and_without_one_there_is_nothing(
    data: bytes, pieces: int
) -> None:
    """However many pieces it comes in."""
    for cut in range(1, len(data) + 1):
        size = -(-cut // pieces)
        chunks = [data[at : min(at + size, cut)] for at in range(0, cut, size)]
        try:
            found = read(*chunks, eof=True)
        except ReplyError as error:
            found = error.part
        assert bool(found) == bool(STATUS_LINE.search(data[:cut])), data[:cut]
        if found:
            assert found.status == 200
            assert not found.reusable or cut == len(data)
            assert bytes(found.body) in b"ok"


def test_whole_lines_of_headers_are_known_of_a_response_that_is_not_valid() -> None:
    data = b"HTTP/1.1 503 No\r\nX Y: 1\r\nRetry-After: 12\r\nDate: x\r\n\r\nBody: no\r\n"
    for cut, after in ((len(data), "12"), (data.index(b"2\r\nD"), "")):
        with pytest.raises(ReplyError) as caught:
            read(data[:cut], eof=True)
        part = caught.value.part
        assert part
        assert (part.status, part.header("Retry-After"), part.header("Body")) == (503, after, "")


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
def test_what_is_no_response_is_an_error_and_nothing_at_all_is_none(data: bytes) -> None:
    with pytest.raises(ReplyError, match=r"^[\w ,'()-]*$"):
        read(data, eof=True)
    assert read(eof=True) is None


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\nX", b"a\rX", b"a\0"])
def test_a_header_cannot_break_out(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        render_fields([(b"Host", b"h"), (b"X", value)])
