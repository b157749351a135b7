"""``nsqtools stats --serve``: a Prometheus exporter for all nsqds of a cluster."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from nsqtools.cli.remotes import open_cluster
from nsqtools.cli.service import supervised
from nsqtools.config.units import counted
from nsqtools.engine.clusterstats import measured, topics_of
from nsqtools.metrics import Metric, Sample, of_fields
from nsqtools.names import listening_address
from nsqtools.net.systemd import Notifier
from nsqtools.tasks import SharedCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from nsqtools.config.admin import ClusterOptions
    from nsqtools.config.stats import StatsOptions
    from nsqtools.engine.cluster import Snapshot
    from nsqtools.net.http.replies import ChannelStats, TopicStats


_OF_TOPICS = (
    ("depth", "depth", "Messages that no channel has received yet."),
    ("backend_depth", "backend_depth", "Messages of this depth that are on disk."),
    ("message_count", "messages_total", "Messages published."),
    ("message_bytes", "message_bytes_total", "Bytes of the published bodies."),
    ("paused", "paused", "Whether the topic is paused: 1 or 0."),
)
_OF_CHANNELS = (
    ("depth", "depth", "Messages waiting for a consumer."),
    ("backend_depth", "backend_depth", "Messages of this depth that are on disk."),
    ("in_flight", "in_flight", "Messages in flight."),
    ("deferred", "deferred", "Deferred messages."),
    ("message_count", "messages_total", "Messages received."),
    ("requeue_count", "requeued_total", "Messages requeued."),
    ("timeout_count", "timed_out_total", "Messages timed out."),
    ("client_count", "clients", "Connections of consumers."),
    ("paused", "paused", "Whether the channel is paused: 1 or 0."),
)
_LATENCY = "end-to-end processing latency, from publishing to FIN, over nsqd's window of time."


def cluster_metrics(snapshot: Snapshot) -> list[Metric]:
    """All metrics of a snapshot; metrics of topics and channels have a label for their nsqd."""
    topics = [({"topic": topic.name, "nsqd": node}, topic) for node, topic in topics_of(snapshot)]
    channels = [
        ({"topic": labels["topic"], "channel": channel.name, "nsqd": labels["nsqd"]}, channel)
        for labels, topic in topics
        for channel in topic.channels
    ]
    return [
        *_of_servers(snapshot),
        *of_fields("nsq_topic_", _OF_TOPICS, topics),
        _latency("nsq_topic_e2e_latency_seconds", f"A topic's {_LATENCY}", topics),
        *of_fields("nsq_channel_", _OF_CHANNELS, channels),
        _latency("nsq_channel_e2e_latency_seconds", f"A channel's {_LATENCY}", channels),
    ]


def _of_servers(snapshot: Snapshot) -> Iterator[Metric]:
    answers, lookupds = snapshot.stats.items(), snapshot.lookupds.items()
    up = [({"nsqd": name}, name in snapshot.stats) for name in snapshot.nodes]
    lookupds_up = [({"nsqlookupd": name}, error is None) for name, error in lookupds]
    info = [({"nsqd": name, "version": each.version}, 1) for name, each in answers]
    healthy = [({"nsqd": name}, each.health in ("", "OK")) for name, each in answers]
    started = [({"nsqd": name}, each.start_time) for name, each in answers]
    for name, text, found in (
        ("nsq_up", "Whether an nsqd answers: 1 or 0.", up),
        ("nsq_nsqlookupd_up", "Whether an nsqlookupd answers: 1 or 0.", lookupds_up),
        ("nsq_nsqd_info", "The version of an nsqd.", info),
        ("nsq_nsqd_healthy", "Whether an nsqd reports itself healthy: 1 or 0.", healthy),
        ("nsq_nsqd_start_time_seconds", "Start time of an nsqd, since the epoch.", started),
    ):
        yield Metric(name, "gauge", text, [Sample(labels, int(value)) for labels, value in found])


def _latency(
    name: str, text: str, found: Iterable[tuple[Mapping[str, str], TopicStats | ChannelStats]]
) -> Metric:
    samples = [
        Sample({**labels, "quantile": f"{quantile:g}"}, seconds)
        for labels, each in found
        for quantile, seconds in measured(each)
        if math.isfinite(seconds)
    ]
    return Metric(name, "summary", text, samples)


class Exporter:
    """Polls the cluster for each scrape; scrapes during a poll share its result."""

    def __init__(self, look: Callable[[], Awaitable[Snapshot]]) -> None:
        self._look = look
        self._polls = 0
        self.collect = SharedCall(self._poll)
        """Returns the current metrics."""
        self.status = "not scraped yet"
        """One line about the last poll."""

    async def _poll(self) -> list[Metric]:
        begin = time.monotonic()
        self._polls += 1
        snapshot = await self._look()
        self.status = (
            f"{len(snapshot.stats)} of {counted(len(snapshot.nodes), 'nsqd')} answering, "
            f"{counted(self._polls, 'poll')}"
        )
        return [*cluster_metrics(snapshot), self._took(time.monotonic() - begin)]

    def _took(self, seconds: float) -> Metric:
        text = "Time to ask all nsqds and nsqlookupds."
        return Metric("nsqtools_poll_duration_seconds", "gauge", text, [Sample({}, seconds)])


async def serve(servers: ClusterOptions, asked: StatsOptions) -> None:
    """Serve until cancelled. Raises ConfigError if it cannot listen on --serve."""
    notifier = Notifier()
    cluster = open_cluster(servers)
    exporter = Exporter(lambda: cluster.look(asked.topic or None, asked.channel or None))
    address = listening_address(asked.serve)
    async with (
        cluster,
        supervised(notifier, lambda: exporter.status, address, exporter.collect, "--serve"),
    ):
        notifier.ready()
        try:
            await asyncio.Event().wait()
        finally:
            notifier.stopping()
            await exporter.collect.close()
