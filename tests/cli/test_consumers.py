"""Topics that come, go and come again, over a scripted nsqd in virtual time."""

from __future__ import annotations

import pytest

from nsqtools.cli.consumers import Consumers
from nsqtools.config import ConsumerConfig
from nsqtools.engine.membership import Subscription
from tests.cli.gathering import Gathering, refusing
from tests.support.clock import elapse, virtual
from tests.support.scripted import Network, ScriptedNsqd


def consumers(sink: Gathering) -> Consumers:
    return Consumers(
        sink,
        ConsumerConfig(max_in_flight=10),
        count=0,
        retry=60.0,
        all_fail=False,
        on_reached=bool,
        silence=None,
    )


def subscription(nsqd: ScriptedNsqd) -> Subscription:
    return Subscription(topic="t", channel="c", nsqds=(nsqd.address,))


@pytest.mark.parametrize("consumed_before", [True, False])
@virtual
async def test_a_topic_that_appears_again_while_it_is_drained_is_consumed_after_that(
    consumed_before: bool,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    await sink.open()
    sink.draining = lambda: elapse(20)
    if not consumed_before:
        nsqd.refuses = refusing("t")
    topics = consumers(sink)
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
    assert topics.topics == 1
    sink.draining = None
    topics.stop()
    await topics.done()
    assert not topics.errors
