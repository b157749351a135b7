"""One request to one endpoint: what its response says, and what is counted and told."""

from __future__ import annotations

import asyncio
import logging
import random
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from nsqtools.errors import HTTPError
from nsqtools.policy.endpoints import RoundRobin
from nsqtools.policy.verdicts import Statuses, Verdict
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.courier import OneOf
from nsqtools.sinks.http.exchange import MAX_BODY
from nsqtools.sinks.http.post import DONE, Post, post_letters
from tests.support.archiving import batch
from tests.support.clock import elapse, virtual
from tests.support.delivering import OK, REFUSES, SOON, WALL, Answer, Scripted, delivering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nsqtools.sinks.http.post import Outcome

A = "http://a/"


def make_post(web: httpx.AsyncBaseTransport, **more: Any) -> Post:
    defaults = {"statuses": Statuses(), "timeout": 20.0, "wall": lambda: WALL}
    return Post(make_endpoints(post=[A, "http://b/"]), web, **{**defaults, **more})


async def outcome_of(answer: Answer, *bodies: bytes, **more: Any) -> Outcome:
    """Of one request to an endpoint that answers like this."""
    web = Scripted()
    web.next["a"] = [answer]
    outcome, _ = await make_post(web, **more).send(A, parcel(*bodies))
    return outcome


def parcel(*bodies: bytes) -> list[Any]:
    messages = batch(*(bodies or (b"one",)))
    return [(messages, message) for message in messages]


class TestOutcomes:
    @virtual
    async def test_a_success_says_no_more(self) -> None:
        assert await outcome_of(Answer(204)) is DONE

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (Answer(500), "status 500"),
            (
                Answer(500, b" out\r\n of\torder \xff "),
                "status 500: out of order \N{REPLACEMENT CHARACTER}",
            ),
            (Answer(500, b"x" * 1000), f"status 500: {'x' * 120}"),
            (Answer(307), "status 307 (--follow-redirects is not set)"),
        ],
    )
    @virtual
    async def test_a_status_that_is_no_success_says_why_in_one_line(
        self, answer: Answer, reason: str
    ) -> None:
        outcome = await outcome_of(answer)
        assert outcome.verdict is Verdict.RETRY
        assert (outcome.status, outcome.reason, outcome.arrived) == (answer.status, reason, True)

    @pytest.mark.parametrize(
        ("error", "arrived", "reason"),
        [
            (httpx.ConnectError("no route"), False, "cannot connect: no route"),
            (httpx.ConnectTimeout("2 s"), False, "cannot connect: 2 s"),
            (httpx.ProxyError("407"), False, "cannot connect: 407"),
            (httpx.ReadError("reset"), True, "reset"),
            (httpx.RemoteProtocolError("no HTTP"), True, "no HTTP"),
            (httpx.WriteError(""), True, "WriteError"),
        ],
    )
    @virtual
    async def test_without_a_response_it_says_whether_the_request_may_have_arrived(
        self, error: Exception, arrived: bool, reason: str
    ) -> None:
        outcome = await outcome_of(Answer(error=error))
        assert outcome.verdict is Verdict.RETRY
        assert (outcome.status, outcome.reason, outcome.arrived) == (0, reason, arrived)

    @virtual
    async def test_the_time_for_a_response_is_limited(self) -> None:
        web = Scripted()
        web.next["a"] = [Answer(after=3.1)]
        outcome, took = await make_post(web, timeout=3.0).send(A, parcel())
        assert (outcome.verdict, outcome.reason) == (Verdict.RETRY, "no response within 3 s")
        assert took == pytest.approx(3)

    @pytest.mark.parametrize(
        ("status", "value", "delay"),
        [
            (503, "120", 120.0),
            (429, formatdate(WALL + 90, usegmt=True), 90.0),
            (503, formatdate(WALL - 90, usegmt=True), 0.0),
            (503, "soon", None),
            (500, "120", None),
        ],
    )
    @virtual
    async def test_retry_after_is_heeded_where_it_has_a_meaning(
        self, status: int, value: str, delay: float | None
    ) -> None:
        outcome = await outcome_of(Answer(status, headers={"Retry-After": value}))
        assert outcome.delay == delay

    @virtual
    async def test_lists_of_statuses_decide(self) -> None:
        statuses = Statuses("304", "404", "2xx")
        verdicts = [
            (await outcome_of(Answer(status), statuses=statuses)).verdict
            for status in (304, 404, 200, 410)
        ]
        assert verdicts == [Verdict.DONE, Verdict.DROP, Verdict.RETRY, Verdict.GONE]

    @virtual
    async def test_a_body_that_no_request_can_hold_is_not_sent(self) -> None:
        web = Scripted()
        endpoints = make_endpoints(get=["http://a/x/%s/y"])
        post = Post(endpoints, web, Statuses(), timeout=20.0, wall=lambda: WALL)
        assert post.fits(parcel(b"body"))
        assert not post.fits(parcel(b".."))
        courier = OneOf(post, RoundRobin(list(post.endpoints)), most=1, rng=random.Random(1))
        outcome = await courier.deliver(parcel(b".."), lambda: True)
        assert (outcome.verdict, outcome.blames_messages) == (Verdict.RETRY, True)
        assert web.sent == []


