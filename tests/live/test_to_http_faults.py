"""``to-http`` and answers that are failures of every kind: what each message costs and where it
ends is counted exactly, by the record of the endpoint.
"""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.posting import Posting
from tests.support.process import Cli
from tests.support.webserver import HANG, OK, Answer, WebServer, per_message, redirect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.support.posting import Pool
    from tests.support.webserver import Request

LONG = (("Content-Length", "100"),)
SHORT = "--http-client-request-timeout", "2s"
FOLLOW = ("--follow-redirects",)


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer that is a failure, and what is said of it. ``requests`` come of one attempt."""

    answer: Answer
    said: str
    options: tuple[str, ...] = ()
    requests: int = 1


def raw(data: bytes, said: str = "", *, end: bool = False) -> Fault:
    return Fault(Answer(raw=data, cut="response" if end else "", how="fin"), said)


def refusal(code: int) -> Fault:
    return Fault(Answer(status=code), f"status {code}")


UNANSWERED = "the server closed the connection without a response"
FAULTS = {
    # Cut off.
    "reset after the request": Fault(Answer(cut="request"), UNANSWERED),
    "closed after the request": Fault(Answer(cut="request", how="fin"), UNANSWERED),
    "reset in the head": Fault(Answer(cut="head"), "broke within the response"),
    "closed in the head": Fault(Answer(cut="head", how="fin"), ""),
    "reset in the body": Fault(Answer(cut="body"), "broke within the response"),
    "closed in the body": Fault(Answer(cut="body", how="fin"), ""),
    "closed before a length is reached": Fault(
        Answer(headers=LONG, cut="response", how="fin"), "100"
    ),
    "closed within a chunk": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", end=True
    ),
    "closed before the last chunk": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", end=True
    ),
    "closed after 100 Continue": raw(b"HTTP/1.1 100 Continue\r\n\r\n", end=True),
    # Too slow.
    "no response": Fault(HANG, "no response within 2 s", SHORT),
    # No HTTP.
    "another protocol": raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "HTTP/0.9": raw(b"<html>OK</html>", end=True),
    "HTTP/2": raw(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80\0\x04\0\x01\0\0\r\n\r\n"),
    "an alert of TLS": raw(b"\x15\x03\x01\0\x02\x02\x16", end=True),
    "a status of letters": raw(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a status of two digits": raw(b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
    "a status of five digits": raw(b"HTTP/1.1 20000 OK\r\nContent-Length: 0\r\n\r\n"),
    "a header without a colon": raw(b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"),
    "a header with NUL": raw(b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n"),
    "a length that is none": raw(b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n"),
    "a negative length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "a chunk size that is none": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nab\r\n0\r\n\r\n"
    ),
    "a head without end": raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * (100 << 10)),
    "101 Switching Protocols": raw(
        b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"
    ),
    # Refusals; more statuses are below.
    **{f"status {code}": refusal(code) for code in (304, 400, 404, 408, 429, 500, 503)},
    "a refusal of 1 MB": Fault(Answer(status=500, size=1 << 20), "status 500"),
    "a refusal without a length": raw(
        b"HTTP/1.0 500 No\r\n\r\nsorry", "status 500: sorry", end=True
    ),
    "a refusal with control characters": Fault(
        Answer(status=500, body=b"\x1b[31m\r\nno\0\n\xff"), "status 500"
    ),
    # Redirects.
    "a redirect that is not followed": Fault(
        redirect("/ok"), "status 307 (--follow-redirects is not set)"
    ),
    "302 that would make a GET": Fault(redirect("/ok", 302), "status 302", FOLLOW),
    "303 that would make a GET": Fault(redirect("/ok", 303), "status 303", FOLLOW),
    "a redirect to itself": Fault(redirect("/"), "more than 10 redirects", FOLLOW, 11),
    "a redirect without a place": Fault(Answer(status=307), "status 307", FOLLOW),
    "a redirect to a file": Fault(redirect("file:///etc/passwd"), "redirected to 'file:", FOLLOW),
    "a redirect to no URL": Fault(redirect("http://[::x"), "redirected to 'http://[", FOLLOW),
    "a redirect to nobody": Fault(redirect("http://127.0.0.1:1/"), "cannot connect", FOLLOW),
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
    assert fault.said in outcome.said
    assert "\x1b" not in outcome.said
    assert "Traceback" not in outcome.said


def test_each_way_to_be_too_slow_costs_one_attempt(posting: Posting) -> None:
    ways = {
        b"response": HANG,
        b"head": Answer(head_delay=math.inf),
        b"body": Answer(body_delay=math.inf),
        b"chunk": Answer(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"),
    }
    seen = Counter[bytes]()

    def answer(request: Request) -> Answer:
        seen[request.body] += 1
        return ways[request.body] if seen[request.body] == 1 else OK

    posting.publish(ways)
    with WebServer(answer) as web:
        poster = posting.start("--post", web.url(), *SHORT)
        poster.finish()
    assert seen == dict.fromkeys(ways, 2)


def test_a_get_fails_and_is_tried_again_like_a_post(posting: Posting) -> None:
    posting.publish([b"1", b"3 & 4"])
    faults = per_message(Answer(status=500), Answer(cut="body"))
    with WebServer(faults) as web:
        poster = posting.start("--get", web.url("/a?b=%s"))
        poster.finish()
        targets = Counter(request.target for request in web.requests)
    assert targets == {"/a?b=1": 3, "/a?b=3+%26+4": 3}
