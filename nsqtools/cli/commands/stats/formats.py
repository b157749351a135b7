"""Reports as text: tables, nsq_stat's columns, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from nsqtools.cli.exits import one_line
from nsqtools.cli.output import TableLayout, rows_text
from nsqtools.config.units import format_duration
from nsqtools.engine.clusterstats import measured, topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsqtools.cli.commands.stats.report import Report
    from nsqtools.engine.cluster import Snapshot
    from nsqtools.engine.clusterstats import ConsumerRow
    from nsqtools.net.http.replies import ChannelStats, ClientStats, TopicStats
    from nsqtools.policy.rates import Row

    Accessors = Mapping[str, Callable[[Any], Any]]
    """Names of values in CSV and JSON, each with a function to read the value."""

HEADER_EVERY = 25
"""Lines from one header to the next (``nsq_stat.go``)."""

_RULE = (
    "------rate------+----------------depth----------------+--------------metadata---------------"
)
_TITLES = (
    f"{'ingress':>7} {'egress':>7} | {'total':>7} {'mem':>7} {'disk':>7} {'inflt':>5} {'def':>5} | "
    f"{'req':>7} {'t-o':>7} {'msgs':>12} {'clients':>7}"
)


class Lines:
    """Lines with nsq_stat's columns, with a header every 25 lines.

    ``single`` is for one channel: exactly nsq_stat's output, followed by notes if there are any.
    Otherwise topic and channel (``-`` for the topic itself) follow the columns, and a blank line
    ends each report.
    """

    def __init__(self, *, single: bool) -> None:
        self._single = single
        self._since: int | None = None

    def add(self, report: Report) -> str:
        """The text of a report, with line ends."""
        lines = [self._line(row, report) for row in report.rows]
        header = [_RULE, _TITLES]
        if not self._single:
            header = [f"{_RULE}+", f"{_TITLES} | topic channel"]
        if not lines:
            return ""
        if self._since is None:
            self._since = 1  # nsq_stat counts the first sample, too, before any report
        elif self._since < HEADER_EVERY:
            header = []
        else:
            self._since = 0
        self._since += len(lines)
        end = [] if self._single else [""]
        return "".join(f"{line}\n" for line in (*header, *lines, *end))

    def _line(self, row: Row, report: Report) -> str:
        notes = noted(row, report)
        names = "" if self._single else f" | {one_line(row.topic)} {one_line(row.channel) or '-'}"
        if notes and self._single:
            names = " |"
        return f"{_numbers(row)}{names}{''.join(f' {note}' for note in notes)}"


def _numbers(row: Row) -> str:
    """nsq_stat's columns; an unknown rate is ``-``."""
    own = row.totals
    return (
        f"{_rate(row.ingress):>7} {_rate(row.egress):>7} | "
        f"{own.depth:>7} {own.memory_depth:>7} {own.backend_depth:>7} "
        f"{own.in_flight:>5} {own.deferred:>5} | "
        f"{own.requeues:>7} {own.timeouts:>7} {own.messages:>12} {own.clients:>7}"
    )


def noted(row: Row, report: Report) -> list[str]:
    """Notes without a column: ``paused``, ``missing=1`` (nsqds), ``p99=1.5s`` (to FIN)."""
    percentiles = report.latencies.get((row.topic, row.channel), ())
    return [
        *(["paused"] if row.totals.paused else []),
        *([f"missing={row.missing}"] if row.missing else []),
        *(f"{_percentile(q)}={_rough(seconds)}" for q, seconds in percentiles),
    ]


def style_of(row: Row) -> str:
    """The colour of a row on a terminal: red or yellow for problems, dim for a topic's own row."""
    if row.missing:
        return "red"
    return "yellow" if row.totals.paused else "" if row.channel else "dim"


def _percentile(quantile: float) -> str:
    """``p99`` or ``p99.9``."""
    return f"p{quantile * 100:g}"


def _rough(seconds: float) -> str:
    """A duration of three digits."""
    return format_duration(float(f"{seconds:.3g}")) if seconds < 60 else f"{seconds:.0f}s"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else str(round(rate))


def _compression(client: ClientStats) -> str:
    """The compression of the connection, or an empty text."""
    return "snappy" if client.snappy else "deflate" if client.deflate else ""


class Tables:
    """Each report as a table, with a line for each silent nsqd; in a pipe, as rows only."""

    def __init__(self, *, consumers: bool = False) -> None:
        self._consumers = consumers
        self._gap = ""

    def add(self, report: Report) -> str:
        """The text of a report, with a blank line before each but the first."""
        gap, self._gap = self._gap, "\n"
        if self._consumers:
            cells = [_consumer_cells(each) for each in report.consumers or ()]
            text = rows_text(_CONSUMER_HEADER, cells, TableLayout(range(2, 8), cut=2))
        else:
            cells = [_cells(row, report) for row in report.rows]
            styles = [_STYLES[style_of(row)] for row in report.rows]
            text = rows_text(_HEADER, cells, TableLayout(range(2, 12), cut=2), styles)
        errors = report.silent if sys.stdout.isatty() else ()
        silent = (click.style(f"no answer: {one_line(error)}", fg="red") for error in errors)
        return "".join([gap, text, *(f"{line}\n" for line in silent)])


_STYLES: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "dim": {"dim": True},
    "red": {"fg": "red"},
    "yellow": {"fg": "yellow"},
}
_HEADER = (
    *("topic", "channel", "in/s", "out/s", "depth", "disk", "inflt", "def"),
    *("req", "t-o", "msgs", "clients", "notes"),
)
_CONSUMER_HEADER = (
    *("topic", "channel", "rdy", "inflt", "fin/s", "req/s", "fin", "req"),
    *("tls", "comp", "auth", "nsqd", "client", "host", "address", "connected", "agent"),
)


def _cells(row: Row, report: Report) -> Sequence[str]:
    own = row.totals
    counts = (own.depth, own.backend_depth, own.in_flight, own.deferred)
    since = (own.requeues, own.timeouts, own.messages, own.clients)
    return (
        *(one_line(row.topic), one_line(row.channel) or "-"),
        *map(_exact_rate, (row.ingress, row.egress)),
        *(f"{each:,}" for each in (*counts, *since)),
        " ".join(noted(row, report)),
    )


def _consumer_cells(each: ConsumerRow) -> Sequence[str]:
    own = each.stats
    return (
        *(one_line(each.topic), one_line(each.channel)),
        *map(str, (own.ready_count, own.in_flight)),
        *map(_rate, (each.finish_rate, each.requeue_rate)),
        *map(str, (own.finish_count, own.requeue_count)),
        *("yes" if own.tls else "", _compression(own), "yes" if own.authed else ""),
        *map(one_line, (each.nsqd, own.client_id, own.hostname, own.remote_address)),
        *(_since(own), one_line(own.user_agent)),
    )


def _exact_rate(value: float | None) -> str:
    """A rate per second, with a decimal if below 10; ``-`` while unknown."""
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _since(client: ClientStats) -> str:
    """The client's time of connection, in UTC; empty if nsqd sends no valid time."""
    with suppress(ValueError, OverflowError, OSError):
        at = datetime.fromtimestamp(client.connect_ts, UTC)
        return f"{at:%Y-%m-%dT%H:%M:%SZ}" if client.connect_ts else ""
    return ""


