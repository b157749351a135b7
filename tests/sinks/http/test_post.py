"""One request to one endpoint: what its response says, and what is counted and told."""

import asyncio
import logging
import random
from typing import Any

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
from tests.support.delivering import LONGEST, OK, REFUSES, WALL, Answer, Scripted, delivering

A = "http://a/"


def make_post(web: Scripted, **flags: Any) -> Post:
    endpoints = make_endpoints(**(flags or {"post": [A]}))
    return Post(endpoints, web, Statuses(), timeout=20.0, longest_delay=LONGEST, wall=lambda: WALL)


def parcel(*bodies: bytes) -> list[Any]:
    messages = batch(*(bodies or (b"one",)))
    return [(messages, message) for message in messages]


@virtual
class TestOutcomes:
    @pytest.mark.parametrize(
        ("answer", "status", "reason", "arrived"),
        [
            (Answer(500), 500, "status 500", True),
            (
                Answer(500, b" out\r\n of\torder \xff "),
                *(500, "status 500, response 'out of order \ufffd'", True),
            ),
            (Answer(500, b"x" * 1000), 500, f"status 500, response '{'x' * 120}'", True),
            (Answer(error=httpx.ConnectError("no route")), 0, "no route", False),
            (Answer(error=httpx.ConnectTimeout("2 s")), 0, "2 s", False),
            (Answer(error=httpx.ProxyError("407")), 0, "407", False),
            (Answer(error=httpx.ReadError("reset")), 0, "reset", True),
            (Answer(error=httpx.RemoteProtocolError("no HTTP")), 0, "no HTTP", True),
            (Answer(error=httpx.WriteError("")), 0, "WriteError", True),
        ],
    )
    async def test_a_failure_says_why_in_one_line_and_whether_the_request_may_have_arrived(
        self, answer: Answer, status: int, reason: str, arrived: bool
    ) -> None:
        web = Scripted()
        web.next["a"] = [answer]
        outcome, _ = await make_post(web).send(A, parcel())
        assert (outcome.verdict, outcome.status) == (Verdict.RETRY, status)
        assert outcome.reason.endswith(reason)
        assert "\n" not in outcome.reason
        assert outcome.arrived is arrived

    async def test_a_body_that_no_request_can_hold_is_not_sent(self) -> None:
        web = Scripted()
        post = make_post(web, get=["http://a/x/%s/y"])
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
            (each.name.removeprefix("nsqtools_http_"), each.kind, *labels.values()): value
            for each in metrics
            for labels, value in each.samples
        }
        counts = {key[2:]: value for key, value in found.items() if "messages_total" in key}
        assert {key: value for key, value in counts.items() if value} == {
            (A, "delivered"): 3,
            ("http://b/", "failed"): 3,
        }
        for quantile in ("0.5", "0.99"):
            latency = found["latency_seconds", "gauge", A, quantile]
            assert latency == pytest.approx(0.1, rel=0.08)
        assert found["endpoint_up", "gauge", A] == 1
        assert found["messages_total", "counter", A, "dropped"] == 0


@virtual
class TestTelling:
    async def test_a_failing_endpoint_is_told_once_and_so_is_its_recovery(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        web = Scripted()
        post = make_post(web)
        answers = [REFUSES, Answer(500), Answer(422), OK, OK, Answer(422), Answer(503), OK]
        web.next["a"] = [*answers, Answer(503)]
        told: list[int] = []
        for number in range(9):
            await elapse(60 * (number == 8))  # a failure soon after the recovery is no news
            await post.send(A, parcel())
            told.append(len([r for r in caplog.records if r.levelno == logging.WARNING]))
        assert told == [1, 1, 2, 3, 3, 3, 3, 3, 4]


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
