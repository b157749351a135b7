"""Reports as text for the next program in the pipe: nsq_stat's columns, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import one_line
from nsqtools.config.option import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsqtools.cli.commands.stats.report import Consumer, Percentiles, Report
    from nsqtools.net.http import ChannelStats, ClientStats, Latency, TopicStats
    from nsqtools.policy.rates import Row

HEADER_EVERY = 25
"""Lines from one header to the next (``nsq_stat.go``)."""

_RULE = (
    "------rate------+----------------depth----------------+--------------metadata---------------"
)
_TITLES = (
    f"{'ingress':>7} {'egress':>7} | {'total':>7} {'mem':>7} {'disk':>7} {'inflt':>5} {'def':>5} | "
    f"{'req':>7} {'t-o':>7} {'msgs':>12} {'clients':>7}"
)
_CONSUMER_RULE = "-----held----+------rate-------+----settled------+------link-------+"
_CONSUMER_TITLES = (
    f"{'rdy':>6} {'inflt':>5} | {'fin/s':>7} {'req/s':>7} | {'fin':>9} {'req':>7} | "
    f"{'tls':>3} {'comp':>7} {'auth':>4} | topic channel nsqd host agent"
)


class Lines:
    """Lines with nsq_stat's columns: a header, and again each 25 lines.

    ``single`` is for one channel: exactly nsq_stat's output, with notes behind it if there are
    any. Else topic and channel (``-``: the topic itself) stand behind the columns, and a blank
    line ends each report.
    """

    def __init__(self, *, single: bool, consumers: bool = False) -> None:
        self._single = single
        self._consumers = consumers
        self._since: int | None = None

    def add(self, report: Report) -> str:
        """The text of a report, each line with its end."""
        if self._consumers:
            lines = [consumer_line(each) for each in report.consumers or ()]
            header = [_CONSUMER_RULE, _CONSUMER_TITLES]
        else:
            lines = [self._line(row, report) for row in report.rows]
            header = [_RULE, _TITLES]
            if not self._single:
                header = [f"{_RULE}+", f"{_TITLES} | topic channel"]
        if not lines:
            return ""
        if self._since is None:
            self._since = 1  # nsq_stat counts the sample that is for the rates alone
        elif self._since < HEADER_EVERY:
            header = []
        else:
            self._since = 0
        self._since += len(lines)
        end = [] if self._single and not self._consumers else [""]
        return "".join(f"{line}\n" for line in (*header, *lines, *end))

    def _line(self, row: Row, report: Report) -> str:
        notes = noted(row, report.latencies.get((row.topic, row.channel), ()))
        names = "" if self._single else f" | {one_line(row.topic)} {one_line(row.channel) or '-'}"
        if notes and self._single:
            names = " |"
        return f"{numbers(row)}{names}{''.join(f' {note}' for note in notes)}"


def numbers(row: Row) -> str:
    """nsq_stat's columns; a rate that is not known yet is ``-``."""
    own = row.totals
    return (
        f"{_rate(row.ingress):>7} {_rate(row.egress):>7} | "
        f"{own.depth:>7} {own.depth - own.backend_depth:>7} {own.backend_depth:>7} "
        f"{own.in_flight:>5} {own.deferred:>5} | "
        f"{own.requeues:>7} {own.timeouts:>7} {own.messages:>12} {own.clients:>7}"
    )


def noted(row: Row, percentiles: Percentiles) -> list[str]:
    """What no column tells: ``paused``, ``missing=1`` (nsqds), ``p99=1.5s`` (to FIN)."""
    return [
        *(["paused"] if row.totals.paused else []),
        *([f"missing={row.missing}"] if row.missing else []),
        *(f"{percentile(q)}={rough(seconds)}" for q, seconds in percentiles),
    ]


def style_of(row: Row) -> str:
    """On a terminal what is wrong stands out; a topic's own row, which adds little, steps back."""
    if row.missing:
        return "red"
    return "yellow" if row.totals.paused else "" if row.channel else "dim"


def percentile(quantile: float) -> str:
    """``p99`` or ``p99.9``."""
    return f"p{quantile * 100:g}"


