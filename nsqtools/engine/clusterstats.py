"""What the answers of several nsqds say together: rates of consumers, and latencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.engine.cluster import Snapshot
    from nsqtools.net.http.replies import ChannelStats, ClientStats, TopicStats
    from nsqtools.policy.rates import ChannelKey

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


def by_node(snapshot: Snapshot, channel: str) -> list[tuple[str, TopicStats | ChannelStats | None]]:
    """The numbers of a snapshot's only topic, or of a channel, by nsqd; None for a silent nsqd."""
    found: list[tuple[str, TopicStats | ChannelStats | None]] = [
        (name, None) for name in snapshot.silent
    ]
    for name, topic in topics_of(snapshot):
        parts: Sequence[TopicStats | ChannelStats] = [topic]
        if channel:
            parts = [part for part in topic.channels if part.name == channel]
        found += [(name, part) for part in parts]
    return found


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
