"""``to-http`` and what a response says: statuses, redirects, Retry-After, and odd forms of 200.

Deliveries are counted exactly, by the record of the endpoint.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.webserver import OK, Answer, WebServer, redirect, retry_after

if TYPE_CHECKING:
    from tests.support.posting import Posting
    from tests.support.webserver import Request

ODD = {
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n",
    "chunks with an extension and trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
    b"Trailer: X\r\n\r\n2;a=b\r\nOK\r\n0\r\nX: y\r\n\r\n",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "early hints, twice": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 2
    + b"HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.0 with a length": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK",
    "HTTP/1.0 that stays": b"HTTP/1.0 200 A\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "reset content": b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nOK",
    "a reason in Latin-1": b"HTTP/1.1 201 Cr\xe9\xe9\r\nContent-Length: 0\r\n\r\n",
    "odd case": b"HTTP/1.1 200 OK\r\ncONTENT-lENGTH:2\r\n\r\nOK",
    "the same length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nOK",
    "more than its length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK and more",
    "two responses": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK" * 2,
    "gzip that is none": b"HTTP/1.1 200 A\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nOK",
    "a folded header": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "chunks without end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + (b"10000\r\n" + bytes(0x10000) + b"\r\n") * 50,
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"Content-Length: 0\r\n\r\n",
}
ODD_ENDS = {
    "HTTP/1.0 without a length": b"HTTP/1.0 200 OK\r\n\r\nOK",
    "HTTP/1.1 without a length": b"HTTP/1.1 200 OK\r\n\r\nOK",
    "without a length or a body": b"HTTP/1.1 200 OK\r\n\r\n",
}
ANSWERS = {
    **{name: Answer(raw=data) for name, data in ODD.items()},
    **{name: Answer(raw=data, cut="response", how="fin") for name, data in ODD_ENDS.items()},
    "in pieces": Answer(delay=0.02, head_delay=0.02, body_delay=0.02),
    "reset after it": Answer(cut="response"),
    "closed after it, which was not announced": Answer(cut="response", how="fin"),
    "closed after it, as announced": Answer(close=True),
    "64 KiB": Answer(body=b"x" * (64 << 10)),
    "50 MB": Answer(size=50_000_000),
}


def test_odd_answers_deliver_once_whatever_connection_they_come_on(posting: Posting) -> None:
    posting.publish([name.encode() for name in ANSWERS] * 5)
    with WebServer(lambda request: ANSWERS[request.body.decode()]) as web:
        poster = posting.start("--post", web.url(), "-n", "7")
        poster.finish()
        assert Counter(request.body.decode() for request in web.requests) == dict.fromkeys(
            ANSWERS, 5
        )
        assert set(web.deliveries.values()) == {1}
        assert sum(request.sent for request in web.requests) < 100_000_000
    assert poster.said == ""


RETRIED = [code for code in range(300, 600) if code != 410]


def by_status(request: Request) -> Answer:
    return Answer(status=int(request.body), headers=(("Location", "/elsewhere"),))


def test_every_status_from_200_to_299_delivers_with_one_request(posting: Posting) -> None:
    codes = range(200, 300)
    posting.publish([b"%d" % code for code in codes])
    with WebServer(by_status) as web:
        posting.start("--post", web.url()).finish()
        assert Counter(int(request.body) for request in web.requests) == dict.fromkeys(codes, 1)


def test_every_other_status_is_tried_again(posting: Posting) -> None:
    """300 to 599: two requests each, among others that leave the endpoint in good repute."""
    seen = Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        return by_status(request) if seen[request.body] == 1 else OK

    good = [b"200 %d" % code for code in RETRIED]
    bad = [b"%d" % code for code in RETRIED]
    posting.publish([body for pair in zip(good, bad, strict=True) for body in pair])
    options = "-n", "1", "--consumer-opt", "max_backoff_duration,0"
    with WebServer(lambda each: OK if each.body.startswith(b"200 ") else answer(each)) as web:
        posting.start("--post", web.url(), *options).finish()
        assert len(web.deliveries) == len(good) + len(bad)
    assert seen == dict.fromkeys(bad, 2)


def test_a_status_to_drop_on_is_a_dead_letter_after_one_request(posting: Posting) -> None:
    posting.publish([b"%d" % code for code in RETRIED])
    dead = "--drop-on", "3xx,4xx,5xx", *posting.dead_after(0)
    with WebServer(by_status) as web:
        posting.start("--post", web.url(), *dead).finish()
        seen = Counter(int(request.body) for request in web.requests)
    assert seen == dict.fromkeys(RETRIED, 1)
    letters = posting.dead_letters()
    assert [int(letter["body"]) for letter in letters] == RETRIED
    assert all(f"status {each['body']}" in each["reason"] for each in letters)


def test_lists_of_statuses_decide(posting: Posting) -> None:
    lists = "--success-on", "200,3xx,410", "--drop-on", "4xx", "--retry-on", "201,409,500-504"
    dead = posting.dead_after(2)
    codes = {200: 1, 201: 2, 204: 2, 304: 1, 404: 1, 409: 2, 410: 1}
    posting.publish([b"%d" % code for code in codes])
    with WebServer(by_status) as web:
        posting.start("--post", web.url(), *lists, *dead).finish()
        assert Counter(int(request.body) for request in web.requests) == codes
    assert [each["body"] for each in posting.dead_letters()] == [
        "201",
        "204",
        "404",
        "409",
    ]


@pytest.mark.parametrize("method", ["get", "post"])
def test_redirects_of_a_get_are_followed_and_307_and_308_keep_a_body(
    posting: Posting, method: str
) -> None:
    codes = [301, 302, 303, 307, 308] if method == "get" else [307, 308]

    def answer(request: Request) -> Answer:
        if request.target.startswith("/old"):
            code = request.body or request.target.rpartition("/")[2]
            return redirect(request.target.replace("old", "new"), int(code))
        return OK

    posting.publish(b"%d" % code for code in codes)
    with WebServer(answer) as web:
        url = web.url("/old/%s" if method == "get" else "/old/")
        posting.start(f"--{method}", url, "--follow-redirects").finish()
        assert {request.method for request in web.requests} == {method.upper()}
        asked = Counter(request.target + request.body.decode() for request in web.requests)
    assert asked == {f"/{age}/{code}": 1 for age in ("old", "new") for code in codes}


def test_retry_after_is_heeded(posting: Posting) -> None:
    """A date has no fractions: one that is 2 s away is at least 1 s away."""
    seen = Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        if seen[request.body] > 1:
            return OK
        code, form = request.body.split()
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return retry_after("1" if form == b"seconds" else date, int(code))

    bodies = [b"429 seconds", b"429 date", b"503 seconds", b"503 date"]
    posting.publish(bodies)
    with WebServer(answer) as web:
        posting.start("--post", web.url()).finish()
        assert seen == dict.fromkeys(bodies, 2)
        for identity in web.deliveries:
            first, second = (each.at for each in web.requests if identity in each.ids)
            assert second - first > 0.95


def test_retry_after_that_says_nothing_is_not(posting: Posting) -> None:
    """What is no time, and what does not go with the status."""
    seen = Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        code, value = request.body.decode().split()
        return retry_after(value, int(code)) if seen[request.body] == 1 else OK

    bodies = [b"429 soon", b"503 -1", b"503 0", b"500 3600"]
    posting.publish(bodies)
    with WebServer(answer) as web:
        posting.start("--post", web.url()).finish()
    assert seen == dict.fromkeys(bodies, 2)


def test_retry_after_of_ages_is_as_long_as_nsqd_allows(posting: Posting) -> None:
    posting.publish([b"1"])
    with WebServer(retry_after("99999999999999999999")) as web:
        poster = posting.start("--post", web.url())
        eventually(lambda: posting.channel()["deferred_count"] == 1)
        assert poster.end() == 0
        assert list(web.deliveries.values()) == [1]