def clock(at: float) -> str:
    """RFC 3339 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _columns(*paths: str, **others: Callable[[Any], Any]) -> Accessors:
    """Columns named after the last attribute of each path, then others."""
    return {path.rpartition(".")[2]: attrgetter(path) for path in paths} | others


_NAMES = _columns("topic", "channel")
_ROW = _columns(
    *("ingress", "egress", "totals.depth", "totals.memory_depth", "totals.backend_depth"),
    *("totals.in_flight", "totals.deferred", "totals.requeues", "totals.timeouts"),
    *("totals.messages", "totals.clients", "requeue_rate", "timeout_rate", "totals.paused"),
)
_NSQDS = _columns(nsqds=attrgetter("nodes"), missing=attrgetter("missing"))
_CONSUMER = _columns(
    *("nsqd", "stats.hostname", "stats.client_id", "stats.user_agent", "stats.remote_address"),
    *("stats.state", "stats.ready_count", "stats.in_flight", "finish_rate", "requeue_rate"),
    messages=attrgetter("stats.message_count"),
    finished=attrgetter("stats.finish_count"),
    requeued=attrgetter("stats.requeue_count"),
    connected=lambda each: _since(each.stats) or None,
    tls=attrgetter("stats.tls"),
    compression=lambda each: _compression(each.stats) or None,
    authed=attrgetter("stats.authed"),
)
_TOPIC_PART = _columns(
    *("depth", "backend_depth"),
    messages=attrgetter("message_count"),
    message_bytes=attrgetter("message_bytes"),
    paused=attrgetter("paused"),
)
_CHANNEL_PART = _columns(
    *("depth", "backend_depth", "in_flight", "deferred"),
    requeues=attrgetter("requeue_count"),
    timeouts=attrgetter("timeout_count"),
    messages=attrgetter("message_count"),
    clients=attrgetter("client_count"),
    paused=attrgetter("paused"),
)


def _values(columns: Accessors, each: object) -> dict[str, Any]:
    return {name: value(each) for name, value in columns.items()}


class Csv:
    """RFC 4180, except for the line ends; an unknown rate is empty."""

    def __init__(self, *, consumers: bool = False) -> None:
        self._consumers = consumers
        self._columns = {**_NAMES, **(_CONSUMER if consumers else {**_ROW, **_NSQDS})}
        self._begun = False

    def add(self, report: Report) -> str:
        """The text of a report; the first one begins with a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._begun:
            writer.writerow(("time", *self._columns))
        self._begun = True
        time = clock(report.at)
        for each in (report.consumers or ()) if self._consumers else report.rows:
            values = _values(self._columns, each).values()
            writer.writerow((time, *map(_csv_cell, values)))
        return text.getvalue()


def _csv_cell(value: object) -> object:
    match value:
        case str():
            return one_line(value)
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.3f}"
    return value


class JsonReports:
    """One object per line, with all values of a report."""

    def add(self, report: Report) -> str:
        """The text of a report."""
        return json.dumps(_as_json(report)) + "\n"


def _as_json(report: Report) -> dict[str, Any]:
    """Topics with channels, each with the numbers of each nsqd; then all nsqds and nsqlookupds."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    consumers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, topic in topics_of(report.snapshot):
        parts.setdefault((topic.name, ""), []).append(_part(name, _TOPIC_PART, topic))
        for channel in topic.channels:
            part = _part(name, _CHANNEL_PART, channel)
            parts.setdefault((topic.name, channel.name), []).append(part)
    for each in report.consumers or ():
        consumers.setdefault((each.topic, each.channel), []).append(_values(_CONSUMER, each))
    found: dict[str, dict[str, Any]] = {}
    for row in report.rows:
        key = (row.topic, row.channel)
        entry = {
            **_values(_ROW, row),
            "missing": row.missing,
            "latency": _percentiles(report.latencies.get(key, ())),
            "nsqds": parts.get(key, []),
        }
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
        "nsqds": [_nsqd(name, snapshot) for name in snapshot.nodes],
        "lookupds": [
            {"lookupd": name, "error": _text(error)} for name, error in snapshot.lookupds.items()
        ],
    }


def _nsqd(name: str, snapshot: Snapshot) -> dict[str, Any]:
    node, stats = snapshot.nodes[name], snapshot.stats.get(name)
    return {
        "nsqd": name,
        "broadcast": str(node.tcp) if node.tcp else None,
        "hostname": node.hostname,
        "version": stats.version if stats else node.version,
        "health": stats.health if stats else None,
        "start_time": stats.start_time if stats else None,
        "error": _text(snapshot.silent.get(name)),
    }


def _part(nsqd: str, columns: Accessors, each: TopicStats | ChannelStats) -> dict[str, Any]:
    return {"nsqd": nsqd, **_values(columns, each), "latency": _percentiles(measured(each))}


def _text(error: object) -> str | None:
    return None if error is None else str(error)


def _percentiles(percentiles: Iterable[tuple[float, float]]) -> dict[str, float] | None:
    """Seconds by ``p99``, or None."""
    return {_percentile(q): seconds for q, seconds in percentiles} or None
