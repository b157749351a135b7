"""Mode ``all``: each endpoint has to take a message, and is asked until it does."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from nsqtools.errors import OutputError
from nsqtools.policy.verdicts import Statuses
from tests.support.archiving import message
from tests.support.clock import elapse, virtual
from tests.support.delivering import (
    OK,
    REFUSES,
    RESETS,
    SOON,
    Answer,
    delivering,
    open_breaker,
    unpack,
)

GONE = Answer(410)


@virtual
async def test_a_message_is_finished_when_all_have_taken_it() -> None:
    async with delivering(hosts="abc", mode="all") as running:
        running.web.ever["c"] = Answer(after=5)
        await running.handle(b"one")
        await elapse(4.9)
        assert running.finished == []
        await elapse(0.2)
        assert running.finished == [b"one"]
        assert sorted(running.web.hosts()) == ["a", "b", "c"]


@pytest.mark.parametrize("trouble", [Answer(500), REFUSES, RESETS])
@virtual
async def test_a_retry_is_for_those_alone_that_have_not_taken_it(trouble: Answer) -> None:
    async with delivering(hosts="abc", mode="all") as running:
        running.web.next["b"] = [trouble, trouble]
        for attempt in range(1, 4):
            assert running.finished == []
            await running.handle(b"one")
            await elapse(SOON)
            assert Counter(running.web.hosts()) == {"a": 1, "b": attempt, "c": 1}
        assert running.requeued == [(b"one", None, True)] * 2
        assert running.finished == [b"one"]


@virtual
async def test_one_that_fails_keeps_no_other_from_getting_the_message() -> None:
    async with delivering(hosts="abc", mode="all") as running:
        running.web.ever["a"] = Answer(503, headers={"Retry-After": "9"})
        await running.handle(b"one")
        await elapse(SOON)
        assert running.web.hosts() == ["a", "b", "c"]
        assert running.requeued == [(b"one", 9.0, True)]


@virtual
async def test_once_done_it_is_forgotten() -> None:
    async with delivering(hosts="ab", mode="all") as running:
        running.web.next["b"] = [Answer(500)]
        for _ in range(3):
            await running.handle(b"one")
            await elapse(SOON)
        assert Counter(running.web.hosts()) == {"a": 2, "b": 3}


@virtual
async def test_messages_are_told_apart_by_topic_id_and_timestamp() -> None:
    async with delivering(hosts="ab", mode="all", topics=("events", "others")) as running:
        running.web.next["b"] = [Answer(500)]
        one = message(b"one", number=1)
        await running.handle(one)
        await elapse(SOON)
        await running.handle(one, topic="others")
        await running.handle(message(b"one", number=2))
        await running.handle(message(b"one", number=1, timestamp=1))
        await elapse(SOON)
        assert Counter(running.web.hosts()) == {"a": 4, "b": 4}
        await running.handle(one)
        await elapse(SOON)
        assert Counter(running.web.hosts()) == {"a": 4, "b": 5}


@virtual
async def test_so_many_are_remembered_that_wait_for_a_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nsqtools.sinks.http.courier._REMEMBERED", 2)
    async with delivering(hosts="ab", mode="all", workers=1) as running:
        running.web.next["b"] = [Answer(500)] * 3
        messages = [message(b"%d" % number, number=number) for number in range(3)]
        await running.handle(*messages)
        await elapse(SOON)
        running.web.sent.clear()
        await running.handle(*reversed(messages))
        await elapse(SOON)
        assert running.web.bodies("a") == [b"0"]
        assert running.web.bodies("b") == [b"2", b"1", b"0"]


@virtual
async def test_while_the_breaker_of_one_is_open_the_others_get_their_messages() -> None:
    async with delivering(hosts="ab", mode="all") as running:
        running.web.ever["b"] = REFUSES
        for number in range(5):
            await running.handle(message(b"%d" % number, number=number))
            await elapse(SOON)
        running.web.sent.clear()
        running.requeued.clear()
        await running.handle(message(b"new", number=9))
        await elapse(0.9)
        assert running.web.hosts() == ["a"]
        assert running.requeued == []
        assert running.states() == {"a": 1, "b": 0}
        await asyncio.wait_for(running.sink.drain("events"), 0.01)
        assert running.requeued == [(b"new", 0, False)]


@virtual
async def test_all_get_it_at_the_same_time() -> None:
    async with delivering(hosts="abc", mode="all") as running:
        running.web.ever = dict.fromkeys("abc", Answer(after=1))
        await running.handle(b"one")
        await elapse(1.1)
        assert running.finished == [b"one"]
        assert running.web.times() == [0, 0, 0]


@virtual
async def test_a_bug_with_one_does_not_hide_who_has_taken_it() -> None:
    async with delivering(hosts="ab", mode="all") as running:
        running.web.next["a"] = [Answer(error=ZeroDivisionError("a bug"))]
        running.web.ever["b"] = Answer(after=1)
        await running.handle(b"one")
        await elapse(0.5)
        assert running.requeued == []
        await elapse(1)
        assert running.requeued == [(b"one", None, True)]
        await running.handle(b"one")
        await elapse(2)
        assert running.finished == [b"one"]
        assert Counter(running.web.hosts()) == {"a": 2, "b": 1}


@virtual
async def test_one_that_is_gone_is_not_needed_any_more() -> None:
    async with delivering(hosts="ab", mode="all") as running:
        running.web.next["a"] = [GONE]
        for number in range(3):
            await running.handle(message(b"%d" % number, number=number))
            await elapse(SOON)
        assert running.web.hosts() == ["a", "b", "b", "b"]
        assert running.finished == [b"0", b"1", b"2"]
        assert running.states() == {"a": 0, "b": 1}


@virtual
async def test_when_all_are_gone_the_run_ends() -> None:
    async with delivering(hosts="ab", mode="all") as running:
        running.web.ever = {"a": GONE, "b": GONE}
        await running.handle(b"one", message(b"two", number=2))
        await elapse(SOON)
        assert sorted(running.requeued) == [(b"one", 0, False), (b"two", 0, False)]
        assert running.finished == []
        with pytest.raises(OutputError, match="every endpoint is gone"):
            running.sink.failed.result()


class TestDrops:
    @virtual
    async def test_what_one_drops_is_a_dead_letter_although_the_others_take_it(self) -> None:
        statuses = Statuses(drop_on="422")
        async with delivering(hosts="ab", mode="all", statuses=statuses) as running:
            running.web.next["a"] = [Answer(422)]
            await running.handle(b"one")
            await elapse(SOON)
            assert running.letters.written == [(b"one", "status 422")]
            assert running.web.hosts() == ["a", "b"]
            assert running.finished == [b"one"]

    @virtual
    async def test_it_still_is_after_retries_for_the_others(self) -> None:
        statuses = Statuses(drop_on="422")
        async with delivering(hosts="ab", mode="all", statuses=statuses) as running:
            running.web.next["a"] = [Answer(422)]
            running.web.next["b"] = [Answer(500)]
            await running.handle(b"one")
            await elapse(SOON)
            assert running.letters.written == []
            assert running.requeued == [(b"one", None, True)]
            await running.handle(b"one")
            await elapse(SOON)
            assert running.letters.written == [(b"one", "status 422")]
            assert running.web.hosts() == ["a", "b", "b"]
            assert running.finished == [b"one"]


class TestBatches:
    @virtual
    async def test_who_took_a_batch_is_remembered_for_each_of_its_messages(self) -> None:
        async with delivering(hosts="ab", mode="all", size=3, workers=1) as running:
            running.web.next["b"] = [Answer(500)]
            one, two, three, four = (message(b"%d" % n, number=n) for n in range(4))
            await running.handle(one, two, three)
            await elapse(SOON)
            assert len(running.requeued) == 3
            await running.handle(four, two, one, starved=True)
            await elapse(SOON)
            sent = {
                host: [unpack(body) for body in running.web.bodies(host)] for host in ("a", "b")
            }
            assert sent == {
                "a": [[b"0", b"1", b"2"], [b"3"]],
                "b": [[b"0", b"1", b"2"], [b"3", b"1", b"0"]],
            }
            assert running.finished == [b"3", b"1", b"0"]

    @pytest.mark.parametrize("statuses", [Statuses(), Statuses(drop_on="4xx")])
    @virtual
    async def test_one_by_one_a_refused_batch_goes_to_those_alone_that_refused_it(
        self, statuses: Statuses
    ) -> None:
        async with delivering(
            hosts="ab", mode="all", size=3, workers=1, statuses=statuses
        ) as running:
            running.web.next["b"] = [Answer(400), OK, Answer(400), OK]
            await running.handle(*[message(b"%d" % n, number=n) for n in range(3)])
            await elapse(SOON)
            assert [unpack(body) for body in running.web.bodies("a")] == [[b"0", b"1", b"2"]]
            assert [unpack(body) for body in running.web.bodies("b")] == [
                [b"0", b"1", b"2"],
                [b"0"],
                [b"1"],
                [b"2"],
            ]
            settled = [*running.letters.bodies, *(body for body, *_ in running.requeued)]
            assert settled == [b"1"]
            assert set(running.finished) >= {b"0", b"2"}

    @virtual
    async def test_a_batch_that_one_drops_is_not_taken_by_it_for_all_its_messages(self) -> None:
        statuses = Statuses(drop_on="4xx")
        async with delivering(
            hosts="ab", mode="all", size=2, workers=1, statuses=statuses
        ) as running:
            running.web.next["a"] = [Answer(400)]
            running.web.next["b"] = [Answer(500)]
            messages = [message(b"%d" % n, number=n) for n in range(2)]
            await running.handle(*messages)
            await elapse(SOON)
            assert len(running.requeued) == 2
            await running.handle(*messages)
            await elapse(SOON)
            assert [unpack(body) for body in running.web.bodies("a")] == [[b"0", b"1"]] * 2
            assert running.finished == [b"0", b"1"]
            assert running.letters.written == []


@virtual
async def test_the_breaker_of_each_is_its_own() -> None:
    async with delivering(hosts="a", mode="all") as running:
        await open_breaker(running)
        running.web.ever = {}
        await running.handle(b"one")
        await elapse(2)
        assert running.finished == [b"one"]
