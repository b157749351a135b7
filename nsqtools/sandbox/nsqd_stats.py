"""``/stats`` of an embedded nsqd, as JSON and as text (``nsqd/stats.go``, ``nsqd/http.go``)."""

from __future__ import annotations

import gc
import resource
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nsqtools import __version__
from nsqtools.sandbox.wire import VERSION

if TYPE_CHECKING:
    from nsqtools.sandbox.broker import Channel, Topic
    from nsqtools.sandbox.nsqd import Nsqd


@dataclass(frozen=True, slots=True)
class Stats:
    """What was asked for; the dicts are in the shape and order of the JSON."""

    start_time: int
    """Seconds since the epoch."""
    topics: list[dict[str, Any]] | None
    memory: dict[str, int] | None
    producers: list[dict[str, Any]] | None


def take_stats(nsqd: Nsqd, topic: str, channel: str, *, clients: bool, memory: bool) -> Stats:
    """Stats of all topics and channels, or of those named. No topic of that name: None."""
    broker = nsqd.broker
    topics: list[dict[str, Any]] | None = None
    if not topic or topic in broker.topics:
        topics = [
            _topic_stats(each, topic, channel, clients=clients)
            for name, each in sorted(broker.topics.items())
            if topic in ("", name) and (not channel or channel in each.channels)
        ]
    producers = []
    if clients and topics is not None:
        producers = [client.stats(topic) for client in nsqd.producers]
    return Stats(broker.start_time, topics, _memory() if memory else None, producers or None)


def stats_json(stats: Stats) -> dict[str, Any]:
    """The reply to ``format=json``."""
    memory = {} if stats.memory is None else {"memory": stats.memory}
    return {
        "version": VERSION,
        "health": "OK",
        "start_time": stats.start_time,
        "topics": stats.topics,
        **memory,
        "producers": stats.producers,
    }


def stats_text(stats: Stats) -> str:
    """The reply without a format."""
    start = datetime.fromtimestamp(stats.start_time).astimezone().isoformat()
    uptime = _go_duration(time.time() - stats.start_time)
    lines = [
        f"nsqd v{VERSION} (nsqtools v{__version__})",
        f"start_time {start.replace('+00:00', 'Z')}",
        f"uptime {uptime}",
        "",
        "Health: OK",
    ]
    if stats.memory is not None:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in stats.memory.items()]
    lines += ["", "Topics:" if stats.topics else "Topics: None"]
    for number, topic in enumerate(stats.topics or ()):
        lines += ["", *_topic_lines(topic)][number == 0 :]
    lines += ["", "Producers:" if stats.producers else "Producers: None"]
    lines += [f"   {_client_line(each)}" for each in stats.producers or ()]
    return "\n".join(lines) + "\n"


def _topic_stats(topic: Topic, asked: str, channel: str, *, clients: bool) -> dict[str, Any]:
    return {
        "topic_name": topic.name,
        "channels": [
            _channel_stats(each, asked, clients=clients)
            for name, each in sorted(topic.channels.items())
            if channel in ("", name)
        ],
        "depth": topic.depth,
        "backend_depth": 0,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def _channel_stats(channel: Channel, asked: str, *, clients: bool) -> dict[str, Any]:
    found = [facts for each in channel.consumers if (facts := each.client.stats(asked))]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": 0,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": found if clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def _memory() -> dict[str, int]:
    """Go's numbers, as far as there is anything like them: the highest resident size, and runs."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return {
        "heap_objects": 0,
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
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
    connected = _go_duration(int(time.time() - client["connect_ts"]))
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
