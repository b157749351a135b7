"""``/stats`` of an embedded nsqd, as JSON and as text (``nsqd/stats.go``, ``nsqd/http.go``)."""

from __future__ import annotations

import resource
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nsqtools.clock import wall
from nsqtools.sandbox.http_api import VERSION

if TYPE_CHECKING:
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.broker import Topic
    from nsqtools.sandbox.nsqd.channel import Channel

_NO_LATENCY = {"count": 0, "percentiles": None}


def take_stats(
    nsqd: Nsqd, topic: str, channel: str, *, clients: bool = True, memory: bool = False
) -> dict[str, Any]:
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
        **({"memory": _memory()} if memory else {}),
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


def stats_text(stats: dict[str, Any]) -> str:
    """Return the response without a format, from that of ``take_stats``."""
    start = datetime.fromtimestamp(stats["start_time"]).astimezone().isoformat()
    lines = [
        f"nsqd v{VERSION} (nsqtools sandbox)",
        f"start_time {start.replace('+00:00', 'Z')}",
        f"uptime {_go_duration(wall() - stats['start_time'])}",
        "",
        "Health: OK",
    ]
    if "memory" in stats:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in stats["memory"].items()]
    lines += ["", "Topics:" if stats["topics"] else "Topics: None"]
    for number, topic in enumerate(stats["topics"] or ()):
        lines += [""] if number else []
        lines += _topic_lines(topic)
    lines += ["", "Producers:" if stats["producers"] else "Producers: None"]
    lines += [f"   {_client_line(each)}" for each in stats["producers"] or ()]
    return "\n".join(lines) + "\n"


def _memory() -> dict[str, int]:
    """Return Go's names; of the numbers there is only the highest resident size."""
    return {
        "heap_objects": 0,
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": 0,
    }


def _topic_lines(topic: dict[str, Any]) -> list[str]:
    lines = [
        f"{_paused(topic)}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
    ]
    for channel in topic["channels"]:
        lines.append(
            f"   {_paused(channel)}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: "
        )
        lines += [f"        {_client_line(each)}" for each in channel["clients"] or ()]
    return lines


def _paused(entry: dict[str, Any]) -> str:
    return "*P " if entry["paused"] else "   "


def _client_line(client: dict[str, Any]) -> str:
    """As ``ClientV2Stats.String`` in ``client_v2.go``."""
    connected = _go_duration(int(wall() - client["connect_ts"]))
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    start = f"[{client['version']} {name:<21}]"
    if counts := client.get("pub_counts"):
        total = sum(each["count"] for each in counts)
        topics = ",".join(f"{each['topic']}={each['count']}" for each in counts)
        return f"{start} msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"{start} state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} "
        f"re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {connected}"
    )


def _go_duration(seconds: float) -> str:
    """As Go prints a duration of whole nanoseconds, such as ``1h0m2.5s``."""
    whole = int(seconds)
    rest = f"{whole % 60 + round(seconds - whole, 6):.6f}".rstrip("0").rstrip(".")
    if whole < 60:
        return f"{rest}s"
    hours = f"{whole // 3600}h" if whole >= 3600 else ""
    return f"{hours}{whole // 60 % 60}m{rest}s"