class Chunks(httpx.AsyncByteStream):
    """A body that comes in pieces; of those that were asked for it notes how many."""

    def __init__(self, chunks: Sequence[bytes], error: Exception | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.given = 0
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.given += 1
            yield chunk
        if self.error:
            raise self.error

    async def aclose(self) -> None:
        self.is_closed = True


class Streaming(httpx.AsyncBaseTransport):
    """Answers with streams, as httpx's own transport does."""

    def __init__(self, stream: Chunks, status: int = 500) -> None:
        self._stream = stream
        self._status = status

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self._status, stream=self._stream, request=request)


class TestStreams:
    @virtual
    async def test_a_body_is_read_to_its_end_and_closed(self) -> None:
        stream = Chunks([b"out of ", b"order"])
        outcome, _ = await make_post(Streaming(stream)).send(A, parcel())
        assert outcome.reason == "status 500: out of order"
        assert stream.is_closed

    @virtual
    async def test_of_a_huge_body_no_more_is_read_than_it_takes(self) -> None:
        stream = Chunks([bytes(MAX_BODY)] * 100)
        outcome, _ = await make_post(Streaming(stream, 200)).send(A, parcel())
        assert outcome is DONE
        assert stream.given == 2
        assert stream.is_closed

    @virtual
    async def test_one_that_breaks_off_is_no_success(self) -> None:
        stream = Chunks([b"half"], httpx.ReadError("broken off"))
        outcome, _ = await make_post(Streaming(stream, 200)).send(A, parcel())
        assert (outcome.verdict, outcome.reason) == (Verdict.RETRY, "broken off")
        assert stream.is_closed


class TestCounts:
    @virtual
    async def test_messages_count_by_what_became_of_them(self) -> None:
        web = Scripted()
        post = make_post(web, statuses=Statuses(drop_on="404"))
        web.next["a"] = [OK, OK, Answer(404), REFUSES, Answer(500)]
        for _ in range(5):
            await post.send(A, parcel())
        tally = post.tallies[A]
        assert (tally.delivered, tally.dropped, tally.failed) == (2, 1, 2)
        assert tally.latency.count == 4
        assert post.tallies["http://b/"].latency.count == 0

    @virtual
    async def test_metrics_are_of_each_endpoint(self) -> None:
        async with delivering(hosts="ab") as running:
            running.web.ever = {"a": Answer(after=0.1), "b": Answer(500)}
            await running.handle(b"one", b"two", b"three")
            await elapse(1)
            found = {
                (metric.name, *labels.values()): value
                for metric in running.sink.metrics()
                for labels, value in metric.samples
            }
            kinds = {metric.name: metric.kind for metric in running.sink.metrics()}
        messages, latency = "nsqtools_http_messages_total", "nsqtools_http_latency_seconds"
        assert found[messages, A, "delivered"] == 2
        assert found[messages, A, "failed"] == 0
        assert found[messages, "http://b/", "failed"] == 1
        assert found[messages, "http://b/", "dropped"] == 0
        assert found[latency, A, "0.5"] == pytest.approx(0.1, rel=0.08)
        assert found[latency, A, "0.99"] == pytest.approx(0.1, rel=0.08)
        assert found["nsqtools_http_endpoint_up", A] == 1
        assert (kinds[messages], kinds[latency]) == ("counter", "gauge")

    @virtual
    async def test_messages_of_a_batch_count_each(self) -> None:
        async with delivering(size=3) as running:
            await running.handle(b"1", b"2", b"3")
            await elapse(SOON)
            assert running.post.tallies[A].delivered == 3
            assert running.post.requests == 1


