"""Which endpoint gets a message, and what the others get when that one fails."""

import asyncio
from collections import Counter

import pytest

from nsqtools.errors import OutputError
from nsqtools.policy.verdicts import Statuses
from tests.support.archiving import message
from tests.support.clock import elapse, virtual
from tests.support.delivering import OK, REFUSES, Answer, delivering, open_breaker

MODES = ["round-robin", "hostpool", "epsilon-greedy"]
GONE = Answer(410)


@virtual
class TestFailover:
    @pytest.mark.parametrize("mode", MODES)
    async def test_one_that_is_not_reached_costs_a_message_nothing(self, mode: str) -> None:
        async with delivering(hosts="abc", mode=mode) as running:
            running.web.ever = {"a": REFUSES, "c": REFUSES}
            for number in range(20):
                await running.deliver(b"%d" % number)
        assert running.finished == [b"%d" % number for number in range(20)]
        assert running.requeued == []

    async def test_a_probe_falls_due_while_the_others_are_tried(self) -> None:
        async with delivering(hosts="abc") as running:
            running.web.ever["a"] = REFUSES
            await running.deliver(*[b"x"] * 30)
            assert running.states() == {"a": 0, "b": 1, "c": 1}
            late = Answer(error=REFUSES.error, after=1.5)
            running.web.ever |= {"b": late, "c": late}
            await elapse(1)
            await running.deliver(b"one", wait=10)
            running.web.ever = {}
            running.web.sent.clear()
            await running.deliver(*[b"x"] * 30, wait=5)
            assert set(running.web.hosts()) == {"a", "b", "c"}
            assert running.states() == {"a": 1, "b": 1, "c": 1}


@virtual
class TestBreaker:
    @pytest.mark.parametrize("mode", [*MODES, "all"])
    async def test_while_it_is_open_messages_are_held_unless_their_topic_is_drained(
        self, mode: str
    ) -> None:
        async with delivering(mode=mode, topics=("events", "others")) as running:
            await open_breaker(running)
            bodies = [b"%d" % n for n in range(20)]
            await running.handle(*bodies, msg_timeout=2.0)
            await running.deliver(b"one", b"two", topic="others", wait=0.5)
            assert running.requeued == []
            await asyncio.wait_for(running.sink.drain("others"), 0.1)
            assert running.requeued == [(b"one", 0, False), (b"two", 0, False)]
            assert running.web.sent == []
            await elapse(19)
            # The probes are of after 1, 2, 4 and 8 s.
            assert len(running.web.sent) == 4
            assert running.finished == []
            assert len(running.requeued) == 6
            running.web.ever = {"a": OK}
            await elapse(20)
            assert {*running.finished, *(body for body, *_ in running.requeued[2:])} == {*bodies}
            assert len(running.finished) == 16

    @pytest.mark.parametrize("mode", ["round-robin", "all"])
    async def test_one_request_finds_out_and_all_follow_when_it_succeeds(self, mode: str) -> None:
        async with delivering(mode=mode) as running:
            await open_breaker(running)
            running.web.ever["a"] = Answer(after=0.5)
            await running.deliver(*[b"%d" % n for n in range(10)], wait=1.2)
            assert len(running.web.sent) == 1
            await elapse(0.4)
            assert len(running.finished) == 1
            assert len(running.web.sent) == 10
            await elapse(0.5)
            assert len(running.finished) == 10
        assert running.requeued == []

    async def test_a_message_that_is_refused_says_nothing_of_the_endpoint(self) -> None:
        async with delivering(statuses=Statuses(drop_on="404")) as running:
            running.web.next["a"] = [Answer(422)] * 6 + [Answer(404)] * 6
            for _ in range(12):
                await running.deliver(b"x")
            await running.deliver(b"good")
            assert running.finished[-1] == b"good"


@virtual
class TestGone:
    @pytest.mark.parametrize("mode", ["round-robin", "all"])
    async def test_one_that_is_gone_is_told_of_and_never_asked_again(
        self, mode: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with delivering(hosts="ab", mode=mode) as running:
            running.web.next["a"] = [GONE]
            for number in range(10):
                await running.deliver(message(b"x", number=number), wait=100)
            assert running.web.hosts() == ["a"] + ["b"] * 10
            assert len(running.finished) == 10
            assert running.states() == {"a": 0, "b": 1}
        (told,) = [r.message for r in caplog.records if r.levelname == "ERROR"]
        assert "http://a/" in told

    @pytest.mark.parametrize("mode", ["round-robin", "all"])
    async def test_when_all_are_gone_messages_go_back_and_the_run_ends(self, mode: str) -> None:
        async with delivering(hosts="ab", mode=mode, workers=3) as running:
            running.web.ever = dict.fromkeys("ab", Answer(410, after=1))
            messages = [message(b"%d" % number, number=number) for number in range(3)]
            await running.deliver(*messages, wait=3)
            assert set(running.web.hosts()) == {"a", "b"}
            assert sorted(running.requeued) == [(b"%d" % n, 0, True) for n in range(3)]
            assert running.finished == []
            assert isinstance(running.sink.ended.exception(), OutputError)


@virtual
class TestAll:
    """Each endpoint has to take a message, and is asked until it does."""

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
            assert running.requeued == [(b"new", 0, True)]
