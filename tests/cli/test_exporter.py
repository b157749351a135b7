"""Scrapes that share polls, and what a snapshot becomes."""

import asyncio

from nsqtools.cli.commands.stats.exporter import Exporter, cluster_metrics
from nsqtools.cli.prometheus import render
from nsqtools.engine.cluster import Node, Snapshot
from nsqtools.errors import HTTPError
from nsqtools.names import Address
from nsqtools.net.http.replies import ChannelStats, NsqdStats, ProcessingLatency, TopicStats
from tests.support.clock import elapse, virtual
from tests.support.metrics import values

EMPTY = Snapshot(0.0, {}, {}, {})


class Cluster:
    """Counts its looks, which take a second."""

    looks = 0
    under_way = 0

    async def look(self) -> Snapshot:
        self.looks += 1
        self.under_way += 1
        assert self.under_way == 1
        try:
            await elapse(1)
        finally:
            self.under_way -= 1
        return EMPTY


@virtual
async def test_scrapes_of_one_time_share_a_poll_though_some_are_given_up() -> None:
    cluster = Cluster()
    exporter = Exporter(cluster.look)
    scrapes = [asyncio.ensure_future(exporter.collect())]
    await elapse(0.9)
    scrapes += [asyncio.ensure_future(exporter.collect()) for _ in range(5)]
    scrapes.pop(0).cancel()
    found = await asyncio.gather(*scrapes)
    assert cluster.looks == 1
    assert all(each is found[0] for each in found)
    assert exporter.status == "0 of 0 nsqds answering, 1 poll"
    await exporter.collect()
    assert (cluster.looks, exporter.status[-7:]) == (2, "2 polls")


CHANNEL = ChannelStats(
    "c", 5, 1, 2, 3, 40, 6, 7, 8, True, ProcessingLatency(9, ((0.5, 0.25), (1.0, 2.0)))
)
TOPIC = TopicStats("t", 1, 0, 41, False, (CHANNEL,), 99)
SNAPSHOT = Snapshot(
    0.0,
    {"a:1": NsqdStats("1.3.0", "NOK - full", 1700000000, (TOPIC,))},
    {"b:1": HTTPError("refused", Address("b", 1))},
    {"a:1": Node("a:1", "http://a:1"), "b:1": Node("b:1", "http://b:1")},
    {"l:1": None, "l:2": HTTPError("refused", Address("l", 2))},
)


def test_a_snapshot_is_told_in_full() -> None:
    told = values(render(cluster_metrics(SNAPSHOT))[0].decode())
    here = ("c", "a:1", "t")
    own = {key: value for key, value in told.items() if not key[0].startswith("process_")}
    assert own == {
        ("nsq_up", "a:1"): 1,
        ("nsq_up", "b:1"): 0,
        ("nsq_nsqlookupd_up", "l:1"): 1,
        ("nsq_nsqlookupd_up", "l:2"): 0,
        ("nsq_nsqd_info", "a:1", "1.3.0"): 1,
        ("nsq_nsqd_healthy", "a:1"): 0,
        ("nsq_nsqd_start_time_seconds", "a:1"): 1700000000,
        ("nsq_topic_depth", "a:1", "t"): 1,
        ("nsq_topic_backend_depth", "a:1", "t"): 0,
        ("nsq_topic_messages_total", "a:1", "t"): 41,
        ("nsq_topic_message_bytes_total", "a:1", "t"): 99,
        ("nsq_topic_paused", "a:1", "t"): 0,
        ("nsq_channel_depth", *here): 5,
        ("nsq_channel_backend_depth", *here): 1,
        ("nsq_channel_in_flight", *here): 2,
        ("nsq_channel_deferred", *here): 3,
        ("nsq_channel_messages_total", *here): 40,
        ("nsq_channel_requeued_total", *here): 6,
        ("nsq_channel_timed_out_total", *here): 7,
        ("nsq_channel_clients", *here): 8,
        ("nsq_channel_paused", *here): 1,
        ("nsq_channel_e2e_latency_seconds", "c", "a:1", "0.5", "t"): 0.25,
        ("nsq_channel_e2e_latency_seconds", "c", "a:1", "1", "t"): 2,
    }