def rough(seconds: float) -> str:
    """A duration of three digits."""
    return format_duration(float(f"{seconds:.3g}")) if seconds < 60 else f"{seconds:.0f}s"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else str(round(rate))


def compression(client: ClientStats) -> str:
    """What packs the connection, or nothing."""
    return "snappy" if client.snappy else "deflate" if client.deflate else ""


def consumer_line(each: Consumer) -> str:
    """A consumer in columns; what it calls itself last, as it may hold spaces."""
    own = each.stats
    return (
        f"{own.ready_count:>6} {own.in_flight:>5} | "
        f"{_rate(each.finish_rate):>7} {_rate(each.requeue_rate):>7} | "
        f"{own.finish_count:>9} {own.requeue_count:>7} | "
        f"{'yes' if own.tls else '-':>3} {compression(own) or '-':>7} "
        f"{'yes' if own.authed else '-':>4} | "
        f"{one_line(each.topic)} {one_line(each.channel)} {each.nsqd} "
        f"{one_line(own.hostname) or '-'} "
        f"{one_line(own.user_agent) or '-'}"
    )


class Csv:
    """RFC 4180 but for the line ends; a rate that is not known is empty."""

    def __init__(self, *, consumers: bool = False) -> None:
        self._consumers = consumers
        self._begun = False

    def add(self, report: Report) -> str:
        """The text of a report, the first time after a header."""
        rows = _consumer_cells(report) if self._consumers else _cells(report)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._begun:
            writer.writerow(_CONSUMER_COLUMNS if self._consumers else _COLUMNS)
        self._begun = True
        writer.writerows(rows)
        return text.getvalue()


_COLUMNS = (
    *("time", "topic", "channel", "ingress", "egress", "depth", "memory_depth", "backend_depth"),
    *("in_flight", "deferred", "requeues", "timeouts", "messages", "clients"),
    *("requeue_rate", "timeout_rate", "paused", "nsqds", "missing"),
)
_CONSUMER_COLUMNS = (
    *("time", "topic", "channel", "nsqd", "hostname", "client_id", "user_agent", "remote_address"),
    *("state", "ready_count", "in_flight", "finish_rate", "requeue_rate"),
    *("messages", "finished", "requeued", "connected", "tls", "compression", "authed"),
)


def _cells(report: Report) -> Iterator[Sequence[object]]:
    time = clock(report.at)
    for row in report.rows:
        own = row.totals
        yield (
            *(
                time,
                one_line(row.topic),
                one_line(row.channel),
                _decimal(row.ingress),
                _decimal(row.egress),
            ),
            *(own.depth, own.depth - own.backend_depth, own.backend_depth),
            *(own.in_flight, own.deferred, own.requeues, own.timeouts, own.messages, own.clients),
            *(_decimal(row.requeue_rate), _decimal(row.timeout_rate)),
            *(str(own.paused).lower(), row.nodes, row.missing),
        )


def _consumer_cells(report: Report) -> Iterator[Sequence[object]]:
    time = clock(report.at)
    for each in report.consumers or ():
        own = each.stats
        yield (
            *(time, one_line(each.topic), one_line(each.channel), each.nsqd),
            *map(one_line, (own.hostname, own.client_id, own.user_agent, own.remote_address)),
            *(own.state, own.ready_count, own.in_flight),
            *(_decimal(each.finish_rate), _decimal(each.requeue_rate)),
            *(own.message_count, own.finish_count, own.requeue_count, clock(own.connect_ts)),
            *(str(own.tls).lower(), compression(own), str(own.authed).lower()),
        )


def _decimal(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.3f}"


