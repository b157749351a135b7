"""Backoff on the wire, after go-nsq's ``mock_test.go``.

One difference to go-nsq runs through all transcripts: a new connection starts with RDY 1 and gets
its full share with its first message.
"""

import asyncio
from typing import Any

import pytest

from tests.support.clock import elapse, virtual
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running


async def feed(nsqd: ScriptedNsqd, *bodies: bytes) -> None:
    """One message after the other, each after the last was settled."""
    for body in bodies:
        nsqd.publish(body)
        await elapse(0.01)


@virtual
async def test_a_failure_stops_all_and_recovery_takes_a_success_per_level() -> None:
    nsqd = Network().nsqd()
    recorder = Recorder()
    async with running(consume(recorder, nsqd, max_in_flight=5, default_requeue_delay=600)):
        await feed(nsqd, b"1", b"2", b"3", b"bad")
        start = nsqd.log[-1][0]
        nsqd.publish(b"bad", b"6", b"7")
        await elapse(60)
        transcript = nsqd.commands
        times = [round(at - start) for at, text in nsqd.log if text == "RDY 1"][1:]
    assert transcript == [
        *("RDY 1", "RDY 5", "FIN 1", "FIN 2", "FIN 3"),
        *("RDY 0", "REQ 4 600000"),
        *("RDY 1", "RDY 0", "REQ 5 600000"),
        *("RDY 1", "RDY 0", "FIN 6"),
        *("RDY 1", "RDY 5", "FIN 7"),
    ]
    assert times == [2, 2 + 4, 2 + 4 + 2]


@virtual
async def test_requeueing_without_backoff_never_lowers_rdy() -> None:
    nsqd = Network().nsqd()

    async def requeue(batch: object) -> None:
        recorder.batches[-1].requeue(backoff=False)

    recorder = Recorder(requeue)
    async with running(consume(recorder, nsqd, max_in_flight=5, default_requeue_delay=600)):
        await feed(nsqd, b"1", b"2", b"3")
        assert nsqd.commands == [
            "RDY 1",
            "RDY 5",
            "REQ 1 600000",
            "REQ 2 600000",
            "REQ 3 600000",
        ]


@virtual
async def test_requeueing_without_backoff_while_probing_starts_another_wait() -> None:
    nsqd = Network().nsqd()

    async def act(batch: object) -> None:
        if len(recorder.batches) == 1:
            raise ValueError
        if len(recorder.batches) == 2:
            recorder.batches[-1].requeue(backoff=False)

    recorder = Recorder(act)
    async with running(consume(recorder, nsqd, max_in_flight=5, default_requeue_delay=600)):
        await feed(nsqd, b"1", b"2", b"3")
        await elapse(10)
        assert nsqd.commands == [
            *("RDY 1", "RDY 5", "RDY 0", "REQ 1 600000"),
            *("RDY 1", "RDY 0", "REQ 2 600000"),
            *("RDY 1", "RDY 5", "FIN 3"),
        ]


@virtual
async def test_a_connection_lost_in_backoff_probes_when_it_is_back() -> None:
    nsqd = Network().nsqd()
    recorder = Recorder()
    options: dict[str, Any] = {
        "max_in_flight": 5,
        "reconnect_delay": 1.0,
        "default_requeue_delay": 600,
    }
    async with running(consume(recorder, nsqd, **options)):
        await feed(nsqd, b"1", b"bad")
        assert nsqd.commands[-2:] == ["RDY 0", "REQ 2 600000"]
        nsqd.break_off()
        nsqd.publish(b"3", b"4")
        await elapse(10)
        assert nsqd.commands[-4:] == ["RDY 1", "RDY 5", "FIN 3", "FIN 4"]


