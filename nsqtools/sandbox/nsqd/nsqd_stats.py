"""``/stats`` of an embedded nsqd (``nsqd/stats.go``), always JSON, without memory statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.sandbox.http_api import VERSION

if TYPE_CHECKING:
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.broker import Topic
    from nsqtools.sandbox.nsqd.channel import Channel

_NO_LATENCY = {"count": 0, "percentiles": None}


def take_stats(nsqd: Nsqd, topic: str, channel: str, *, clients: bool = True) -> dict[str, Any]:
    """Return stats of all topics and channels, or of those named, with keys in nsqd's order.

    ``topics`` is None if the named topic does not exist.
    """
    topics = None
    if not topic or topic in nsqd.broker.topics:
        topics = [
            _topic_stats(nsqd, each, topic, channel, clients=clients)
            for name, each in sorted(nsqd.broker.topics.items())
            if topic in ("", name) and (not channel or channel in each.channels)
        ]
    producers = None
    if clients and topics is not None:
        producers = [each.stats(topic) for each in nsqd.clients if each.pub_counts]
    return {
        "version": VERSION,
        "health": "OK",
        "start_time": nsqd.broker.start_time,
        "topics": topics,
        "producers": producers or None,
    }


def _topic_stats(
    nsqd: Nsqd, topic: Topic, asked: str, channel: str, *, clients: bool
) -> dict[str, Any]:
    return {
        "topic_name": topic.name,
        "channels": [
            _channel_stats(nsqd, each, asked, clients=clients)
            for name, each in sorted(topic.channels.items())
            if channel in ("", name)
        ],
        "depth": topic.depth,
        "backend_depth": 0,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _channel_stats(nsqd: Nsqd, channel: Channel, asked: str, *, clients: bool) -> dict[str, Any]:
    found = [each.stats(asked) for each in nsqd.clients if clients and each.channel is channel]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": 0,
        "in_flight_count": len(channel.in_flight),
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": found if clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }
