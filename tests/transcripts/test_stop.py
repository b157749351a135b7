"""How a consumer ends: CLS, what was delivered is handled, the rest goes back, a clean close.

The moments at which it can be told to make many lines.
"""

import asyncio
import contextlib
from functools import partial
from typing import Any

import pytest

from nsqtools.engine.handler import Batch
from nsqtools.errors import OutputError, UnreachableError
from nsqtools.policy.backoff import Backoff
from nsqtools.policy.rdy import RdyPlanner
from tests.support import wire
from tests.support.clock import elapse
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running

END = "end of stream"


async def hold(batch: Batch) -> None:
    batch.hold()


async def sleep(seconds: float, batch: Batch) -> None:
    await elapse(seconds)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def test_a_handler_that_never_returns_has_the_drain_timeout(nsqd: ScriptedNsqd) -> None:
    nsqd.one_by_one = True
    recorder = Recorder(partial(sleep, 10**9))
    consumer = consume(recorder, nsqd, max_in_flight=5, drain_timeout=7)
    async with running(consumer):
        nsqd.publish(b"1", b"2", b"3")
        await elapse(1)
    assert nsqd.commands == ["RDY 1", "RDY 5", "CLS", "REQ 1 0", "REQ 2 0", "REQ 3 0", END]
    assert nsqd.log[-1][0] == pytest.approx(8, abs=0.1)
    assert nsqd.depth == 3
    assert consumer.stats().in_flight == 0


async def test_the_unfinished_part_of_the_batch_in_hand_goes_back(nsqd: ScriptedNsqd) -> None:
    async def act(batch: Batch) -> None:
        if len(batch) == 3:
            batch.finish([batch[1]])
            await elapse(10**9)

    async with running(consume(Recorder(act), nsqd, max_in_flight=5, drain_timeout=7)):
        nsqd.publish(b"1")
        await elapse(1)
        nsqd.publish(b"2", b"3", b"4")
        await elapse(1)
    assert nsqd.commands[3:] == ["FIN 3", "CLS", "REQ 2 0", "REQ 4 0", END]


async def test_what_is_held_and_not_settled_by_drain_goes_back(nsqd: ScriptedNsqd) -> None:
    class Sink(Recorder):
        async def drain(self, topic: str) -> None:
            self.batches[0].finish()

    async with running(consume(Sink(hold), nsqd, max_in_flight=5)):
        nsqd.publish(b"1")
        await elapse(1)
        nsqd.publish(b"2", b"3")
        await elapse(6)
    assert nsqd.commands[2:] == ["CLS", "FIN 1", "REQ 2 0", "REQ 3 0", END]
    assert nsqd.depth == 2


async def test_a_sink_whose_close_fails_gives_all_back_first(nsqd: ScriptedNsqd) -> None:
    class Sink(Recorder):
        async def close(self, *, at_once: bool = False) -> None:
            raise OSError("no space left on device")

    consumer = consume(Sink(hold), nsqd, max_in_flight=5)
    task = asyncio.create_task(consumer.run())
    await elapse(1)
    nsqd.publish(b"1")
    await elapse(1)
    consumer.stop()
    with pytest.raises(OSError, match="no space left"):
        await task
    assert nsqd.commands[2:] == ["CLS", "REQ 1 0", END]


async def test_a_sink_that_has_failed_ends_the_run_with_its_error(nsqd: ScriptedNsqd) -> None:
    class Sink(Recorder):
        async def open(self) -> None:
            self.ended = asyncio.get_running_loop().create_future()

        async def handle(self, batch: Batch) -> None:
            assert self.ended
            self.ended.set_exception(OutputError("no space left on device"))

        async def close(self, *, at_once: bool = False) -> None:
            raise ValueError("what it raises then is only logged")

    nsqd.publish(b"1")
    with pytest.raises(OutputError, match="no space left"):
        await consume(Sink(), nsqd).run()
    assert nsqd.commands[1:] == ["FIN 1", "CLS", END]


async def test_what_comes_before_the_answer_to_cls_is_still_handled(nsqd: ScriptedNsqd) -> None:
    recorder = Recorder()
    consumer = consume(recorder, nsqd, max_in_flight=5)
    async with running(consumer) as task:
        nsqd.silent = True
        consumer.stop()
        for piece in (wire.message(7), wire.message(8), wire.CLOSE_WAIT, wire.message(9)):
            await elapse(0.01)
            nsqd.send(piece)
        nsqd.silent = False
        await task
    assert recorder.seen == [(7, 1), (8, 1)]
    assert nsqd.commands == ["RDY 1", "CLS", "FIN 7", "FIN 8", "REQ 9 0", END]


