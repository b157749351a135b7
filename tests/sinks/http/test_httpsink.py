"""What a response, or none, does to messages, and when they are sent: alone or together."""

import asyncio
import json

import pytest

from nsqtools.errors import OutputError
from nsqtools.policy.verdicts import Statuses
from nsqtools.sinks.http.courier import UNFIT
from tests.support.archiving import LOST, message
from tests.support.clock import elapse, virtual
from tests.support.delivering import (
    LONGEST,
    OK,
    REFUSES,
    RESETS,
    SOON,
    Answer,
    Delivering,
    delivering,
    open_breaker,
)
from tests.support.raw import unprefixed

NEVER = Answer(after=1e4)
IN_2999 = "Sun, 01 Dec 2999 12:00:09 GMT"
BEFORE = "Sun, 01 Dec 2999 12:00:00 GMT"
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"
DISK_FULL = OutputError("dead: No space left on device")
CANCELLED = asyncio.CancelledError("of its own")


def sent(running: Delivering) -> list[list[bytes]]:
    """The messages of each request."""
    return [unprefixed(body) for body in running.web.bodies()]


@virtual
class TestSettling:
    @pytest.mark.parametrize(
        ("answer", "delay"),
        [
            (Answer(500, headers={"Retry-After": "7"}), None),
            (Answer(404), None),
            (Answer(302, headers={"Location": "http://b/"}), None),
            (Answer(503, headers={"Retry-After": "7"}), 7.0),
            (Answer(429, headers={"Retry-After": "0"}), 0.0),
            (Answer(429, headers={"Retry-After": "172800"}), LONGEST),
            (Answer(503, headers={"Retry-After": IN_2999, "Date": BEFORE}), 9.0),
            (Answer(503, headers={"Retry-After": IN_2999}), None),
            (Answer(503, headers={"Retry-After": IN_2999, "Date": DATE}), LONGEST),
            (RESETS, None),
            (REFUSES, None),
            (NEVER, None),
        ],
    )
    async def test_a_message_that_is_not_taken_goes_back_with_backoff(
        self, answer: Answer, delay: float | None
    ) -> None:
        async with delivering() as running:
            running.web.next["a"] = [answer]
            await running.deliver(b"one", wait=20.1)
            assert running.requeued == [(b"one", delay, True)]
            assert len(running.web.sent) == 1
        assert running.finished == []
        assert running.letters.written == []

    @pytest.mark.parametrize("bug", [ZeroDivisionError("a bug"), CANCELLED])
    async def test_a_bug_in_a_transport_ends_no_worker(
        self, caplog: pytest.LogCaptureFixture, bug: BaseException
    ) -> None:
        async with delivering(workers=1) as running:
            running.web.next["a"] = [Answer(error=bug)]
            await running.deliver(b"one", b"two")
        assert running.requeued == [(b"one", None, True)]
        assert running.finished == [b"two"]
        (record,) = caplog.records
        assert f"{type(bug).__name__}: " in record.message
        assert not record.exc_info

    async def test_what_a_lost_connection_brought_is_not_delivered(self) -> None:
        async with delivering(workers=1) as running:
            running.web.next["a"] = [Answer(after=1)]
            await running.handle(b"slow")
            await running.handle(b"lost", is_lost=True)
            await running.deliver(b"sound", wait=2)
            assert running.web.bodies() == [b"slow", b"sound"]
            assert running.finished == [b"slow", b"sound"]
            assert running.settled.forgotten == [b"lost"]
            await asyncio.wait_for(running.sink.drain("events"), 1)


@virtual
class TestSampling:
    async def test_each_delivery_of_a_message_decides_as_the_first(self) -> None:
        """In any batch, in any run and after any number of attempts; 3 in 10, evenly spread."""
        chosen = []
        for attempt in (1, 2):
            async with delivering(share=0.3) as running:
                running.web.ever["a"] = Answer(422) if attempt == 1 else OK
                sent = [message(b"%d" % n, number=n, attempts=attempt) for n in range(2000)]
                for each in sent if attempt == 1 else sent[::-1]:
                    await running.handle(each)
                await elapse(10)
                chosen.append(set(running.web.bodies()))
                settled = running.finished + [body for body, *_ in running.requeued]
                assert len(settled) == len(set(settled)) == len(sent)
        assert chosen[0] == chosen[1]
        for part in (range(1000), range(1000, 2000)):
            assert 250 < sum(b"%d" % n in chosen[0] for n in part) < 350


