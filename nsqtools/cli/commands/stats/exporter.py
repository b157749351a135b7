"""``nsqtools stats --serve``: an exporter for Prometheus, of all nsqds together."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.cli.commands.stats.report import measured, topics_of
from nsqtools.cli.remotes import open_cluster
from nsqtools.cli.service import supervised
from nsqtools.metrics import Metric, Sample
from nsqtools.names import listening_address
from nsqtools.net.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from nsqtools.config import ClusterOptions, StatsOptions
    from nsqtools.engine.cluster import Snapshot
    from nsqtools.metrics import Kind
    from nsqtools.net.http.replies import ChannelStats, TopicStats


class _Told(NamedTuple):
    """The metric of a field of a reply."""

    field: str
    name: str
    kind: Kind
    help: str


_OF_TOPICS = (
    _Told("depth", "nsq_topic_depth", "gauge", "Messages that are in no channel yet."),
    _Told("backend_depth", "nsq_topic_backend_depth", "gauge", "Of these, those on disk."),
    _Told("message_count", "nsq_topic_messages_total", "counter", "Messages published."),
    _Told("message_bytes", "nsq_topic_message_bytes_total", "counter", "Bytes of their bodies."),
    _Told("paused", "nsq_topic_paused", "gauge", "Whether channels get no messages: 1 or 0."),
)
_OF_CHANNELS = (
    _Told("depth", "nsq_channel_depth", "gauge", "Messages that wait for a consumer."),
    _Told("backend_depth", "nsq_channel_backend_depth", "gauge", "Of these, those on disk."),
    _Told("in_flight", "nsq_channel_in_flight", "gauge", "Messages that consumers work on."),
    _Told("deferred", "nsq_channel_deferred", "gauge", "Messages that wait for their time."),
    _Told("message_count", "nsq_channel_messages_total", "counter", "Messages that came."),
    _Told(
        "requeue_count",
        "nsq_channel_requeued_total",
        "counter",
        "Times that a consumer gave a message back.",
    ),
    _Told(
        "timeout_count",
        "nsq_channel_timed_out_total",
        "counter",
        "Times that a consumer took too long for a message.",
    ),
    _Told("client_count", "nsq_channel_clients", "gauge", "Connections of consumers."),
    _Told("paused", "nsq_channel_paused", "gauge", "Whether consumers get no messages: 1 or 0."),
)
_LATENCY = "end-to-end processing latency, from publishing to FIN, over nsqd's window of time."


def cluster_metrics(snapshot: Snapshot) -> list[Metric]:
    """All metrics of a snapshot; those of topics and channels are labelled with their nsqd."""
    topics = [({"topic": topic.name, "nsqd": node}, topic) for node, topic in topics_of(snapshot)]
    channels = [
        ({"topic": labels["topic"], "channel": channel.name, "nsqd": labels["nsqd"]}, channel)
        for labels, topic in topics
        for channel in topic.channels
    ]
    return [
        *_up(snapshot),
        *_of_nsqds(snapshot),
        *_counted(_OF_TOPICS, topics),
        _latency("nsq_topic_e2e_latency_seconds", f"A topic's {_LATENCY}", topics),
        *_counted(_OF_CHANNELS, channels),
        _latency("nsq_channel_e2e_latency_seconds", f"A channel's {_LATENCY}", channels),
    ]


def _up(snapshot: Snapshot) -> Iterator[Metric]:
    yield Metric(
        "nsq_up",
        "gauge",
        "Whether an nsqd answers: 1 or 0.",
        [Sample({"nsqd": name}, int(name in snapshot.stats)) for name in snapshot.nodes],
    )
    yield Metric(
        "nsq_nsqlookupd_up",
        "gauge",
        "Whether an nsqlookupd answers: 1 or 0.",
        [
            Sample({"nsqlookupd": name}, int(error is None))
            for name, error in snapshot.lookupds.items()
        ],
    )


def _of_nsqds(snapshot: Snapshot) -> Iterator[Metric]:
    said = snapshot.stats.items()
    yield Metric(
        "nsq_nsqd_info",
        "gauge",
        "The release of an nsqd.",
        [Sample({"nsqd": name, "version": each.version}, 1) for name, each in said],
    )
    yield Metric(
        "nsq_nsqd_healthy",
        "gauge",
        "Whether an nsqd says that it is well: 1 or 0.",
        [Sample({"nsqd": name}, int(each.health in ("", "OK"))) for name, each in said],
    )
    yield Metric(
        "nsq_nsqd_start_time_seconds",
        "gauge",
        "When an nsqd was started, since the epoch.",
        [Sample({"nsqd": name}, each.start_time) for name, each in said],
    )


def _counted(
    told: Iterable[_Told],
    found: Iterable[tuple[Mapping[str, str], TopicStats | ChannelStats]],
) -> Iterator[Metric]:
    for field, name, kind, text in told:
        samples = [Sample(labels, float(getattr(each, field))) for labels, each in found]
        yield Metric(name, kind, text, samples)


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
    """Polls the cluster for each scrape; scrapes that come during a poll share its result."""

    def __init__(self, look: Callable[[], Awaitable[Snapshot]]) -> None:
        self._look = look
        self._running: asyncio.Task[list[Metric]] | None = None
        self._polls = 0
        self._status = "not scraped yet"

    @property
    def status(self) -> str:
        """One line about the last poll."""
        return self._status

    async def collect(self) -> list[Metric]:
        """The current metrics; cancelling one scrape does not affect the others."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._poll())
            self._running.add_done_callback(self._ended)
        return await asyncio.shield(self._running)

    async def close(self) -> None:
        """Cancel the poll under way."""
        if self._running:
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _ended(self, task: asyncio.Task[list[Metric]]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # told to who scraped, or to nobody if they all went away

    async def _poll(self) -> list[Metric]:
        begin = time.monotonic()
        self._polls += 1
        snapshot = await self._look()
        self._status = (
            f"{len(snapshot.stats)} of {len(snapshot.nodes)} nsqds answer, {self._polls} polls"
        )
        return [*cluster_metrics(snapshot), self._took(time.monotonic() - begin)]

    def _took(self, seconds: float) -> Metric:
        text = "How long it took to ask all nsqds and nsqlookupds."
        return Metric("nsqtools_poll_duration_seconds", "gauge", text, [Sample({}, seconds)])


async def serve(where: ClusterOptions, asked: StatsOptions) -> None:
    """Serve until cancelled. Raises ConfigError if it cannot listen there."""
    notifier = Notifier()
    cluster = open_cluster(where)
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
            await exporter.close()
