"""One request to one endpoint: what its response says, and what is counted and told."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from nsqtools.policy.endpoints import Endpoints
from nsqtools.policy.verdicts import Statuses, Verdict
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.courier import OneOf
from nsqtools.sinks.http.limits import TimeLimit
from nsqtools.sinks.http.post import Post
from tests.support.archiving import batch
from tests.support.clock import elapse, virtual
from tests.support.delivering import OK, REFUSES, WALL, Answer, Scripted, delivering

if TYPE_CHECKING:
    from nsqtools.sinks.http.post import Outcome

A = "http://a/"


def make_post(web: httpx.AsyncBaseTransport, **more: Any) -> Post:
    defaults = {"statuses": Statuses(), "timeout": 20.0, "wall": lambda: WALL}
    return Post(make_endpoints(post=[A, "http://b/"]), web, **{**defaults, **more})


async def outcome_of(answer: Answer, **more: Any) -> Outcome:
    """Of one request to an endpoint that answers like this."""
    web = Scripted()
    web.next["a"] = [answer]
    outcome, _ = await make_post(web, **more).send(A, parcel())
    return outcome


def parcel(*bodies: bytes) -> list[Any]:
    messages = batch(*(bodies or (b"one",)))
    return [(messages, message) for message in messages]


@virtual
class TestOutcomes:
    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (Answer(500), "status 500"),
            (
                Answer(500, b" out\r\n of\torder \xff "),
                "status 500, response 'out of order \ufffd'",
            ),
            (Answer(500, b"x" * 1000), f"status 500, response '{'x' * 120}'"),
        ],
    )
    async def test_a_status_that_is_no_success_says_why_in_one_line(
        self, answer: Answer, reason: str
    ) -> None:
        outcome = await outcome_of(answer)
        assert outcome.verdict is Verdict.RETRY
        assert (outcome.status, outcome.reason, outcome.arrived) == (500, reason, True)

    @pytest.mark.parametrize(
        ("error", "arrived"),
        [
            (httpx.ConnectError("no route"), False),
            (httpx.ConnectTimeout("2 s"), False),
            (httpx.ProxyError("407"), False),
            (httpx.ReadError("reset"), True),
            (httpx.RemoteProtocolError("no HTTP"), True),
            (httpx.WriteError(""), True),
        ],
    )
    async def test_without_a_response_it_says_whether_the_request_may_have_arrived(
        self, error: Exception, arrived: bool
    ) -> None:
        outcome = await outcome_of(Answer(error=error))
        assert (outcome.verdict, outcome.status) == (Verdict.RETRY, 0)
        assert outcome.reason.endswith(str(error) or "WriteError")
        assert outcome.arrived is arrived

    async def test_a_body_that_no_request_can_hold_is_not_sent(self) -> None:
        web = Scripted()
        endpoints = make_endpoints(get=["http://a/x/%s/y"])
        post = Post(endpoints, web, Statuses(), timeout=20.0, wall=lambda: WALL)
        assert post.fits(parcel(b"body"))
        assert not post.fits(parcel(b".."))
        courier = OneOf(post, Endpoints(list(post.endpoints)), rng=random.Random(1))
        outcome = await courier.deliver(parcel(b".."), lambda: True)
        assert (outcome.verdict, outcome.blames_messages) == (Verdict.RETRY, True)
        assert web.sent == []


@virtual
class TestCounts:
    async def test_metrics_are_of_each_endpoint_and_count_each_message_of_a_batch(self) -> None:
        async with delivering(hosts="ab", size=3) as running:
            running.web.ever = {"a": Answer(after=0.1), "b": Answer(500)}
            await running.deliver(*[b"x"] * 6, wait=1)
            metrics = list(running.sink.metrics())
            assert running.post.requests == 2
        found = {
            (each.name.removeprefix("nsqtools_http_"), *labels.values()): value
            for each in metrics
            for labels, value in each.samples
        }
        counts = {key[1:]: value for key, value in found.items() if key[0] == "messages_total"}
        assert counts == {
            (A, "delivered"): 3,
            (A, "failed"): 0,
            (A, "dropped"): 0,
            ("http://b/", "delivered"): 0,
            ("http://b/", "failed"): 3,
            ("http://b/", "dropped"): 0,
        }
        for quantile in ("0.5", "0.99"):
            assert found["latency_seconds", A, quantile] == pytest.approx(0.1, rel=0.08)
        assert found["endpoint_up", A] == 1
        kinds = {each.name: each.kind for each in metrics}
        assert kinds["nsqtools_http_messages_total"] == "counter"
        assert kinds["nsqtools_http_latency_seconds"] == "gauge"


@virtual
class TestTelling:
    async def test_a_failing_endpoint_is_told_once_and_so_is_its_recovery(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        web = Scripted()
        post = make_post(web)
        web.next["a"] = [REFUSES, Answer(500), Answer(422), OK, OK, Answer(422), Answer(503)]
        told: list[int] = []
        for _ in range(7):
            await post.send(A, parcel())
            told.append(len([r for r in caplog.records if r.levelno == logging.WARNING]))
        assert told == [1, 1, 2, 3, 3, 3, 4]


async def within(limit: TimeLimit, seconds: float) -> str:
    try:
        with limit:
            await elapse(seconds)
    except TimeoutError:
        return "late"
    return "done"


@virtual
class TestTimeLimit:
    async def test_each_task_has_as_long(self) -> None:
        limit = TimeLimit(3.0)
        early, late = (asyncio.ensure_future(within(limit, seconds)) for seconds in (2.9, 3.1))
        await elapse(2)
        again, later = (asyncio.ensure_future(within(limit, seconds)) for seconds in (2.9, 100))
        await elapse(1.05)
        tasks = (early, late, again, later)
        assert [task.done() for task in tasks] == [True, True, False, False]
        await elapse(2)
        assert [await task for task in tasks] == ["done", "late", "done", "late"]

    @pytest.mark.parametrize("moment", [1.0, 3.0])
    async def test_what_is_cancelled_by_others_even_as_its_time_ends_stays_cancelled(
        self, moment: float
    ) -> None:
        limit = TimeLimit(3.0)
        task = asyncio.ensure_future(within(limit, 10))
        asyncio.get_running_loop().call_later(moment, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await within(limit, 10) == "late"
