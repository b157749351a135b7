"""RDY on the wire: who gets how much, when it changes, and what goes out before what."""

import asyncio
import itertools

import pytest

from nsqtools.engine.handler import Batch
from nsqtools.errors import ConfigError
from tests.support.clock import elapse
from tests.support.scripted import Network, Recorder, ScriptedNsqd, consume, running


async def warm(*nsqds: ScriptedNsqd) -> None:
    """A first message over each connection, after which it takes its full share."""
    for nsqd in nsqds:
        nsqd.publish(b"first")
        await elapse(0.01)


async def test_max_in_flight_of_0_pauses_and_another_value_resumes(nsqd: ScriptedNsqd) -> None:
    consumer = consume(Recorder(), nsqd, max_in_flight=2500)
    consumer.set_max_in_flight(5)  # also before it runs
    async with running(consumer):
        await warm(nsqd)
        consumer.set_max_in_flight(0)
        await elapse(0.01)
        nsqd.publish(b"2")
        await elapse(100)
        assert nsqd.commands == ["RDY 1", "RDY 5", "FIN 1", "RDY 0"]
        consumer.set_max_in_flight(3)
        await elapse(0.01)
        assert nsqd.commands[4:] == ["RDY 3", "FIN 2"]
        for wrong in (-3, "x"):
            with pytest.raises(ConfigError, match="max_in_flight"):
                consumer.set_max_in_flight(wrong)  # type: ignore[arg-type]
        assert nsqd.commands[6:] == []


@pytest.mark.parametrize(("is_busy", "turn"), [(False, 10), (True, 30)])
async def test_with_fewer_slots_than_nsqds_each_has_its_turn(
    network: Network, is_busy: bool, turn: int
) -> None:
    """Which ends early if nothing comes."""
    nsqds = [network.nsqd(name) for name in "abcd"]
    for nsqd in nsqds:
        nsqd.old = nsqd.one_by_one = is_busy
    async with running(consume(Recorder(), *nsqds, max_in_flight=1)):
        holders = []
        for _ in range(16 * turn):
            await elapse(0.5)
            (holder,) = [nsqd for nsqd in nsqds if nsqd.ready]
            holders.append(holder.address)
            if is_busy:
                holder.publish(b"x")
            await elapse(0.5)
    turns = [(holder, len(list(seconds))) for holder, seconds in itertools.groupby(holders)][:-1]
    assert len({holder for holder, _ in turns[:4]}) == 4
    assert [holder for holder, _ in turns[4:]] == [holder for holder, _ in turns[:-4]]
    assert {seconds for _, seconds in turns} <= {turn, turn + 1}


async def test_a_handler_that_stalls_stops_rdy_keeps_the_connection_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd = Network().nsqd(msg_timeout=60_000)
    nsqd.one_by_one = True

    async def stall(batch: Batch) -> None:
        if batch[0].body == b"slow" and batch[0].attempts == 1:
            await elapse(1000)

    recorder = Recorder(stall)
    consumer = consume(recorder, nsqd, max_in_flight=5, heartbeat_interval=10)
    async with running(consumer):
        await warm(nsqd)
        nsqd.publish(b"slow", *[b"%d" % n for n in range(20)])
        await elapse(14)
        assert nsqd.ready == 5
        await elapse(9)  # a quarter of msg_timeout, and the next look
        assert nsqd.ready == 0
        await elapse(900)  # what was delivered times out, and is not delivered here again
        assert nsqd.ready == 0
        assert nsqd.delivered == 6
        assert consumer.stats().connections == 1
        await elapse(1000.1 - asyncio.get_running_loop().time())
        assert nsqd.ready == 5  # as soon as the handler has caught up
        assert nsqd.depth == nsqd.in_flight == 0
    assert caplog.text.count("the handler is slow") == 1
    assert not any("dropped" in text for _, text in nsqd.log)
    assert sum(text == "NOP" for _, text in nsqd.log) == 100
    assert {number for number, _ in recorder.seen} == set(range(1, 23))


async def test_big_bodies_lower_rdy_and_small_ones_raise_it_again(network: Network) -> None:
    nsqd = network.nsqd()
    consumer = consume(Recorder(), nsqd, max_in_flight=100, max_in_flight_bytes=100_000)
    async with running(consumer):
        await warm(nsqd)
        assert nsqd.ready == 100
        for _ in range(200):
            nsqd.publish(*[b"x" * 10_000] * 20)
            await elapse(0.01)
        assert 8 <= nsqd.ready <= 13
        for _ in range(600):
            nsqd.publish(*[b"x"] * 20)
            await elapse(0.01)
        assert nsqd.ready == 100


async def test_an_nsqd_that_counts_rdy_down_gets_it_renewed_in_time(nsqd: ScriptedNsqd) -> None:
    nsqd.old = nsqd.one_by_one = True
    async with running(consume(Recorder(), nsqd, max_in_flight=8)):
        for _ in range(100):
            nsqd.publish(b"x")
            await elapse(0.1)
            assert nsqd.depth == 0
            assert nsqd.ready >= 1
        renewed = [text for text in nsqd.commands if text == "RDY 8"]
        assert 10 <= len(renewed) <= 20


async def test_starvation_shows_in_the_batch_and_in_the_consumer(nsqd: ScriptedNsqd) -> None:
    async def hold(batch: Batch) -> None:
        batch.hold()

    recorder = Recorder(hold)
    consumer = consume(recorder, nsqd, max_in_flight=4)
    async with running(consumer):
        await warm(nsqd)
        assert not consumer.is_starved()
        nsqd.publish(b"2")
        await elapse(0.01)
        assert not recorder.batches[-1].starved
        nsqd.publish(b"3", b"4", b"5")
        await elapse(0.01)
        assert recorder.batches[-1].starved
        assert consumer.is_starved()
        recorder.batches[0].finish()
        assert not consumer.is_starved()
        await elapse(0.01)
        assert consumer.is_starved()  # by the fifth message, which has taken the slot
