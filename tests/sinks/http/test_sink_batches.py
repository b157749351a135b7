"""Messages that share a request: how long they wait for it, and how they are settled."""

from __future__ import annotations

import asyncio
import json

import pytest

from nsqtools.policy.verdicts import Statuses
from nsqtools.sinks.http.courier import UNFIT
from tests.support.clock import elapse, virtual
from tests.support.delivering import (
    SOON,
    Answer,
    Delivering,
    delivering,
    open_breaker,
    unpack,
)


def sent(running: Delivering) -> list[list[bytes]]:
    """The messages of each request."""
    return [unpack(body) for body in running.web.bodies()]


class TestGathering:
    @virtual
    async def test_as_many_as_fit_go_at_once_and_the_rest_waits_for_more(self) -> None:
        async with delivering(size=3, wait=0.2) as running:
            await running.handle(b"1", b"2", b"3", b"4")
            await elapse(0.1)
            assert sent(running) == [[b"1", b"2", b"3"]]
            await running.handle(b"5", b"6")
            await elapse(0.01)
            assert sent(running)[1:] == [[b"4", b"5", b"6"]]
            assert running.finished == [b"1", b"2", b"3", b"4", b"5", b"6"]

    @virtual
    async def test_the_first_one_waits_no_longer_than_it_may(self) -> None:
        async with delivering(size=10, wait=0.2) as running:
            await running.handle(b"1")
            await elapse(0.15)
            await running.handle(b"2")
            await elapse(0.04)
            assert sent(running) == []
            await elapse(0.02)
            assert sent(running) == [[b"1", b"2"]]
            await running.handle(b"3")
            await elapse(0.19)
            assert len(sent(running)) == 1
            await elapse(0.02)
            assert sent(running) == [[b"1", b"2"], [b"3"]]

    @virtual
    async def test_what_is_left_of_a_full_batch_waits_anew(self) -> None:
        async with delivering(size=2, wait=0.2) as running:
            await running.handle(b"1")
            await elapse(0.15)
            await running.handle(b"2", b"3")
            await elapse(0.19)
            assert sent(running) == [[b"1", b"2"]]
            await elapse(0.02)
            assert sent(running) == [[b"1", b"2"], [b"3"]]

    @virtual
    async def test_without_a_wait_what_came_together_goes_together(self) -> None:
        async with delivering(size=3, wait=0.0) as running:
            await running.handle(b"1", b"2")
            await elapse(SOON)
            assert sent(running) == [[b"1", b"2"]]

    @virtual
    async def test_a_starved_connection_waits_for_nothing(self) -> None:
        async with delivering(size=10, wait=60.0) as running:
            await running.handle(b"1")
            await running.handle(b"2", starved=True)
            await elapse(SOON)
            assert sent(running) == [[b"1", b"2"]]

    @virtual
    async def test_a_flush_sends_what_waits_of_all_topics(self) -> None:
        async with delivering(topics=("events", "others"), size=10, wait=60.0) as running:
            running.sink.flush()
            await running.handle(b"1")
            await running.handle(b"2", topic="others")
            running.sink.flush()
            await elapse(SOON)
            assert sent(running) == [[b"1"], [b"2"]]
            running.sink.flush()
            await elapse(100)
            assert len(sent(running)) == 2

    @virtual
    async def test_draining_sends_what_waits_of_its_topic(self) -> None:
        async with delivering(topics=("events", "others"), size=10, wait=60.0) as running:
            await running.handle(b"1")
            await running.handle(b"2", topic="others")
            await elapse(SOON)
            await running.sink.drain("events")
            assert sent(running) == [[b"1"]]
            assert running.finished == [b"1"]

    @virtual
    async def test_topics_share_no_request(self) -> None:
        async with delivering(topics=("events", "others"), size=2, wait=0.2) as running:
            await running.handle(b"1")
            await running.handle(b"2", topic="others")
            await running.handle(b"3")
            await elapse(1)
            assert sent(running) == [[b"1", b"3"], [b"2"]]

    @virtual
    async def test_batches_of_several_connections_share_a_request(self) -> None:
        async with delivering(size=4) as running:
            one = await running.handle(b"1", b"2")
            two = await running.handle(b"3", b"4")
            await elapse(SOON)
            assert sent(running) == [[b"1", b"2", b"3", b"4"]]
            assert one.is_settled
            assert two.is_settled

    @virtual
    async def test_what_waits_is_touched(self) -> None:
        async with delivering(size=10, wait=60.0) as running:
            await running.handle(b"1", msg_timeout=4.0)
            await elapse(10)
            assert len(running.settled.touched) >= 4


