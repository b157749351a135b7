"""Mode ``all``: each endpoint has to take a message, and is asked until it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from tests.support.archiving import message
from tests.support.clock import virtual
from tests.support.delivering import REFUSES, Answer, delivering

if TYPE_CHECKING:
    import pytest


@virtual
class TestAll:
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
            await running.deliver(one)  # done, it is forgotten
            assert Counter(running.web.hosts()) == {"a": 5, "b": 6}

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
            running.web.ever["a"] = REFUSES
            for number in range(5):
                await running.deliver(message(b"%d" % number, number=number))
            running.web.sent.clear()
            running.requeued.clear()
            await running.deliver(message(b"new", number=9), wait=0.9)
            assert running.web.hosts() == ["b"]
            assert running.requeued == []
            assert running.states() == {"a": 0, "b": 1}
            await asyncio.wait_for(running.sink.drain("events"), 0.01)
            assert running.requeued == [(b"new", 0, False)]