@pytest.mark.parametrize("state", ["waiting", "probing", "probe in hand"])
@virtual
async def test_losing_the_probing_connection_never_leaves_backoff_stuck(state: str) -> None:
    network = Network()
    first, second = network.nsqd("first"), network.nsqd("second")
    network.max_ready = 10
    gate = asyncio.Event()

    async def act(batch: object) -> None:
        if len(recorder.batches) == 3:
            raise ValueError
        if len(recorder.batches) == 4 and state == "probe in hand":
            await gate.wait()

    recorder = Recorder(act)
    options: dict[str, Any] = {
        "max_in_flight": 10,
        "reconnect_delay": 20.0,
        "default_requeue_delay": 600,
    }
    async with running(consume(recorder, first, second, **options)):
        first.publish(b"1")
        second.publish(b"1")
        await elapse(0.01)
        assert (first.ready, second.ready) == (5, 5)
        first.publish(b"2")
        await elapse(1)
        assert (first.ready, second.ready) == (0, 0)
        prober = first
        if state != "waiting":
            await elapse(2)
            prober = first if first.ready else second
            assert (first.ready + second.ready) == 1
        if state == "probe in hand":
            prober.publish(b"3")
            await elapse(0.1)
            assert prober.in_flight == 1
        prober.break_off()
        other = second if prober is first else first
        await elapse(0.1)
        gate.set()
        other.publish(b"4", b"5", b"6")
        await elapse(12)  # another may have to take the probe over, at rotation at latest
        assert other.ready == 10
        assert other.depth == other.in_flight == 0
        prober.publish(b"7")
        await elapse(60)
        assert prober.in_flight == prober.depth == 0
        assert (first.ready, second.ready) == (5, 5)


@virtual
async def test_losing_every_connection_in_backoff_never_leaves_it_stuck() -> None:
    nsqd = Network().nsqd()
    recorder = Recorder()
    options: dict[str, Any] = {
        "max_in_flight": 5,
        "reconnect_delay": 8.0,
        "default_requeue_delay": 600,
    }
    async with running(consume(recorder, nsqd, **options)):
        await feed(nsqd, b"1", b"bad")
        nsqd.down = True
        nsqd.break_off()
        await elapse(100)
        nsqd.down = False
        nsqd.publish(b"3", b"4")
        await elapse(130)
        assert nsqd.ready == 5
        assert recorder.seen == [(1, 1), (2, 1), (3, 1), (4, 1)]


@virtual
async def test_one_connection_of_many_probes_and_then_all_get_their_share() -> None:
    network = Network()
    nsqds = [network.nsqd(name) for name in ("a", "b", "c")]
    network.max_ready = 9
    recorder = Recorder()
    async with running(consume(recorder, *nsqds, max_in_flight=9, default_requeue_delay=600)):
        for nsqd in nsqds:
            await feed(nsqd, b"1")
        assert [nsqd.ready for nsqd in nsqds] == [3, 3, 3]
        await feed(nsqds[1], b"bad")
        assert [nsqd.ready for nsqd in nsqds] == [0, 0, 0]
        await elapse(2.1)
        assert sorted(nsqd.ready for nsqd in nsqds) == [0, 0, 1]
        for nsqd in nsqds:
            nsqd.publish(b"2")
        await elapse(1)
        assert [nsqd.ready for nsqd in nsqds] == [3, 3, 3]


@virtual
async def test_without_a_backoff_duration_failures_only_requeue() -> None:
    nsqd = Network().nsqd()
    recorder = Recorder()
    options: dict[str, Any] = {
        "max_in_flight": 5,
        "max_backoff_duration": 0,
        "default_requeue_delay": 1,
    }
    async with running(consume(recorder, nsqd, **options)):
        await feed(nsqd, b"bad", b"bad")
        assert nsqd.commands == ["RDY 1", "RDY 5", "REQ 1 1000", "REQ 2 1000"]


@pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH"])
@virtual
async def test_a_command_that_came_too_late_is_counted_and_never_causes_backoff(
    command: str,
) -> None:
    nsqd = Network().nsqd()
    nsqd.refuses = lambda text: f"E_{command}_FAILED x" if text.startswith(command) else None

    async def act(batch: object) -> None:
        batch = recorder.batches[-1]
        batch.touch()
        if command == "REQ":
            batch.requeue(backoff=False)

    recorder = Recorder(act)
    consumer = consume(recorder, nsqd, max_in_flight=5)
    async with running(consumer):
        await feed(nsqd, b"1", b"2", b"3")
        assert "RDY 0" not in nsqd.commands
        assert consumer.stats().too_late == 3
        assert consumer.stats().connections == 1
