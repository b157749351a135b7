"""Mode ``all``: each endpoint has to take a message, and is asked until it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from nsqtools.policy.verdicts import Statuses
from tests.support.archiving import message
from tests.support.clock import virtual
from tests.support.delivering import OK, REFUSES, RESETS, Answer, Delivering, delivering
from tests.support.raw import unprefixed


def packed(running: Delivering) -> dict[str, list[list[bytes]]]:
    """The batches that each host got."""
    return {host: [unprefixed(body) for body in running.web.bodies(host)] for host in "ab"}


@virtual
class TestOneMessage:
    @pytest.mark.parametrize("trouble", [Answer(500), REFUSES, RESETS])
    async def test_all_get_it_at_once_and_again_those_alone_that_have_not_taken_it(
        self, trouble: Answer
    ) -> None:
        async with delivering(hosts="abc", mode="all") as running:
            running.web.next |= {"a": [Answer(after=1)], "b": [trouble, trouble]}
            for attempt in range(1, 4):
                assert running.finished == []
                await running.deliver(b"one", wait=2)
                assert Counter(running.web.hosts()) == {"a": 1, "b": attempt, "c": 1}
            assert running.web.times()[:3] == [0, 0, 0]
            assert running.requeued == [(b"one", None, True)] * 2
            assert running.finished == [b"one"]
            await running.deliver(b"one")  # done, it is forgotten
            assert Counter(running.web.hosts()) == {"a": 2, "b": 4, "c": 2}

    async def test_messages_are_told_apart_by_topic_id_and_timestamp(self) -> None:
        async with delivering(hosts="ab", mode="all", topics=("events", "others")) as running:
            running.web.next["b"] = [Answer(500)]
            one = message(b"one", number=1)
            await running.deliver(one)
            await running.handle(one, topic="others")
            await running.handle(message(b"one", number=2))
            await running.deliver(message(b"one", number=1, timestamp=1))
            assert Counter(running.web.hosts()) == {"a": 4, "b": 4}
            await running.deliver(one)
            assert Counter(running.web.hosts()) == {"a": 4, "b": 5}

    async def test_so_many_are_remembered_that_wait_for_a_retry(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsqtools.sinks.http.courier._REMEMBERED", 2)
        async with delivering(hosts="ab", mode="all", workers=1) as running:
            running.web.next["b"] = [Answer(500)] * 3
            messages = [message(b"%d" % number, number=number) for number in range(3)]
            await running.deliver(*messages)
            running.web.sent.clear()
            await running.deliver(*reversed(messages))
            assert running.web.bodies("a") == [b"0"]
            assert running.web.bodies("b") == [b"2", b"1", b"0"]

    async def test_while_the_breaker_of_one_is_open_the_others_get_their_messages(self) -> None:
        async with delivering(hosts="ab", mode="all") as running:
            running.web.ever["b"] = REFUSES
            for number in range(5):
                await running.deliver(message(b"%d" % number, number=number))
            running.web.sent.clear()
            running.requeued.clear()
            await running.deliver(message(b"new", number=9), wait=0.9)
            assert running.web.hosts() == ["a"]
            assert running.requeued == []
            assert running.states() == {"a": 1, "b": 0}
            await asyncio.wait_for(running.sink.drain("events"), 0.01)
            assert running.requeued == [(b"new", 0, False)]

    @pytest.mark.parametrize("retries", [0, 1])
    async def test_what_one_drops_is_a_dead_letter_once_the_others_have_taken_it(
        self, retries: int
    ) -> None:
        statuses = Statuses(drop_on="422")
        async with delivering(hosts="ab", mode="all", statuses=statuses) as running:
            running.web.next |= {"a": [Answer(422)], "b": [Answer(500)] * retries + [OK]}
            for _ in range(retries + 1):
                assert (running.letters.written, running.finished) == ([], [])
                await running.deliver(b"one")
            assert running.letters.written == [(b"one", "status 422")]
            assert Counter(running.web.hosts()) == {"a": 1, "b": retries + 1}
            assert running.requeued == [(b"one", None, True)] * retries
            assert running.finished == [b"one"]


@virtual
class TestBatches:
    async def test_who_took_a_batch_is_remembered_for_each_of_its_messages(self) -> None:
        async with delivering(hosts="ab", mode="all", size=3, workers=1) as running:
            running.web.next["b"] = [Answer(500)]
            one, two, three, four = (message(b"%d" % n, number=n) for n in range(4))
            await running.deliver(one, two, three)
            assert len(running.requeued) == 3
            await running.deliver(four, two, one, starved=True)
            assert packed(running) == {
                "a": [[b"0", b"1", b"2"], [b"3"]],
                "b": [[b"0", b"1", b"2"], [b"3", b"1", b"0"]],
            }
            assert running.finished == [b"3", b"1", b"0"]

    @pytest.mark.parametrize("statuses", [Statuses(), Statuses(drop_on="4xx")])
    async def test_one_by_one_a_refused_batch_goes_to_those_alone_that_refused_it(
        self, statuses: Statuses
    ) -> None:
        more: dict[str, Any] = {"size": 3, "workers": 1, "statuses": statuses}
        async with delivering(hosts="ab", mode="all", **more) as running:
            running.web.next["b"] = [Answer(400), OK, Answer(400), OK]
            await running.deliver(*[message(b"%d" % n, number=n) for n in range(3)])
            whole = [b"0", b"1", b"2"]
            assert packed(running) == {"a": [whole], "b": [whole, [b"0"], [b"1"], [b"2"]]}
            settled = [*running.letters.bodies, *(body for body, *_ in running.requeued)]
            assert settled == [b"1"]
            assert set(running.finished) >= {b"0", b"2"}

    async def test_a_batch_that_one_drops_is_not_taken_by_it_for_all_its_messages(self) -> None:
        more: dict[str, Any] = {"size": 2, "workers": 1, "statuses": Statuses(drop_on="4xx")}
        async with delivering(hosts="ab", mode="all", **more) as running:
            running.web.next |= {"a": [Answer(400)], "b": [Answer(500)]}
            messages = [message(b"%d" % n, number=n) for n in range(2)]
            await running.deliver(*messages)
            assert len(running.requeued) == 2
            await running.deliver(*messages)
            assert packed(running)["a"] == [[b"0", b"1"]] * 2
            assert running.finished == [b"0", b"1"]
            assert running.letters.written == []
