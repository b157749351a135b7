"""One report of a cluster: rows with rates, consumers, and the errors of silent nsqds."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nsqtools.errors import UnreachableError
from nsqtools.policy.rates import Rates, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsqtools.config.stats import StatsOptions
    from nsqtools.engine.cluster import Cluster, Snapshot
    from nsqtools.net.http.replies import ChannelStats, ClientStats, TopicStats
    from nsqtools.policy.rates import ChannelKey, Row

Percentiles = tuple[tuple[float, float], ...]
"""Pairs of a quantile and seconds."""


class ConsumerRow(NamedTuple):
    """A client of a channel on one nsqd; rates are per second, None while unknown."""

    topic: str
    channel: str
    nsqd: str
    stats: ClientStats
    finish_rate: float | None
    requeue_rate: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """``at`` is in seconds since the epoch, ``elapsed`` the time since the last report.

    ``consumers`` is None unless requested. ``latencies`` has the highest percentiles of all nsqds,
    by topic and channel, if nsqd measures them.
    """

    at: float
    elapsed: float | None
    rows: Sequence[Row]
    consumers: Sequence[ConsumerRow] | None
    latencies: Mapping[ChannelKey, Percentiles]
    snapshot: Snapshot

    @property
    def silent(self) -> list[str]:
        """The errors of silent nsqds."""
        return [str(error) for error in self.snapshot.failures.values()]


class Reporter:
    """Polls a cluster for reports."""

    def __init__(self, cluster: Cluster, asked: StatsOptions) -> None:
        self._cluster = cluster
        self._asked = asked
        self._rates = Rates()
        self._consumers = ConsumerRates()
        self._before: float | None = None

    async def report(self) -> Report:
        """Poll once. The first call raises UnreachableError if no nsqd answers or is listed."""
        topic, channel = self._asked.topic or None, self._asked.channel or None
        look = self._cluster.poll if self._before is None else self._cluster.look
        at = time.time()
        snapshot = await look(topic, channel, include_clients=self._asked.clients)
        if self._before is None and not (snapshot.nodes or any(snapshot.listed.values())):
            fix = "start nsqd with --lookupd-tcp-address"
            raise UnreachableError(f"no nsqlookupd lists an nsqd: {fix}")
        rows = self._rates.record(snapshot.samples(), snapshot.topics())
        elapsed = None if self._before is None else snapshot.at - self._before
        self._before = snapshot.at
        return Report(
            at,
            elapsed,
            shown(rows, self._asked.channel),
            self._consumers.record(snapshot) if self._asked.clients else None,
            latencies(snapshot),
            snapshot,
        )


class ConsumerRates:
    """Rates of each connection, from its counts in two reports."""

    def __init__(self) -> None:
        self._before: dict[object, tuple[float, ClientStats]] = {}

    def record(self, snapshot: Snapshot) -> list[ConsumerRow]:
        """All consumers, ordered by topic, channel and nsqd."""
        found: dict[object, ConsumerRow] = {}
        for name, topic in topics_of(snapshot):
            for channel in topic.channels:
                for client in channel.clients:
                    parts = (topic.name, channel.name, name)
                    identity = (*parts, client.remote_address, client.connect_ts)
                    at, before = self._before.get(identity, (math.inf, client))
                    elapsed = snapshot.time(name) - at
                    found[identity] = ConsumerRow(
                        *parts,
                        client,
                        _rate(client.finish_count - before.finish_count, elapsed),
                        _rate(client.requeue_count - before.requeue_count, elapsed),
                    )
        self._before = {
            identity: (snapshot.time(each.nsqd), each.stats) for identity, each in found.items()
        }
        return sorted(
            found.values(), key=lambda each: (*each[:3], each.stats.hostname, each.stats.client_id)
        )


def _rate(growth: int, elapsed: float) -> float | None:
    return max(0.0, growth / elapsed) if elapsed > 0 else None


def topics_of(snapshot: Snapshot) -> Iterator[tuple[str, TopicStats]]:
    """Every topic of every answering nsqd, with the nsqd's name."""
    for name, stats in snapshot.stats.items():
        for topic in stats.topics:
            yield name, topic


def measured(each: TopicStats | ChannelStats) -> Percentiles:
    """The percentiles of a topic or channel, if nsqd has measured any."""
    return each.latency.percentiles if each.latency and each.latency.count else ()


def latencies(snapshot: Snapshot) -> dict[ChannelKey, Percentiles]:
    """The highest value of each percentile over all nsqds, because percentiles cannot be added."""
    worst: dict[ChannelKey, dict[float, float]] = {}
    for _, topic in topics_of(snapshot):
        parts: list[tuple[str, TopicStats | ChannelStats]] = [("", topic)]
        parts += [(channel.name, channel) for channel in topic.channels]
        for channel_name, part in parts:
            for quantile, seconds in measured(part):
                quantiles = worst.setdefault((topic.name, channel_name), {})
                quantiles[quantile] = max(quantiles.get(quantile, 0.0), seconds)
    return {key: tuple(sorted(quantiles.items(), reverse=True)) for key, quantiles in worst.items()}