class TestSettling:
    @virtual
    async def test_all_of_a_request_go_back_together(self) -> None:
        async with delivering(size=3, workers=1) as running:
            running.web.next["a"] = [Answer(503, headers={"Retry-After": "3"})]
            await running.handle(b"1", b"2", b"3", b"4", b"5", b"6")
            await elapse(SOON)
            assert running.requeued == [(b"1", 3.0, True), (b"2", 3.0, True), (b"3", 3.0, True)]
            assert running.finished == [b"4", b"5", b"6"]

    @pytest.mark.parametrize("status", [500, 502, 302, 408, 425, 429])
    @virtual
    async def test_what_blames_no_message_is_not_tried_one_by_one(self, status: int) -> None:
        async with delivering(size=2) as running:
            running.web.next["a"] = [Answer(status)]
            await running.handle(b"1", b"2")
            await elapse(SOON)
            assert len(sent(running)) == 1
            assert len(running.requeued) == 2

    @pytest.mark.parametrize("status", [400, 403, 413, 422])
    @virtual
    async def test_a_refused_batch_is_tried_one_by_one_and_only_the_bad_goes_back(
        self, status: int
    ) -> None:
        async with delivering(size=3) as running:
            running.web.next["a"] = [Answer(status), Answer(), Answer(status), Answer()]
            await running.handle(b"1", b"2", b"3")
            await elapse(SOON)
            assert sent(running) == [[b"1", b"2", b"3"], [b"1"], [b"2"], [b"3"]]
            assert running.finished == [b"1", b"3"]
            assert running.requeued == [(b"2", None, True)]

    @virtual
    async def test_of_a_batch_that_is_to_be_dropped_only_the_bad_is(self) -> None:
        async with delivering(size=3, statuses=Statuses(drop_on="500")) as running:
            running.web.next["a"] = [Answer(500), Answer(), Answer(500), Answer()]
            await running.handle(b"1", b"2", b"3")
            await elapse(SOON)
            assert running.letters.bodies == [b"2"]
            assert sorted(running.finished) == [b"1", b"2", b"3"]
            assert running.requeued == []

    @virtual
    async def test_a_batch_of_one_that_is_refused_is_not_tried_twice(self) -> None:
        async with delivering(size=3) as running:
            running.web.next["a"] = [Answer(400)]
            await running.handle(b"1", starved=True)
            await elapse(SOON)
            assert sent(running) == [[b"1"]]
            assert running.requeued == [(b"1", None, True)]

    @virtual
    async def test_one_by_one_they_keep_to_the_rate(self) -> None:
        async with delivering(size=3, rate=1.0) as running:
            running.web.next["a"] = [Answer(400)]
            await running.handle(b"1", b"2", b"3")
            await elapse(3.1)
            assert running.web.times() == pytest.approx([0, 1, 2, 3])

    @virtual
    async def test_a_body_that_is_no_json_takes_no_other_with_it(self) -> None:
        async with delivering(size=3, batch_format="json-array", workers=1) as running:
            await running.handle(b'{"a":1}', b"no json", b"2")
            await elapse(SOON)
            assert sorted(running.finished) == [b"2", b"no json", b'{"a":1}']
            assert running.letters.written == [(b"no json", UNFIT.reason)]
            assert [json.loads(body) for body in running.web.bodies()] == [[{"a": 1}], [2]]

    @virtual
    async def test_without_dead_letters_a_body_that_is_no_json_is_told_of_and_given_back(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with delivering(size=3, batch_format="json-array", workers=1) as running:
            running.letters.is_lossy = True
            await running.handle(b'{"a":1}', b"no json", b"2")
            await elapse(SOON)
            assert running.finished == [b'{"a":1}', b"2"]
            assert running.requeued == [(b"no json", None, True)]
        assert UNFIT.reason in caplog.text

    @virtual
    async def test_what_a_lost_connection_brought_leaves_the_batch(self) -> None:
        async with delivering(size=4) as running:
            await running.handle(b"1", b"2", is_lost=lambda: True)
            await running.handle(b"3", b"4")
            await elapse(SOON)
            assert sent(running) == [[b"3", b"4"]]
            await asyncio.wait_for(running.sink.drain("events"), 1)

    @virtual
    async def test_what_is_lost_while_the_batch_waits_leaves_it_too(self) -> None:
        async with delivering(size=4) as running:
            await open_breaker(running)
            running.web.ever = {}
            lost: list[bool] = []
            await running.handle(b"1", b"2", is_lost=lambda: bool(lost))
            await running.handle(b"3", b"4")
            await elapse(0.1)
            lost.append(True)
            await elapse(1)
            assert sent(running) == [[b"3", b"4"]]
            assert running.finished == [b"3", b"4"]
            assert running.requeued == []

    @virtual
    async def test_a_connection_lost_between_two_singles_stops_them(self) -> None:
        async with delivering(size=3, workers=1) as running:
            running.web.next["a"] = [Answer(400), Answer(), Answer(400, after=1)]
            lost: list[bool] = []
            await running.handle(b"1", b"2", b"3", is_lost=lambda: bool(lost))
            await elapse(0.5)
            lost.append(True)
            await elapse(1)
            assert sent(running) == [[b"1", b"2", b"3"], [b"1"], [b"2"]]
            await asyncio.wait_for(running.sink.drain("events"), 1)

    @virtual
    async def test_one_that_is_given_up_leaves_alone_those_that_wait(self) -> None:
        async with delivering(size=3, wait=1.0) as running:
            await running.handle(b"1", b"2")
            await running.give_up(b"3")
            await elapse(SOON)
            assert running.finished == [b"3"]
            await elapse(1)
            assert running.finished == [b"3", b"1", b"2"]

    @virtual
    async def test_of_a_sample_the_chosen_ones_share_requests(self) -> None:
        async with delivering(size=10, share=0.5) as running:
            await running.handle(*[b"%d" % n for n in range(100)])
            await elapse(1)
            assert len(running.finished) == 100
            assert [len(each) for each in sent(running)][:3] == [10, 10, 10]

    @virtual
    async def test_while_the_breaker_is_open_they_are_held_together(self) -> None:
        async with delivering(size=2, wait=0.01) as running:
            await open_breaker(running)
            running.web.ever = {}
            await running.handle(b"1", b"2")
            await elapse(0.9)
            assert running.requeued == []
            await elapse(0.2)
            assert sent(running) == [[b"1", b"2"]]
            assert running.finished == [b"1", b"2"]
