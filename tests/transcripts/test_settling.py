"""FIN, REQ and TOUCH on the wire, and messages that are given up."""

import asyncio
import gc
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from nsqtools.engine.handler import Batch
from nsqtools.errors import OutputError
from tests.support.clock import VirtualLoop, elapse
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


async def hold(batch: Batch) -> None:
    batch.hold()


async def test_what_a_handler_leaves_is_finished_in_one_write(nsqd: ScriptedNsqd) -> None:
    recorder = Recorder()
    consumer = consume(recorder, nsqd, max_in_flight=10)
    async with running(consumer):
        nsqd.publish(*[b"x"] * 10)
        await elapse(1)
        assert nsqd.commands == ["RDY 1", "RDY 10", *[f"FIN {n}" for n in range(1, 11)]]
        times = [at for at, text in nsqd.log if text.startswith("FIN")]
        assert len(set(times)) <= 2
        stats = consumer.stats()
        assert (stats.received, stats.finished, stats.in_flight) == (10, 10, 0)
        assert stats.received_bytes == 10


async def test_a_handler_that_raises_keeps_what_it_finished(nsqd: ScriptedNsqd) -> None:
    async def act(batch: Batch) -> None:
        if len(batch) == 3:
            batch.finish([batch[1]])
            raise ValueError

    recorder = Recorder(act)
    consumer = consume(recorder, nsqd, max_in_flight=4, default_requeue_delay=100)
    async with running(consumer):
        nsqd.publish(b"1")
        await elapse(0.01)
        nsqd.publish(b"2", b"3", b"4")
        await elapse(0.01)
        assert nsqd.commands[3:] == ["FIN 3", "RDY 0", "REQ 2 100000", "REQ 4 100000"]
        assert (consumer.stats().finished, consumer.stats().requeued) == (2, 2)


