"""``to-http`` and what comes back: odd forms of success, statuses, Retry-After, and failures.

What each message costs and where it ends is counted exactly, by the record of the endpoint.
"""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.posting import Posting
from tests.support.process import Cli
from tests.support.webserver import (
    HANG,
    OK,
    Answer,
    WebServer,
    per_message,
    redirect,
    retry_after,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.support.posting import Pool
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
    posting.publish([name.encode() for name in ANSWERS] * 2)
    with WebServer(lambda request: ANSWERS[request.body.decode()]) as web:
        poster = posting.start("--post", web.url(), "-n", "7")
        poster.finish()
        assert Counter(request.body.decode() for request in web.requests) == dict.fromkeys(
            ANSWERS, 2
        )
        assert set(web.deliveries.values()) == {1}
        assert sum(request.sent for request in web.requests) < 100_000_000
    assert poster.said == ""


@pytest.mark.parametrize("lists", [False, True], ids=["as they are", "as lists say"])
def test_statuses_decide_what_is_delivered_tried_again_or_dropped(
    posting: Posting, lists: bool
) -> None:
    """``costs`` are the requests for a message with that status; the dead took all attempts."""
    costs = {200: 1, 201: 1, 204: 1, 299: 1, 304: 2, 400: 2, 404: 2, 429: 2, 503: 2, 599: 2}
    options: tuple[str, ...] = ()
    dead = [304, 400, 404, 429, 503, 599]
    if lists:
        costs = {200: 1, 201: 2, 204: 2, 304: 1, 404: 1, 409: 2, 410: 1}
        words = "--success-on 200,3xx,410 --drop-on 4xx --retry-on 201,409,500-504"
        options, dead = tuple(words.split()), [201, 204, 404, 409]
    posting.publish([b"%d" % code for code in costs])

    def by_status(request: Request) -> Answer:
        return Answer(status=int(request.body), headers=(("Location", "/elsewhere"),))

    with WebServer(by_status) as web:
        posting.start("--post", web.url(), *options, *posting.dead_after(2)).finish()
        assert Counter(int(request.body) for request in web.requests) == costs
    assert [int(each["body"]) for each in posting.dead_letters()] == dead


def test_retry_after_is_heeded(posting: Posting) -> None:
    """A date has no fractions: one that is 2 s away is at least 1 s away."""
    seen = Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        if seen[request.body] > 1:
            return OK
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return retry_after("1") if request.body == b"seconds" else retry_after(date, 503)

    posting.publish([b"seconds", b"date"])
    with WebServer(answer) as web:
        posting.start("--post", web.url()).finish()
        assert seen == {b"seconds": 2, b"date": 2}
        for identity in web.deliveries:
            first, second = (each.at for each in web.requests if identity in each.ids)
            assert second - first > 0.95


def test_retry_after_of_ages_is_as_long_as_nsqd_allows(posting: Posting) -> None:
    posting.publish([b"1"])
    with WebServer(retry_after("99999999999999999999")) as web:
        poster = posting.start("--post", web.url())
        eventually(lambda: posting.channel()["deferred_count"] == 1)
        assert poster.end() == 0
        assert list(web.deliveries.values()) == [1]


SHORT = "--http-client-request-timeout", "500ms"
FOLLOW = ("--follow-redirects",)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer that is a failure. ``requests`` come of one attempt."""

    answer: Answer
    options: tuple[str, ...] = ()
    requests: int = 1


def raw(data: bytes, *, end: bool = False) -> Fault:
    return Fault(Answer(raw=data, cut="response" if end else "", how="fin"))


FAULTS = {
    "reset after the request": Fault(Answer(cut="request")),
    "closed after the request": Fault(Answer(cut="request", how="fin")),
    "closed in the head": Fault(Answer(cut="head", how="fin")),
    "reset in the body": Fault(Answer(cut="body")),
    "closed before the last chunk": raw(CHUNKED + b"2\r\nab\r\n", end=True),
    "closed after 100 Continue": raw(b"HTTP/1.1 100 Continue\r\n\r\n", end=True),
    "no response": Fault(HANG, SHORT),
    "another protocol": raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "HTTP/2": raw(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80\0\x04\0\x01\0\0\r\n\r\n"),
    "an alert of TLS": raw(b"\x15\x03\x01\0\x02\x02\x16", end=True),
    "a status of two digits": raw(b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
    "a header with NUL": raw(b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "a chunk size that is none": raw(CHUNKED + b"xyz\r\nab\r\n0\r\n\r\n"),
    "a head without end": raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * (100 << 10)),
    "101 Switching Protocols": raw(
        b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"
    ),
    "a refusal of 1 MB": Fault(Answer(status=500, size=1 << 20)),
    "a refusal with control characters": raw(
        b"HTTP/1.0 500 No\r\n\r\n\x1b[31m\r\nno\0\n\xff", end=True
    ),
    "a redirect that is not followed": Fault(redirect("/ok")),
    "303 that would make a GET": Fault(redirect("/ok", 303), FOLLOW),
    "a redirect to itself": Fault(redirect("/"), FOLLOW, 11),
    "a redirect to a file": Fault(redirect("file:///etc/passwd"), FOLLOW),
    "a redirect to nobody": Fault(redirect("http://127.0.0.1:1/"), FOLLOW),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often each body came and was taken, what are dead letters of it, and what was said."""

    seen: Counter[bytes]
    taken: Counter[bytes]
    dead: list[tuple[str, str]]
    said: str


def suffer(fault: Fault, posting: Posting) -> Outcome:
    """Two messages are answered well at their second delivery, a third one never is."""
    seen, taken = Counter[bytes](), Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        if request.body == b"never" or seen[request.body] <= fault.requests:
            return fault.answer
        taken[request.body] += 1
        return Answer(close=True)  # an idle connection would be tried before a new one

    posting.publish([b"once", b"never", b"once more"])
    options = "-vv", *posting.dead_after(2), *fault.options
    with WebServer(answer) as web, closing(posting.cli):
        poster = posting.start("--post", web.url(), *options)
        poster.finish()
    dead = [(letter["body"], letter["reason"]) for letter in posting.dead_letters()]
    return Outcome(seen, taken, dead, poster.said)


@pytest.fixture(scope="module")
def outcomes(
    known_channels: Pool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """Of all faults, four at a time: most of it is waiting."""

    def run(fault: Fault, topic: str, folder: Path) -> Outcome:
        return suffer(fault, Posting(Cli(folder), known_channels.nsqd, topic, folder))

    with ThreadPoolExecutor(4) as workers:
        yield {
            name: workers.submit(
                run, fault, known_channels.take(), tmp_path_factory.mktemp("fault")
            )
            for name, fault in FAULTS.items()
        }


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_an_attempt_and_one_for_ever_ends_as_a_dead_letter(
    outcomes: dict[str, Future[Outcome]], name: str
) -> None:
    outcome = outcomes[name].result()
    fault = FAULTS[name]
    cost = fault.requests + 1
    assert outcome.seen == {b"once": cost, b"once more": cost, b"never": 2 * fault.requests}
    assert outcome.taken == {b"once": 1, b"once more": 1}
    assert outcome.dead == [("never", "too many attempts")]
    assert "\x1b" not in outcome.said
    assert "Traceback" not in outcome.said


def test_each_way_to_be_too_slow_costs_one_attempt(posting: Posting) -> None:
    ways = {
        b"response": HANG,
        b"head": Answer(head_delay=math.inf),
        b"body": Answer(body_delay=math.inf),
        b"chunk": Answer(raw=CHUNKED + b"5\r\n"),
    }
    seen = Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        return ways[request.body] if seen[request.body] == 1 else OK

    posting.publish(ways)
    with WebServer(answer) as web:
        posting.start("--post", web.url(), *SHORT).finish()
    assert seen == dict.fromkeys(ways, 2)


def test_a_get_fails_and_is_tried_again_like_a_post(posting: Posting) -> None:
    posting.publish([b"1", b"3 & 4"])
    with WebServer(per_message(Answer(status=500), Answer(cut="body"))) as web:
        posting.start("--get", web.url("/a?b=%s")).finish()
        targets = Counter(request.target for request in web.requests)
    assert targets == {"/a?b=1": 3, "/a?b=3+%26+4": 3}
