"""``to-http`` and what comes back: what each message costs, when it is finished, and the exit code.

It is counted exactly, by the record of the endpoint.
"""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.webserver import HANG, OK, Answer, WebServer, per_message

if TYPE_CHECKING:
    from tests.support.posting import Posting
    from tests.support.webserver import Request

CLOSING = 4  # the state of a client that has sent CLS


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


def test_a_request_that_is_not_answered_in_time_costs_an_attempt(posting: Posting) -> None:
    posting.publish([b"1"])
    with WebServer(HANG) as web:
        options = "--http-client-request-timeout", "200ms", *posting.dead_after(1)
        posting.start("--post", web.url(), *options).finish()
    assert [letter["body"] for letter in posting.dead_letters()] == ["1"]


def test_in_mode_all_who_has_taken_a_message_does_not_get_it_again(posting: Posting) -> None:
    """Who cannot be reached keeps messages from no other, and they are finished when it is back."""
    posting.publish([b"1", b"2"])
    batch = ("--batch", "10", "--batch-format", "json-array")
    failing = per_message(Answer(status=500), Answer(cut="body"))
    with WebServer() as one, WebServer(failing) as other, WebServer() as dead:
        dead.refuse()
        posts = [word for web in (one, other, dead) for word in ("--post", web.url())]
        poster = posting.start("--mode", "all", *posts, *batch, "-n", "1")
        eventually(lambda: len(one.deliveries) == len(other.accepted()) == 2)
        assert not posting.is_drained
        dead.listen()
        poster.finish()
        for web, count in ((one, 1), (other, 3), (dead, 1)):
            assert list(web.deliveries.values()) == [count] * 2
        assert list(other.accepted().values()) == [1, 1]


def test_messages_that_are_given_up_with_no_place_for_them_are_status_4(posting: Posting) -> None:
    posting.publish([b"1", b"2"])
    with WebServer(Answer(status=404)) as web:
        poster = posting.start("--post", web.url(), "--max-attempts", "1")
        poster.drain()
        ids = list(web.deliveries)
        assert poster.end() == 4
    assert all(identity in poster.said for identity in ids)


def test_a_signal_lets_requests_end_and_gives_back_the_rest(posting: Posting) -> None:
    """What was sent is delivered once, the rest stays."""
    posting.numbers(200)
    with WebServer() as web:
        web.hold()
        poster = posting.start("--post", web.url(), "-n", "10", "--max-in-flight", "50")
        eventually(lambda: posting.channel()["in_flight_count"] == 50 and len(web.requests) == 10)
        poster.process.send_signal(signal.SIGTERM)
        eventually(lambda: posting.channel()["requeue_count"] == 40)
        web.release()
        assert poster.process.wait(100) == 0
        assert len(web.deliveries) == web.deliveries.total() == 10
        assert web.accepted() == web.deliveries
        channel = posting.channel()
        assert (channel["depth"], channel["in_flight_count"]) == (190, 0)
        assert channel["requeue_count"] == 40
        posting.start("--post", web.url()).finish()
        assert len(web.deliveries) == web.deliveries.total() == 200
    assert poster.said == ""


@pytest.mark.parametrize("signals", [1, 2])
def test_a_request_that_does_not_end_is_left_when_the_drain_is_over_or_a_second_signal_comes(
    posting: Posting, signals: int
) -> None:
    posting.numbers(5)
    drain = ("--drain-timeout", "500ms") if signals == 1 else ("--msg-timeout", "1s")
    with WebServer(HANG) as web:
        poster = posting.start("--post", web.url(), *drain)
        eventually(lambda: len(web.requests) == 5)
        if signals == 2:
            poster.process.send_signal(signal.SIGTERM)
            eventually(lambda: posting.channel()["clients"][0]["state"] == CLOSING)
            with pytest.raises(subprocess.TimeoutExpired):
                poster.process.wait(0.5)  # two that come at once are one
        assert poster.end() == 1
        web.script = OK
        posting.start("--post", web.url()).finish()
        assert list(web.deliveries.values()) == [2] * 5