async def test_a_client_that_nsqd_keeps_is_gone_after_two_seconds(nsqd: ScriptedNsqd) -> None:
    nsqd.lingers = 100.0
    async with running(consume(Recorder(), nsqd)):
        await elapse(1)
    assert loop_time() == pytest.approx(3, abs=0.1)


async def test_nothing_reconnects_after_stop_nor_while_draining(network: Network) -> None:
    first, second = network.nsqd("first"), network.nsqd("second")
    consumer = consume(Recorder(partial(sleep, 20)), first, second, reconnect_delay=1)
    async with running(consumer):
        first.publish(b"x")
        await elapse(1)
        second.down = True
        second.break_off()
        await elapse(1)
        consumer.stop()
        await elapse(1)
        second.down = False
        first.break_off()
        dials = len(second.dials)
    await elapse(1000)
    assert len(first.dials) == 1
    assert len(second.dials) == dials
    assert first.clients == second.clients == []


async def test_a_handler_that_cannot_be_cancelled_keeps_nobody(nsqd: ScriptedNsqd) -> None:
    async def stubborn(batch: Batch) -> None:
        for _ in range(100):
            with contextlib.suppress(asyncio.CancelledError):
                await elapse(1000)

    consumer = consume(Recorder(stubborn), nsqd, max_in_flight=5, drain_timeout=7)
    task = asyncio.create_task(consumer.run())
    await elapse(0.1)
    nsqd.publish(b"1")
    await elapse(1)
    consumer.stop()
    await task
    assert loop_time() < 15
    assert nsqd.clients == []
    for left in asyncio.all_tasks() - {asyncio.current_task()}:
        for _ in range(200):
            left.cancel()
            await asyncio.sleep(0)


async def test_an_nsqd_that_does_not_answer_cls_costs_others_no_time(network: Network) -> None:
    dead, alive = network.nsqd("dead"), network.nsqd("alive")
    recorder = Recorder(partial(sleep, 20))
    async with running(consume(recorder, dead, alive, max_in_flight=2, drain_timeout=30)):
        alive.publish(b"1")
        await elapse(1)
        dead.silent = True
    assert alive.commands == ["RDY 1", "CLS", "FIN 1", END]
    assert dead.commands == ["RDY 1", "CLS", END]
    assert loop_time() < 24


@pytest.mark.parametrize(
    ("policy", "method", "body"), [(RdyPlanner, "plan", b"good"), (Backoff, "end_wait", b"bad")]
)
async def test_planning_that_breaks_ends_the_consumer_with_the_error_after_draining(
    nsqd: ScriptedNsqd, policy: type, method: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(batch: Batch) -> None:
        batch.hold()
        if batch[0].body == b"bad":
            raise ValueError("bad body")

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    consumer = consume(Recorder(act), nsqd, max_in_flight=5)
    run = asyncio.create_task(consumer.run())
    await elapse(1)
    nsqd.publish(b"held", body)
    await elapse(0.1)
    monkeypatch.setattr(policy, method, fail)
    await elapse(6)  # a tick comes every 5 s, and the first backoff takes less
    assert run.done()
    with pytest.raises(ZeroDivisionError):
        run.result()
    assert nsqd.clients == []
    assert "REQ 1 0" in nsqd.commands


class TestABlock:
    async def test_it_ends_with_a_drain_also_if_it_fails(self, nsqd: ScriptedNsqd) -> None:
        recorder = Recorder(partial(sleep, 1))
        nsqd.publish(b"1")

        async def fail() -> None:
            async with consume(recorder, nsqd):
                await elapse(0.5)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert [text for text in nsqd.commands if text[:3] in ("CLS", "FIN", "REQ")] == [
            "CLS",
            "FIN 1",
        ]
        assert recorder.closed == 1

    async def test_a_consumer_that_fails_ends_it(self, nsqd: ScriptedNsqd) -> None:
        nsqd.down = True
        with pytest.raises(UnreachableError):
            async with consume(Recorder(), nsqd):
                await elapse(10**6)
        assert loop_time() < 1

    async def test_one_that_ends_by_itself_does_not(self, nsqd: ScriptedNsqd) -> None:
        async with consume(Recorder(), nsqd) as consumer:
            await elapse(1)
            consumer.stop()
            await elapse(1)
        assert loop_time() >= 2
