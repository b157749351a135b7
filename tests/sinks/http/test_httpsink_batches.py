"""Messages that share a request: how long they wait for it, and how they are settled."""

from __future__ import annotations

import asyncio
import json

import pytest

from nsqtools.sinks.http.courier import UNFIT
from tests.support.clock import elapse, virtual
from tests.support.delivering import Answer, Delivering, delivering, open_breaker
from tests.support.raw import unprefixed


def sent(running: Delivering) -> list[list[bytes]]:
    """The messages of each request."""
    return [unprefixed(body) for body in running.web.bodies()]


@virtual
class TestGathering:
    async def test_as_many_as_fit_go_at_once_and_the_rest_waits_for_more(self) -> None:
        async with delivering(size=3, wait=0.2) as running:
            one = await running.deliver(b"1", b"2", b"3", b"4", wait=0.1)
            assert sent(running) == [[b"1", b"2", b"3"]]
            two = await running.deliver(b"5", b"6", wait=0.01)
            assert sent(running)[1:] == [[b"4", b"5", b"6"]]
            assert running.finished == [b"1", b"2", b"3", b"4", b"5", b"6"]
            assert one.is_settled
            assert two.is_settled

    async def test_the_first_one_waits_no_longer_than_it_may_and_not_if_it_starves(self) -> None:
        async with delivering(size=10, wait=0.2) as running:
            await running.deliver(b"1", wait=0.15)
            await running.deliver(b"2", wait=0.04)
            assert sent(running) == []
            await elapse(0.02)
            assert sent(running) == [[b"1", b"2"]]
            await running.deliver(b"3", wait=0.19)
            assert len(sent(running)) == 1
            await running.deliver(b"4", starved=True)
            assert sent(running) == [[b"1", b"2"], [b"3", b"4"]]

    async def test_a_flush_sends_what_waits_of_all_topics_and_a_drain_that_of_its_own(self) -> None:
        async with delivering(topics=("events", "others"), size=10, wait=60.0) as running:
            running.sink.flush()
            for number in range(2):
                await running.handle(b"1")
                await running.deliver(b"2", topic="others")
                assert len(sent(running)) == 2 * number
                running.sink.flush()
                await elapse(1)
                assert sent(running)[-2:] == [[b"1"], [b"2"]]
            await running.handle(b"3")
            await running.deliver(b"4", topic="others")
            await running.sink.drain("events")
            assert sent(running)[4:] == [[b"3"]]
            assert running.finished[4:] == [b"3"]


@virtual
class TestSettling:
    @pytest.mark.parametrize("lossy", [False, True])
    async def test_a_body_that_is_no_json_takes_no_other_with_it(
        self, lossy: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with delivering(size=3, batch_format="json-array", workers=1) as running:
            running.letters.is_lossy = lossy
            await running.deliver(b'{"a":1}', b"no json", b"2")
            assert [json.loads(body) for body in running.web.bodies()] == [[{"a": 1}], [2]]
            bad = b"no json"
            assert running.requeued == ([(bad, None, True)] if lossy else [])
            assert running.letters.written == ([] if lossy else [(bad, UNFIT.reason)])
            assert sorted({*running.finished, bad}) == [b"2", bad, b'{"a":1}']
            assert (bad in running.finished) == (not lossy)
        assert (UNFIT.reason in caplog.text) == lossy

    @pytest.mark.parametrize("late", [False, True])
    async def test_what_a_lost_connection_brought_leaves_the_batch(self, late: bool) -> None:
        lost = [] if late else [True]
        async with delivering(size=4) as running:
            await open_breaker(running)
            running.web.ever = {}
            await running.handle(b"1", b"2", is_lost=lambda: bool(lost))
            await running.deliver(b"3", b"4", wait=0.1)
            lost.append(True)
            await elapse(1)
            assert sent(running) == [[b"3", b"4"]]
            assert running.finished == [b"3", b"4"]
            assert running.requeued == []
            await asyncio.wait_for(running.sink.drain("events"), 1)

    async def test_a_connection_lost_between_two_singles_stops_them(self) -> None:
        async with delivering(size=3, workers=1) as running:
            running.web.next["a"] = [Answer(400), Answer(), Answer(400, after=1)]
            lost: list[bool] = []
            await running.deliver(b"1", b"2", b"3", is_lost=lambda: bool(lost), wait=0.5)
            lost.append(True)
            await elapse(1)
            assert sent(running) == [[b"1", b"2", b"3"], [b"1"], [b"2"]]
            await asyncio.wait_for(running.sink.drain("events"), 1)