@virtual
class TestDrops:
    @pytest.mark.parametrize("lossy", [False, True])
    async def test_what_is_dropped_or_given_up_is_a_dead_letter_or_lost_and_then_finished(
        self, lossy: bool
    ) -> None:
        async with delivering(statuses=Statuses(drop_on="4xx")) as running:
            running.letters.is_lossy = lossy
            running.web.next["a"] = [Answer(422, b"no such\r\nthing"), OK]
            await running.deliver(b"bad", b"good")
            await running.give_up(b"comes again", is_lost=True)
            messages = await running.give_up(b"one")
            assert messages.held
            await elapse(SOON)
            assert messages.is_settled
            await asyncio.wait_for(running.sink.drain("events"), 1)
        letters = [(b"bad", "status 422, response 'no such thing'"), (b"one", "too many attempts")]
        assert running.letters.written == letters
        assert sorted(running.finished) == [b"bad", b"good", b"one"]
        assert running.sink.lost == (2 if lossy else 0)
        assert len(running.web.sent) == 2

    @pytest.mark.parametrize("error", [DISK_FULL, ZeroDivisionError("a bug"), CANCELLED])
    async def test_what_cannot_be_written_as_a_dead_letter_comes_again(
        self, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        async with delivering(workers=1, statuses=Statuses(drop_on="422")) as running:
            running.letters.error = error
            running.web.next["a"] = [Answer(422)]
            await running.handle(b"refused")
            await running.give_up(b"given up")
            await elapse(SOON)
            assert sorted(running.requeued) == [(b"given up", None, True), (b"refused", None, True)]
            assert str(error) in caplog.text
            running.letters.error = None
            await running.give_up(b"later")
            await elapse(SOON)
        assert running.letters.bodies == running.finished == [b"later"]
        assert running.sink.lost == 0


@virtual
class TestDraining:
    async def test_it_waits_for_all_that_is_under_way_and_gives_back_the_rest(self) -> None:
        async with delivering(workers=2) as running:
            running.web.ever["a"] = Answer(after=2)
            await running.deliver(b"x", b"x", b"y", b"y", wait=0.1)
            draining = asyncio.ensure_future(running.sink.drain("events"))
            await elapse(1.8)
            assert not draining.done()
            assert running.requeued == [(b"y", 0, False)] * 2
            await elapse(0.2)
            assert draining.done()
            assert running.finished == [b"x", b"x"]
            for topic in ("events", "never joined"):
                await running.sink.drain(topic)

    async def test_what_waits_for_its_turn_when_the_topic_ends_goes_back(self) -> None:
        async with delivering(rate=1.0) as running:
            await running.deliver(b"1", b"2", b"3", wait=0.5)
            await asyncio.wait_for(running.sink.drain("events"), 0.1)
            assert running.finished == [b"1"]
            assert running.requeued == [(b"2", 0, False), (b"3", 0, False)]


@virtual
class TestClosing:
    async def test_what_is_not_settled_is_left_to_the_consumer(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with delivering(workers=2, size=2) as running:
            running.web.ever["a"] = NEVER
            await running.deliver(b"sent", b"with it", b"waiting", wait=0.1)
            await running.sink.close(at_once=True)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await elapse(10)
        assert (running.finished, running.requeued) == ([], [])
        assert running.web.is_closed
        assert running.letters.said == ["open", "close"]
        assert caplog.messages == []


@virtual
class TestGathering:
    """Messages share a request."""

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

    async def test_the_rest_of_a_full_request_waits_from_then_on(self) -> None:
        async with delivering(size=2, wait=1.0) as running:
            await running.deliver(b"1", wait=0.9)
            await running.deliver(b"2", b"3", wait=0.9)
            assert sent(running) == [[b"1", b"2"]]
            await elapse(0.2)
            assert sent(running)[1:] == [[b"3"]]

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
class TestBatches:
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
        async with delivering(size=4) as running:
            await open_breaker(running)
            running.web.ever = {}
            batch = await running.handle(b"1", b"2", is_lost=not late)
            await running.deliver(b"3", b"4", wait=0.1)
            batch.deadline = LOST
            await elapse(1)
            assert sent(running) == [[b"3", b"4"]]
            assert running.finished == [b"3", b"4"]
            assert running.requeued == []
            await asyncio.wait_for(running.sink.drain("events"), 1)

    async def test_a_connection_lost_between_two_singles_stops_them(self) -> None:
        async with delivering(size=3, workers=1) as running:
            running.web.next["a"] = [Answer(400), Answer(), Answer(400, after=1)]
            batch = await running.deliver(b"1", b"2", b"3", wait=0.5)
            batch.deadline = LOST
            await elapse(1)
            assert sent(running) == [[b"1", b"2", b"3"], [b"1"], [b"2"]]
            await asyncio.wait_for(running.sink.drain("events"), 1)
