"""A count lets a number of messages be finished and no more, over scripted nsqds."""

import asyncio
from typing import Any

import pytest

from nsqtools.engine.handler import Batch
from nsqtools.engine.limit import MessageLimit
from nsqtools.engine.runner import Runner
from tests.support import wire
from tests.support.clock import elapse
from tests.support.gathering import make_runner
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running


def limited(count: int, recorder: Recorder, *nsqds: ScriptedNsqd, **options: Any) -> Runner:
    return make_runner(recorder, *nsqds, count=count, **{"max_in_flight": 10, **options})


@pytest.mark.parametrize(("count", "one_by_one"), [(1, False), (37, True)])
async def test_one_nsqd_delivers_exactly_the_number(
    nsqd: ScriptedNsqd, count: int, one_by_one: bool
) -> None:
    nsqd.one_by_one = one_by_one
    nsqd.publish(*[b"x"] * 100)
    recorder = Recorder()
    async with running(limited(count, recorder, nsqd)) as task:
        totals = (await task).totals
    assert [number for number, _ in recorder.seen] == list(range(1, count + 1))
    assert (totals.finished, recorder.closed) == (count, 1)
    assert nsqd.delivered == count
    assert (nsqd.depth, nsqd.in_flight) == (100 - count, 0)
    assert nsqd.commands[-1] == "end of stream"
    assert not any(text.startswith("REQ") for text in nsqd.commands)


async def test_what_is_delivered_beyond_goes_back_at_once(nsqd: ScriptedNsqd) -> None:
    recorder = Recorder()
    async with running(limited(3, recorder, nsqd)) as task:
        nsqd.send(b"".join(map(wire.message, range(1, 6))))
        await task
    assert recorder.seen == [(1, 1), (2, 1), (3, 1)]
    settled = [text for text in nsqd.commands if text.startswith(("FIN", "REQ"))]
    assert sorted(settled) == ["FIN 1", "FIN 2", "FIN 3", "REQ 4 0", "REQ 5 0"]


async def test_a_handler_may_watch_the_batches_of_a_run_with_a_count(nsqd: ScriptedNsqd) -> None:
    nsqd.publish(*[b"x"] * 5)
    heard: list[tuple[int, ...]] = []

    async def watch(batch: Batch) -> None:
        batch.watch(lambda *counts: heard.append(counts))

    async with running(limited(3, Recorder(watch), nsqd)) as task:
        assert (await task).reason == "count"
    assert sum(finished for finished, _ in heard) == 3


async def test_it_does_not_end_while_another_batch_may_still_fail(network: Network) -> None:
    slow, quick = network.nsqd("slow"), network.nsqd("quick")
    slow.publish(b"x")
    may_fail = asyncio.Event()
    limit = MessageLimit(2, max_in_flight=1)

    async def fail(batch: Batch) -> None:
        if len(recorder.batches) == 1:
            await may_fail.wait()
            raise ValueError

    recorder = Recorder(fail)
    options: dict[str, Any] = {"max_in_flight": 1, "default_requeue_delay": 1, "limit": limit}
    consumers = [consume(recorder, nsqd, **options) for nsqd in (slow, quick)]
    async with running(consumers[0]), running(consumers[1]):
        quick.publish(b"y")
        await elapse(1)
        assert (len(recorder.seen), limit.done.is_set()) == (2, False)
        may_fail.set()
        await limit.done.wait()
    assert len(recorder.seen) == 3


@pytest.mark.parametrize("last", [False, True])
async def test_what_nsqd_refuses_to_finish_does_not_count(nsqd: ScriptedNsqd, last: bool) -> None:
    """It has timed out, for example while the process was stopped."""
    late = "FIN 3" if last else "FIN 1"
    nsqd.refuses = lambda text: f"E_FIN_FAILED FIN {1:016x} failed" if text == late else None
    nsqd.publish(*[b"x"] * 10)
    recorder = Recorder()
    async with running(limited(3, recorder, nsqd, max_in_flight=1)) as task:
        outcome = await task
    finished = [text for text in nsqd.commands if text.startswith("FIN")]
    assert len(finished) == (3 if last else 4)
    assert (outcome.totals.finished, outcome.unfinished) == ((2, 1) if last else (3, 0))


async def test_a_message_that_was_given_up_was_never_counted(nsqd: ScriptedNsqd) -> None:
    nsqd.refuses = lambda text: f"E_FIN_FAILED FIN {9:016x} failed" if text == "FIN 9" else None
    recorder = Recorder()
    async with running(limited(2, recorder, nsqd, max_attempts=1)) as task:
        nsqd.send(wire.message(9, attempts=2))
        await elapse(1)
        nsqd.publish(*[b"x"] * 5)
        outcome = await task
    assert (outcome.totals.finished, outcome.unfinished) == (2, 0)