@pytest.mark.parametrize("error", [ValueError("bad body"), OutputError("out.log: no space")])
async def test_a_failure_is_logged_with_a_traceback_unless_it_is_written_for_users(
    nsqd: ScriptedNsqd, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(_: Batch) -> None:
        raise error

    async with running(consume(Recorder(act), nsqd)):
        nsqd.publish(b"x")
        await elapse(0.01)
    (record,) = errors(caplog)
    assert "1 message requeued" in record.message
    assert str(error) in caplog.text
    assert bool(record.exc_info) is isinstance(error, ValueError)


async def test_the_same_failure_is_logged_once_a_minute_and_another_at_once(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(_: Batch) -> None:
        raise ValueError(text)

    text = "first"
    options: dict[str, Any] = {"max_backoff_duration": 0, "max_attempts": 0}
    consumer = consume(Recorder(act), nsqd, default_requeue_delay=1, **options)
    async with running(consumer):
        nsqd.publish(b"x", b"y")
        await elapse(100)
        found = (re.search(r"(\d+) (more )?messages?", each.message) for each in errors(caplog))
        logged = [int(each[1]) for each in found if each]
        assert len(logged) == 3
        assert sum(logged) <= consumer.stats().requeued
        assert logged[1] > 10
        text = "second"
        await elapse(30)
        assert len(errors(caplog)) == 4


async def test_a_cancelled_inner_task_is_a_failure_of_the_handler(nsqd: ScriptedNsqd) -> None:
    async def act(batch: Batch) -> None:
        if len(recorder.batches) == 1:
            raise asyncio.CancelledError

    recorder = Recorder(act)
    async with running(consume(recorder, nsqd, default_requeue_delay=1)):
        nsqd.publish(b"x")
        await elapse(10)
        assert recorder.seen == [(1, 1), (1, 2)]
        assert nsqd.commands[-1] == "FIN 1"


@pytest.mark.parametrize(
    ("delay", "sent"),
    [
        (None, 3000),
        (0.5, 500),
        (0, 0),
        (7200, 7_200_000),
        (1e10, 2**31 * 1000),
        (1e300, 2**31 * 1000),
    ],
)
async def test_a_handler_may_choose_the_delay(
    nsqd: ScriptedNsqd, delay: float | None, sent: int
) -> None:
    async def act(batch: Batch) -> None:
        batch.requeue(delay=delay)

    async with running(consume(Recorder(act), nsqd, default_requeue_delay=3)):
        nsqd.publish(b"x")
        await elapse(0.01)
        assert f"REQ 1 {sent}" in nsqd.commands


async def test_a_handler_sees_exactly_max_attempts_deliveries(nsqd: ScriptedNsqd) -> None:
    recorder = Recorder()
    consumer = consume(recorder, nsqd, default_requeue_delay=1, max_attempts=3)
    async with running(consumer):
        nsqd.publish(b"bad")
        await elapse(300)
        nsqd.publish(b"old", attempts=7)
        nsqd.publish(b"new")
        await elapse(300)
        assert recorder.seen == [(1, 1), (1, 2), (1, 3), (3, 1)]
        assert recorder.given_up == [(1, 4), (2, 8)]
        fins = [text for text in nsqd.commands if text.startswith("FIN")]
        assert sorted(fins) == ["FIN 1", "FIN 2", "FIN 3"]
        requeues = [text for text in nsqd.commands if text.startswith("REQ")]
        assert requeues == ["REQ 1 1000", "REQ 1 2000", "REQ 1 0"]  # the last one only to give up
        assert nsqd.depth == nsqd.in_flight == 0
        assert consumer.stats().given_up == 2


async def test_giving_up_that_fails_requeues(nsqd: ScriptedNsqd) -> None:
    class Full(Recorder):
        async def gave_up(self, batch: Batch) -> None:
            if not self.given_up:
                self.given_up.append((0, 0))
                raise OSError("no space left on device")
            await super().gave_up(batch)

    recorder = Full()
    consumer = consume(recorder, nsqd, max_attempts=1, default_requeue_delay=1)
    async with running(consumer):
        nsqd.publish(b"x", attempts=1)
        await elapse(30)
        assert recorder.seen == []
        assert recorder.given_up == [(0, 0), (1, 3)]
        assert nsqd.commands[1:] == ["RDY 0", "REQ 1 2000", "RDY 1", "FIN 1"]
        assert consumer.stats().given_up == 1


async def test_a_message_whose_touch_is_refused_does_not_reach_the_handler_and_comes_again() -> (
    None
):
    nsqd = Network().nsqd(msg_timeout=10_000)
    taken: list[str] = []

    def refuse(text: str) -> str | None:
        if text == "TOUCH 2" and not taken:
            taken.append(text)
            return f"E_TOUCH_FAILED TOUCH {2:016x} failed"
        return None

    async def slow(batch: Batch) -> None:
        await elapse(8.0)

    nsqd.one_by_one, nsqd.refuses = True, refuse
    recorder = Recorder(slow)
    consumer = consume(recorder, nsqd, max_in_flight=20)
    async with running(consumer):
        nsqd.publish(b"x", b"x", b"x")
        await elapse(40)
        assert recorder.seen == [(1, 1), (3, 1), (2, 2)]
        assert (consumer.stats().finished, consumer.stats().too_late) == (3, 1)


async def test_what_is_held_beyond_max_msg_timeout_is_dropped_and_counted() -> None:
    nsqd = Network().nsqd(msg_timeout=10_000, max_msg_timeout=30_000)
    recorder = Recorder(hold)
    consumer = consume(recorder, nsqd)
    async with running(consumer):
        nsqd.publish(b"x")
        await elapse(45)
        first = recorder.batches[0]
        assert first.is_settled
        first.finish()
        assert (consumer.stats().finished, consumer.stats().too_late) == (0, 1)
        assert nsqd.commands.count("FIN 1") == 0


async def test_what_times_out_while_a_handler_blocks_the_process_is_handled_once() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    async def block(batch: Batch) -> None:
        if len(recorder.batches) == 2:  # the others have been received
            loop.advance(5.0)

    nsqd = Network().nsqd(msg_timeout=2000)
    nsqd.one_by_one = True
    recorder = Recorder(block)
    consumer = consume(recorder, nsqd, max_in_flight=20)
    async with running(consumer):
        nsqd.publish(*[b"x"] * 5)
        await elapse(20)
        assert sorted(each for each in recorder.seen if each[0] > 2) == [(3, 2), (4, 2), (5, 2)]
        assert (nsqd.depth, nsqd.in_flight) == (0, 0)


@pytest.mark.parametrize("settle", [Batch.finish, Batch.requeue, Batch.forget])
async def test_what_is_settled_is_in_memory_no_more(
    nsqd: ScriptedNsqd, settle: Callable[[Batch], None]
) -> None:
    """Not even the batches of which a sink has kept one part."""
    held: list[Batch] = []

    async def hold(batch: Batch) -> None:
        batch.hold()
        held.extend([batch.part(batch[:1]), batch])

    nsqd.one_by_one = True
    async with running(consume(handler := Recorder(hold), nsqd, max_in_flight=10)):
        nsqd.publish(*[b"x"] * 10)
        await elapse(1)
        assert _batches() == 20
        gc.disable()
        handler.batches.clear()
        while held:
            settle(held.pop())
        await elapse(0)
        left = _batches()
        gc.enable()
        assert left == 0


def _batches() -> int:
    return sum(type(each) is Batch for each in gc.get_objects())


@pytest.mark.parametrize("how", ["finish", "requeue", "touch"])
async def test_settling_for_a_lost_connection_goes_nowhere(nsqd: ScriptedNsqd, how: str) -> None:
    recorder = Recorder(hold)
    consumer = consume(recorder, nsqd, max_in_flight=5)
    async with running(consumer):
        nsqd.publish(b"x")
        await elapse(0.01)
        nsqd.break_off()
        await elapse(20)
        before = len(nsqd.commands)
        getattr(recorder.batches[0], how)()
        await elapse(1)
        assert not any(text.startswith(("FIN", "REQ", "TOUCH")) for text in nsqd.commands[before:])
        assert (consumer.stats().finished, consumer.stats().requeued) == (0, 0)
        assert consumer.stats().in_flight == 0


async def test_what_is_forgotten_is_in_flight_no_more_without_a_command(nsqd: ScriptedNsqd) -> None:
    recorder = Recorder(hold)
    consumer = consume(recorder, nsqd, max_in_flight=10, reconnect_delay=8)
    async with running(consumer):
        nsqd.publish(*[b"x"] * 5)
        await elapse(1)
        sent = list(nsqd.commands)
        first, *_, last = recorder.batches
        first.forget()
        assert consumer.stats().in_flight == 5 - len(first)
        nsqd.break_off()
        await asyncio.sleep(0)
        last.forget(last)  # also of a connection that was lost
        assert last.is_settled
        await elapse(1)
        stats = consumer.stats()
        assert (stats.in_flight, stats.finished, stats.requeued) == (0, 0, 0)
        assert nsqd.commands == sent


async def test_what_nsqd_refuses_to_requeue_was_not_requeued(nsqd: ScriptedNsqd) -> None:
    async def act(batch: Batch) -> None:
        raise ValueError

    nsqd.refuses = lambda text: (
        f"E_REQ_FAILED REQ {1:016x} failed" if text.startswith("REQ 1") else None
    )
    consumer = consume(Recorder(act), nsqd, default_requeue_delay=100)
    async with running(consumer):
        nsqd.publish(b"x")
        await elapse(1)
        stats = consumer.stats()
        assert (stats.finished, stats.requeued, stats.too_late) == (0, 0, 1)


async def test_a_consumer_runs_once(nsqd: ScriptedNsqd) -> None:
    consumer = consume(Recorder(), nsqd)
    async with running(consumer):
        await elapse(1)
        with pytest.raises(RuntimeError, match="runs once"):
            await consumer.run()
