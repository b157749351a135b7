"""What a sink forgets, over a scripted nsqd: it is settled here, and nsqd hears nothing."""

import asyncio

from nsqtools.engine.handler import Batch
from tests.support.clock import elapse, virtual
from tests.support.scripted import Network, Recorder, consume, running


@virtual
async def test_what_is_forgotten_is_in_flight_no_more_and_nothing_is_sent() -> None:
    nsqd = Network().nsqd()

    async def act(batch: Batch) -> None:
        batch.hold()
        held.append(batch)

    held: list[Batch] = []
    consumer = consume(Recorder(act), nsqd, max_in_flight=10)
    async with running(consumer) as task:
        nsqd.publish(*[b"x"] * 5)
        await elapse(1)
        assert consumer.stats().in_flight == 5
        sent = list(nsqd.commands)
        first, *rest = held
        first.forget()
        assert consumer.stats().in_flight == 5 - len(first)
        first.forget()
        for batch in rest:
            batch.forget(batch)
        await elapse(1)
        stats = consumer.stats()
        assert (stats.in_flight, stats.finished, stats.requeued) == (0, 0, 0)
        assert nsqd.commands == sent
        consumer.stop()
        await task


@virtual
async def test_what_a_lost_connection_delivered_can_be_forgotten() -> None:
    nsqd = Network().nsqd()

    async def act(batch: Batch) -> None:
        batch.hold()
        held.append(batch)

    held: list[Batch] = []
    consumer = consume(Recorder(act), nsqd, max_in_flight=10)
    async with running(consumer):
        nsqd.publish(b"x")
        await elapse(1)
        nsqd.break_off()
        await asyncio.sleep(0)
        batch = held[0]
        batch.forget()
        assert batch.is_settled
        assert consumer.stats().in_flight == 0
