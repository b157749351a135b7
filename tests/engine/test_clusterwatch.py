"""One watch for everybody who looks: rounds are shared, pictures follow, history stays small."""

import asyncio
import tracemalloc
from typing import Any

import pytest

from nsqtools.engine.cluster import Node, Snapshot
from nsqtools.engine.clusterwatch import ClusterWatch
from nsqtools.net.http.replies import ChannelStats, ClientStats, NsqdStats, TopicStats
from tests.support.clock import elapse, virtual

SAMPLE = 40
"""How many of 2,000 channels are measured, and with them as large a part of 5,000 clients."""
CLIENTS = 5000 * SAMPLE // 2000


class Looks:
    """A cluster whose looks take some seconds."""

    def __init__(self, snapshot: Snapshot, takes: float = 1.0) -> None:
        self.snapshot = snapshot
        self.takes = takes
        self.count = 0

    async def look(self, *_: object, **__: object) -> Snapshot:
        self.count += 1
        found = self.snapshot
        await elapse(self.takes)
        return found

    async def again(self, *_: object) -> Snapshot:
        return await self.look()

    async def unheld(self, _: Snapshot) -> list[str]:
        return []


def snapshot_of(at: float, channels: int, grown: int = 0, clients: int = 0) -> Snapshot:
    """Three nsqds with so many topics, each with a channel, half of them busy.

    The clients are on one of the channels, a third on each nsqd.
    """
    topics = []
    for n in range(channels):
        messages = 100 + grown * (n % 2)
        connected = tuple(
            ClientStats(f"client{each}", remote_address=f"10.0.0.1:{each}", finish_count=grown)
            for each in range(0 if n else clients // 3)
        )
        channel = ChannelStats(
            "c", grown % 7, message_count=messages, requeue_count=grown, clients=connected
        )
        topics.append(TopicStats(f"t{n}", 0, message_count=messages, channels=(channel,)))
    names = [f"host{n}:4151" for n in range(3)]
    stats = {name: NsqdStats("1.3.0", "OK", 1, tuple(topics)) for name in names}
    nodes = {name: Node(name, f"http://{name}") for name in names}
    return Snapshot(at, stats, {}, nodes)


def watch_of(looks: Looks) -> ClusterWatch:
    cluster: Any = looks
    return ClusterWatch(cluster, 5.0)


@virtual
async def test_many_who_look_at_a_topic_share_one_round_of_requests() -> None:
    looks = Looks(snapshot_of(0.0, 2))
    watch = watch_of(looks)
    await watch.poll()
    looks.count = 0
    found = await asyncio.gather(*(watch.detail("t1") for _ in range(100)))
    assert looks.count == 1
    assert all(each.snapshot is looks.snapshot for each in found)
    given_up = asyncio.ensure_future(watch.detail("t0"))
    await elapse(0.5)
    given_up.cancel()
    await watch.detail("t0")
    assert looks.count == 2


@virtual
async def test_after_a_change_nobody_sees_what_was_asked_before() -> None:
    looks = Looks(snapshot_of(0.0, 2))
    watch = watch_of(looks)
    await watch.poll()
    await watch.detail("t0")
    looks.takes = 9.0
    looking = asyncio.ensure_future(watch.detail("t1"))
    await elapse(0.5)
    looks.takes = 1.0
    polling = asyncio.ensure_future(watch.poll())
    await elapse(0.5)
    looks.snapshot = snapshot_of(1.0, 2)
    await watch.refresh()
    assert watch.picture.snapshot is looks.snapshot
    for topic in ("t0", "t1"):
        assert (await watch.detail(topic)).snapshot is looks.snapshot
    await asyncio.gather(polling, looking)


@virtual
async def test_everybody_gets_each_picture_until_the_end() -> None:
    looks = Looks(snapshot_of(0.0, 2, grown=3))
    watch = watch_of(looks)
    await watch.poll()
    running = asyncio.ensure_future(watch.run())
    waiting = [asyncio.ensure_future(watch.next_picture()) for _ in range(3)]
    assert await asyncio.gather(*waiting) == [True] * 3
    first = watch.picture.topics[0]
    assert (first.name, first.depth, first.oldest, first.clients) == ("t0", 9, None, 0)
    assert await watch.next_picture()
    waiting = [asyncio.ensure_future(watch.next_picture())]
    await elapse(0)
    watch.stop()
    assert await waiting[0] is False
    await running
    await watch.close()


@pytest.mark.full("an hour of 2,000 channels on three nsqds")
@virtual
async def test_an_hour_of_2000_channels_with_5000_clients_takes_less_than_100_mb() -> None:
    looks = Looks(snapshot_of(0.0, SAMPLE), takes=0)
    watch = watch_of(looks)

    tracemalloc.start()
    try:
        for n in range(181):
            looks.snapshot = snapshot_of(20.0 * n, SAMPLE, n)
            await watch.poll()
            looks.snapshot = snapshot_of(20.0 * n, 1, n, CLIENTS)
            consumers = (await watch.detail("t0")).consumers
            await elapse(20.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(watch.history.total([("t1", "c")], "ingress").times) == 180
    assert [each.finish_rate for each in consumers] == [0.05] * len(consumers)
    assert len(consumers) == CLIENTS // 3 * 3
    assert held * 2000 / SAMPLE < 100e6  # beside some 50 MB of the program itself
