"""From nsqd to nsqd in virtual time: a real consumer, the sink, a real producer, and faults."""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from nsqtools.config import ConsumerConfig, ProducerConfig
from nsqtools.engine.producer import Producer
from nsqtools.engine.runner import Runner
from nsqtools.sinks.relay.filter import Filter
from nsqtools.sinks.relay.relaysink import RelaySink
from tests.support.clock import elapse, virtual
from tests.support.delivering import Letters
from tests.support.scripted import Network, ScriptedNsqd, flatten, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def relay(
    source: ScriptedNsqd, destination: ScriptedNsqd, *, publish_timeout: float = 60.0
) -> AsyncIterator[RelaySink]:
    config = ProducerConfig(publish_timeout=publish_timeout)
    letters = Letters()
    letters.is_lossy = True
    producer = Producer([destination.address], config, rng=Random(1))
    sink = RelaySink(producer, {"t": "T"}, Filter(), letters)
    consuming = ConsumerConfig(max_attempts=0, max_in_flight=100)
    runner = Runner(["t"], "c", sink, consuming, nsqds=[source.address], rng=Random(1))
    async with running(runner):
        yield sink


def nsqds(**more: Any) -> tuple[ScriptedNsqd, ScriptedNsqd]:
    """Source and destination."""
    network = Network()
    return network.nsqd("source", **more), network.nsqd("destination", **more)


def numbered(count: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(count)]


def arrived(nsqd: ScriptedNsqd) -> Counter[bytes]:
    return Counter(flatten(nsqd.published))


@virtual
class TestRelay:
    async def test_a_destination_that_is_away_for_an_hour_loses_nothing(self) -> None:
        source, destination = nsqds()
        async with relay(source, destination) as sink:
            source.publish(*numbered(500))
            await elapse(1)
            destination.down = True
            destination.break_off()
            source.publish(*numbered(1000)[500:])
            await elapse(3600)
            assert source.depth + source.in_flight > 0
            destination.down = False
            await elapse(2000)
        assert arrived(destination) == Counter(numbered(1000))
        assert (source.depth, source.in_flight) == (0, 0)
        assert sink.counts["t"].requeued > 0

    async def test_messages_that_wait_for_a_destination_are_not_delivered_twice(self) -> None:
        source, destination = nsqds(msg_timeout=10_000)
        async with relay(source, destination, publish_timeout=600.0):
            destination.down = True
            destination.break_off()
            source.publish(*numbered(100))
            await elapse(500)
            destination.down = False
            await elapse(20)
        assert source.delivered == 100
        assert arrived(destination) == Counter(numbered(100))
