"""``to-http`` and what comes back: odd forms of success, statuses, Retry-After, and failures.

What each message costs and where it ends is counted exactly, by the record of the endpoint.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.webserver import HANG, OK, Answer, WebServer, redirect, retry_after

if TYPE_CHECKING:
    from tests.support.posting import Posting
    from tests.support.webserver import Request

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ANSWERS = {
    "chunks": Answer(raw=CHUNKED + b"2;a=b\r\nOK\r\n0\r\nX: y\r\n\r\n"),
    "chunks without end": Answer(raw=CHUNKED + (b"10000\r\n" + bytes(0x10000) + b"\r\n") * 50),
    "continue": Answer(
        raw=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    ),
    "two responses": Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK" * 2),
    "without a length": Answer(raw=b"HTTP/1.0 200 OK\r\n\r\nOK", cut="response", how="fin"),
    "reset after it": Answer(cut="response"),
    "closed after it, which was not announced": Answer(cut="response", how="fin"),
    "closed after it, as announced": Answer(close=True),
}


def test_odd_answers_deliver_once_whatever_connection_they_come_on(posting: Posting) -> None:
    posting.publish([name.encode() for name in ANSWERS] * 2)
    with WebServer(lambda request: ANSWERS[request.body.decode()]) as web:
        poster = posting.start("--post", web.url(), "-n", "7")
        poster.finish()
        found = Counter(request.body.decode() for request in web.requests)
        assert found == dict.fromkeys(ANSWERS, 2)
        assert set(web.deliveries.values()) == {1}
    assert poster.said == ""


def test_statuses_decide_what_is_delivered_tried_again_or_dropped(posting: Posting) -> None:
    """``costs`` are the requests for a message with that status; the dead took all attempts."""
    costs = {200: 1, 204: 2, 302: 1, 400: 1, 409: 2, 410: 1, 429: 1, 503: 2}
    options = "--success-on", "200,3xx,410", "--drop-on", "4xx", "--retry-on", "201-204,409"
    posting.publish([b"%d" % code for code in costs])

    def by_status(request: Request) -> Answer:
        return Answer(status=int(request.body), headers=(("Location", "/elsewhere"),))

    with WebServer(by_status) as web:
        posting.start("--post", web.url(), *options, *posting.dead_after(2)).finish()
        assert Counter(int(request.body) for request in web.requests) == costs
    dead = [int(each["body"]) for each in posting.dead_letters()]
    assert dead == [204, 400, 409, 429, 503]


def test_retry_after_is_heeded_for_as_long_as_nsqd_allows(posting: Posting) -> None:
    def answer(request: Request) -> Answer:
        seconds = "1" if request.body == b"second" else "9" * 20
        return OK if "2" in request.headers["x-nsq-attempts"] else retry_after(seconds)

    posting.publish([b"second", b"ages"])
    with WebServer(answer) as web:
        poster = posting.start("--post", web.url())
        eventually(lambda: len(web.requests) == 3)
        first, second = (each.at for each in web.requests if each.body == b"second")
        assert second - first > 0.95
        assert posting.channel()["deferred_count"] == 1
        assert poster.end() == 0


SHORT = ("--http-client-request-timeout", "500ms")
FOLLOW = ("--follow-redirects",)

FAULTS: dict[str, tuple[Answer, tuple[str, ...]]] = {
    "reset after the request": (Answer(cut="request"), ()),
    "closed in the head": (Answer(cut="head", how="fin"), ()),
    "reset in the body": (Answer(cut="body"), ()),
    "closed before the last chunk": (
        Answer(raw=CHUNKED + b"2\r\nab\r\n", cut="response", how="fin"),
        (),
    ),
    "no response": (HANG, SHORT),
    "no end of the body": (Answer(raw=CHUNKED + b"5\r\n"), SHORT),
    "another protocol": (Answer(raw=b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), ()),
    "a refusal with control characters": (
        Answer(raw=b"HTTP/1.0 500 No\r\n\r\n\x1b[31m\r\nno\0\n\xff", cut="response", how="fin"),
        (),
    ),
    "a redirect that is not followed": (redirect("/ok"), ()),
    "a redirect to a file": (redirect("file:///etc/passwd"), FOLLOW),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_an_attempt_and_one_for_ever_ends_as_a_dead_letter(
    posting: Posting, name: str
) -> None:
    """Two messages are answered well at their second delivery, a third one never is."""
    fault, options = FAULTS[name]
    seen, taken = Counter[bytes](), Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        if request.body == b"never" or seen[request.body] == 1:
            return fault
        taken[request.body] += 1
        return Answer(close=True)  # an idle connection would be tried before a new one

    posting.publish([b"once", b"never", b"once more"])
    with WebServer(answer) as web:
        poster = posting.start("--post", web.url(), "-vv", *posting.dead_after(2), *options)
        poster.finish()
    assert seen == {b"once": 2, b"once more": 2, b"never": 2}
    assert taken == {b"once": 1, b"once more": 1}
    dead = [(letter["body"], letter["reason"]) for letter in posting.dead_letters()]
    assert dead == [("never", "too many attempts")]
    assert "\x1b" not in poster.said
    assert "Traceback" not in poster.said