def clock(at: float) -> str:
    """RFC 3339 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


class JsonLines:
    """An object a line, with all that is known."""

    def add(self, report: Report) -> str:
        """The text of a report."""
        return json.dumps(as_json(report)) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """Topics with their channels, each with its parts by nsqd; all nsqds and nsqlookupds."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    consumers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, stats in report.snapshot.stats.items():
        for topic in stats.topics:
            parts.setdefault((topic.name, ""), []).append(_topic_part(name, topic))
            for channel in topic.channels:
                part = _channel_part(name, channel)
                parts.setdefault((topic.name, channel.name), []).append(part)
    for each in report.consumers or ():
        consumers.setdefault((each.topic, each.channel), []).append(_consumer(each))
    found: dict[str, dict[str, Any]] = {}
    for row in report.rows:
        key = (row.topic, row.channel)
        entry = _row(row, report.latencies.get(key, ())) | {"nsqds": parts.get(key, [])}
        above = found.setdefault(row.topic, {"topic": row.topic, "channels": []})
        if row.channel:
            more = {"consumers": consumers.get(key, [])} if report.consumers is not None else {}
            above["channels"].append({"channel": row.channel, **entry, **more})
        else:
            found[row.topic] = {"topic": row.topic, **entry, "channels": above["channels"]}
    snapshot = report.snapshot
    return {
        "time": clock(report.at),
        "interval": None if report.elapsed is None else round(report.elapsed, 6),
        "topics": list(found.values()),
        "nsqds": [
            {
                "nsqd": name,
                "broadcast": str(node.tcp) if node.tcp else None,
                "hostname": node.hostname,
                "version": snapshot.stats[name].version if name in snapshot.stats else node.version,
                "health": snapshot.stats[name].health if name in snapshot.stats else None,
                "start_time": snapshot.stats[name].start_time if name in snapshot.stats else None,
                "error": _text(snapshot.failures.get(name)),
            }
            for name, node in snapshot.nodes.items()
        ],
        "lookupds": [
            {"lookupd": name, "error": _text(error)} for name, error in snapshot.lookupds.items()
        ],
    }


def _text(error: object) -> str | None:
    return None if error is None else str(error)


def _row(row: Row, percentiles: Percentiles) -> dict[str, Any]:
    own = row.totals
    return {
        "ingress": row.ingress,
        "egress": row.egress,
        "requeue_rate": row.requeue_rate,
        "timeout_rate": row.timeout_rate,
        "depth": own.depth,
        "memory_depth": own.depth - own.backend_depth,
        "backend_depth": own.backend_depth,
        "in_flight": own.in_flight,
        "deferred": own.deferred,
        "requeues": own.requeues,
        "timeouts": own.timeouts,
        "messages": own.messages,
        "clients": own.clients,
        "paused": own.paused,
        "missing": row.missing,
        "latency": _percentiles(percentiles),
    }


def _percentiles(percentiles: Iterable[tuple[float, float]]) -> dict[str, float] | None:
    """Seconds by ``p99``, or None."""
    return {percentile(q): seconds for q, seconds in percentiles} or None


def _of(latency: Latency | None) -> dict[str, float] | None:
    return _percentiles(latency.percentiles) if latency and latency.count else None


def _topic_part(nsqd: str, topic: TopicStats) -> dict[str, Any]:
    return {
        "nsqd": nsqd,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "messages": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "latency": _of(topic.latency),
    }


def _channel_part(nsqd: str, channel: ChannelStats) -> dict[str, Any]:
    return {
        "nsqd": nsqd,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight": channel.in_flight,
        "deferred": channel.deferred,
        "requeues": channel.requeue_count,
        "timeouts": channel.timeout_count,
        "messages": channel.message_count,
        "clients": channel.client_count,
        "paused": channel.paused,
        "latency": _of(channel.latency),
    }


def _consumer(each: Consumer) -> dict[str, Any]:
    own = each.stats
    return {
        "nsqd": each.nsqd,
        "hostname": own.hostname,
        "client_id": own.client_id,
        "user_agent": own.user_agent,
        "remote_address": own.remote_address,
        "state": own.state,
        "ready_count": own.ready_count,
        "in_flight": own.in_flight,
        "finish_rate": each.finish_rate,
        "requeue_rate": each.requeue_rate,
        "messages": own.message_count,
        "finished": own.finish_count,
        "requeued": own.requeue_count,
        "connected": clock(own.connect_ts),
        "tls": own.tls,
        "compression": compression(own) or None,
        "authed": own.authed,
    }
