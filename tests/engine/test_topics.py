"""Topics of a pattern that come, go and come again, over a scripted nsqd in virtual time."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine import lookup
from nsqtools.engine.runner import Runner
from nsqtools.policy.topics import Change
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, refusing
from tests.support.scripted import Network, ScriptedNsqd, undisturbed

TAKEN = ("received", "received_bytes", "finished")
HELD = ("in_flight", "connections", "connected")


class Listing:
    """A run of all topics, of which the test says when nsqlookupd lists them."""

    follow: Callable[[Change], object]

    def __init__(self, sink: Gathering, config: ConsumerConfig) -> None:
        self.runner = Runner(re.compile("."), "c", sink, config, lookupds=["lookupd:4161"])

    def add(self) -> None:
        self.follow(Change(appeared=("t",)))

    def drop(self) -> None:
        self.follow(Change(disappeared=("t",)))

    def counted(self, *names: str) -> list[int]:
        return [getattr(self.runner.by_topic()["t"], name) for name in names]


@contextlib.asynccontextmanager
async def listing(sink: Gathering, nsqd: ScriptedNsqd, **config: Any) -> AsyncIterator[Listing]:
    """The topic is listed at first."""

    async def find(*_: object) -> list[object]:
        return [nsqd.address]

    async def look(_: object, follow: Callable[[Change], object], **__: object) -> None:
        topics.follow = follow
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "producers_at", find)
        patch.setattr(lookup.TopicFinder, "look", look)
        topics = Listing(sink, ConsumerConfig(max_in_flight=10, reconnect_delay=1.0, **config))
        async with undisturbed():
            run = asyncio.create_task(topics.runner.run())
            await elapse(0.1)
            topics.add()
            await elapse(0.1)
            yield topics
            topics.runner.stop()
            await run


@pytest.mark.parametrize("consumed_before", [True, False])
@virtual
async def test_a_topic_that_appears_again_while_it_is_drained_is_consumed_after_that(
    consumed_before: bool,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.draining = lambda: elapse(20)
    if not consumed_before:
        nsqd.refuses = refusing("t")
    async with listing(sink, nsqd) as topics:
        topics.drop()
        await elapse(0.5)
        assert sink.said[-1] == "drain t"
        topics.add()
        nsqd.refuses = lambda _: None
        nsqd.publish(b"again")
        await elapse(25)
        assert sink.bodies == [b"again"]
        assert topics.runner.topic_count == 1
        sink.draining = None


@virtual
async def test_counters_outlive_connections_and_go_on_when_a_dropped_topic_comes_back() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    async with listing(sink, nsqd) as topics:
        nsqd.publish(b"1", b"2")
        await elapse(0.1)
        nsqd.break_off()
        await elapse(0.1)
        assert topics.counted(*TAKEN, *HELD) == [2, 2, 0, 0, 0, 1]
        await elapse(10)
        topics.drop()
        await elapse(1)
        assert topics.runner.topic_count == 0
        assert topics.counted(*TAKEN, *HELD) == [2, 2, 0, 0, 0, 2]
        topics.add()
        await elapse(0.1)
        nsqd.publish(b"3")
        await elapse(0.1)
        assert topics.counted(*TAKEN, *HELD) == [3, 3, 0, 1, 1, 3]
        assert topics.runner.stats().received == 3


@virtual
async def test_failures_show_as_backoff_and_as_requeued_messages() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.failing_flushes = 2
    async with listing(sink, nsqd, backoff_multiplier=1.0) as topics:
        nsqd.publish(b"1", b"2")
        await elapse(0.1)
        assert topics.counted("backoff_level") == [0]
        sink.flush()
        assert topics.counted("backoff_level", "requeued") == [1, 2]
        topics.drop()
        await elapse(1)
        assert topics.counted("backoff_level") == [0]
