"""Topics that come, go and come again, over a scripted nsqd in virtual time."""

from __future__ import annotations

import re

import pytest

from nsqtools.config import ConsumerConfig
from nsqtools.engine.membership import Subscription
from nsqtools.errors import ConfigError
from tests.support.clock import elapse, virtual
from tests.support.gathering import Gathering, consumers, refusing
from tests.support.scripted import Network, ScriptedNsqd

CONFIG = ConsumerConfig(max_in_flight=10)


def subscription(nsqd: ScriptedNsqd, topic: str = "t") -> Subscription:
    return Subscription(topic=topic, channel="c", nsqds=(nsqd.address,))


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
    topics = consumers(sink, CONFIG)
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


@pytest.mark.parametrize(("topics", "nsqds"), [(1, 1), (10, 0), (40, 1), (500, 3)])
def test_the_limit_that_is_advised_is_enough_and_not_much_too_high(topics: int, nsqds: int) -> None:
    def needed(limit: int) -> int:
        run = consumers(Gathering(), CONFIG, limit=limit, files=3)
        try:
            run.check([nsqds] * topics)
        except ConfigError as error:
            return int(re.findall(r"ulimit -n (\d+)", str(error))[0])
        return 0

    advised = needed(16)
    assert advised > topics * (3 + max(1, nsqds))
    assert needed(advised) == 0
    assert needed(advised - advised // 8) == advised


@virtual
async def test_a_topic_for_which_too_few_files_may_be_open_waits_for_one_to_go() -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    await sink.open()
    topics = consumers(sink, CONFIG, limit=32, files=3)  # 30 less 24 is one topic
    topics.add(subscription(nsqd))
    topics.add(subscription(nsqd, "more"))
    await elapse(1)
    assert sink.joined == ["t"]
    assert topics.unreached() == ["more"]
    assert len(nsqd.clients) == 1
    topics.drop("t")
    await elapse(60)
    assert sink.joined == ["t", "more"]
    assert topics.unreached() == []
    topics.stop()
    await topics.done()


@virtual
async def test_a_topic_that_more_nsqds_have_than_files_may_be_open_for_takes_none() -> None:
    network, sink = Network(), Gathering()
    nsqds = [network.nsqd(name) for name in "abcdefgh"]
    await sink.open()
    topics = consumers(sink, CONFIG, limit=32, files=3)
    topics.add(Subscription(topic="t", channel="c", nsqds=tuple(each.address for each in nsqds)))
    await elapse(1)
    assert topics.unreached() == ["t"]
    assert sink.joined == []
    topics.stop()
    await topics.done()