class TestTelling:
    @virtual
    async def test_the_status_is_told_after_so_many_requests_and_at_the_end(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "nsqtools.status")
        async with delivering(status_every=2, workers=1) as running:
            running.web.next["a"] = [Answer(after=0.1), Answer(500, after=0.1)]
            await running.handle(b"one", b"two", b"three")
            await elapse(1)
            told = [r.message for r in caplog.records if r.name == "nsqtools.status"]
            assert len(told) == 1
            head, _, numbers = told[0].partition(", latency ")
            assert head == "http://a/: 1 delivered, 1 failed, 0 dropped"
            assert [
                float(word.split()[-1 if "p" in word else 0]) for word in numbers.split(", ")
            ] == pytest.approx([100] * 3, rel=0.08)
            await running.close()
            told = [r.message for r in caplog.records if r.name == "nsqtools.status"]
            assert len(told) == 2
            assert told[1].startswith("http://a/: 2 delivered, 1 failed, 0 dropped, latency ")

    @virtual
    async def test_nothing_is_told_unless_it_was_asked_for(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "nsqtools.status")
        async with delivering() as running:
            await running.handle(b"one")
            await elapse(SOON)
        assert caplog.messages == []

    @virtual
    async def test_a_failing_endpoint_is_told_once_and_so_is_its_recovery(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        web = Scripted()
        post = make_post(web)
        web.next["a"] = [REFUSES, Answer(500), Answer(422), OK, OK, Answer(422), Answer(503)]
        for _ in range(7):
            await post.send(A, parcel())
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
            "http://a/: cannot connect: connection refused",
            "http://a/: status 422",
            "http://a/: delivers again",
            "http://a/: status 503",
        ]


class TestLetters:
    @virtual
    async def test_the_status_is_the_answer(self) -> None:
        web = Scripted()
        web.next["dead"] = [Answer(507, b"full")]
        post = post_letters(web, 5.0)
        status = await post("http://dead/x", {"Content-Type": "application/json"}, b"{}")
        assert status == 507
        (sent,) = web.sent
        assert (sent.request.method, sent.request.url.path, sent.body) == ("POST", "/x", b"{}")
        assert sent.request.headers["content-type"] == "application/json"
        assert sent.request.headers["content-length"] == "2"

    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            (REFUSES, "connection refused"),
            (Answer(after=6), "no response within 5 s"),
            (Answer(error=httpx.WriteError("")), "WriteError"),
        ],
    )
    @virtual
    async def test_none_is_an_error_that_says_why(self, answer: Answer, text: str) -> None:
        web = Scripted()
        web.next["dead"] = [answer]
        with pytest.raises(HTTPError, match=f"^{text}$"):
            await post_letters(web, 5.0)("http://dead/", {}, b"{}")


@virtual
async def test_a_request_that_is_given_up_leaves_no_trace() -> None:
    web = Scripted()
    post = make_post(web)
    web.next["a"] = [Answer(after=1e3)]
    sending = asyncio.ensure_future(post.send(A, parcel()))
    await elapse(1)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert (post.tallies[A].failed, post.requests) == (0, 0)
    await post.close()
    assert web.is_closed
