"""What a response, or none, does to a message, and when it is sent at all."""

from __future__ import annotations

import asyncio

import pytest

from nsqtools.errors import OutputError
from nsqtools.policy.verdicts import Statuses
from tests.support.clock import elapse, virtual
from tests.support.delivering import OK, REFUSES, RESETS, SOON, Answer, delivering

NEVER = Answer(after=1e4)
DISK_FULL = OutputError("dead: No space left on device")
CANCELLED = asyncio.CancelledError("of its own")


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
            await running.handle(b"lost", is_lost=lambda: True)
            await running.deliver(b"sound", wait=2)
            assert running.web.bodies() == [b"slow", b"sound"]
            assert running.finished == [b"slow", b"sound"]
            assert running.settled.forgotten == [b"lost"]
            await asyncio.wait_for(running.sink.drain("events"), 1)


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
            await running.give_up(b"comes again", is_lost=lambda: True)
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
