"""Topics that come, go and come again, over a scripted nsqd in virtual time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock

import pytest

from nsqtools.config import ConsumerConfig
from nsqtools.engine.connector import Subscription
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.subscriptions import Subscriptions
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, refusing
from tests.support.scripted import Network, ScriptedNsqd, undisturbed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TAKEN = ("received", "received_bytes", "finished")
HELD = ("in_flight", "connections", "connected")


@contextlib.asynccontextmanager
async def subscribed(sink: Gathering, **config: object) -> AsyncIterator[Subscriptions]:
    """Topics that are tried again every minute; no error ends them."""
    errors: list[BaseException] = []
    usual = ConsumerConfig(max_in_flight=10, reconnect_delay=1.0)
    async with undisturbed():
        await sink.open()
        chosen = usual.with_values(**config)
        topics = Subscriptions(
            sink,
            lambda topic, handler, reached: Consumer(topic, handler, chosen, on_reached=reached),
            max_in_flight=chosen.max_in_flight,
            retry=60.0,
            all_fail=False,
            on_reached=bool,
            on_error=errors.append,
            exists=AsyncMock(return_value=True),
        )
        yield topics
        await topics.stop()
    assert not errors


def subscription(*nsqds: ScriptedNsqd, topic: str = "t") -> Subscription:
    return Subscription(topic=topic, channel="c", nsqds=tuple(nsqd.address for nsqd in nsqds))


def counted(topics: Subscriptions, *names: str) -> list[int]:
    return [getattr(topics.by_topic()["t"], name) for name in names]


@pytest.mark.parametrize("consumed_before", [True, False])
@virtual
async def test_a_topic_that_appears_again_while_it_is_drained_is_consumed_after_that(
    consumed_before: bool,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.draining = lambda: elapse(20)
    if not consumed_before:
        nsqd.refuses = refusing("t")
    async with subscribed(sink) as topics:
        topics.add(subscription(nsqd))
        await elapse(1)
        topics.drop("t")
        await elapse(0.5)
        assert sink.said[-1] == "drain t"
        topics.add(subscription(nsqd))
        nsqd.refuses = lambda _: None
        nsqd.publish(b"again")
        await elapse(25)
        assert sink.bodies == [b"again"]
        assert len(topics) == 1
        sink.draining = None


@virtual
async def test_counters_outlive_connections() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    async with subscribed(sink) as topics:
        topics.add(subscription(nsqd))
        await elapse(0.1)
        nsqd.publish(b"1", b"2")
        await elapse(0.1)
        nsqd.break_off()
        await elapse(0.1)
        assert counted(topics, *TAKEN, *HELD) == [2, 2, 0, 0, 0, 1]
        await elapse(10)
        nsqd.publish(b"3")
        await elapse(0.1)
        sink.flush()
        assert counted(topics, *TAKEN, *HELD) == [3, 3, 1, 0, 1, 2]


@virtual
async def test_counters_of_a_dropped_topic_stay_and_go_on_when_it_comes_back() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    async with subscribed(sink) as topics:
        topics.add(subscription(nsqd))
        await elapse(0.1)
        nsqd.publish(b"1", b"2")
        await elapse(0.1)
        topics.drop("t")
        await elapse(1)
        assert len(topics) == 0
        assert counted(topics, *TAKEN, *HELD) == [2, 2, 2, 0, 0, 1]
        topics.add(subscription(nsqd))
        await elapse(0.1)
        nsqd.publish(b"3")
        await elapse(0.1)
        assert counted(topics, *TAKEN, *HELD) == [3, 3, 2, 1, 1, 2]
        assert topics.stats().received == 3
        await topics.stop()
        assert counted(topics, *TAKEN, *HELD) == [3, 3, 3, 0, 0, 2]


@virtual
async def test_failures_show_as_backoff_and_as_requeued_messages() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.failing_flushes = 2
    async with subscribed(sink, backoff_multiplier=1.0) as topics:
        topics.add(subscription(nsqd))
        await elapse(0.1)
        nsqd.publish(b"1", b"2")
        await elapse(0.1)
        assert counted(topics, "backoff_level") == [0]
        sink.flush()
        assert counted(topics, "backoff_level", "requeued") == [1, 2]
        await topics.stop()
        assert counted(topics, "backoff_level") == [0]
