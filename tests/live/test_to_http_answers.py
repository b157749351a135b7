"""``to-http`` and what comes back: what each message costs, when it is finished, and the exit code.

It is counted exactly, by the record of the endpoint.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.webserver import HANG, Answer, WebServer, per_message

if TYPE_CHECKING:
    from tests.support.posting import Posting
    from tests.support.webserver import Request


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
    failing = per_message(Answer(status=500), Answer(cut=True))
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
