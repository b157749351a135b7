"""What reports look like to the next program in the pipe."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from click import unstyle

from nsqtools.cli.commands.stats.formats import Csv, JsonReports, Lines, Tables, style_of
from nsqtools.cli.commands.stats.report import Report
from nsqtools.cli.output import TableLayout, aligned
from nsqtools.engine.cluster import Snapshot
from nsqtools.engine.clusterstats import ConsumerRates, ConsumerRow, latencies
from nsqtools.net.http.replies import (
    ChannelStats,
    ClientStats,
    NsqdStats,
    ProcessingLatency,
    TopicStats,
)
from tests.support.reports import LOOKUPD, NSQD, REFUSED, SILENT, report, row

# As nsq_stat 1.3.0 prints it.
HEADER = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
"""
LINE = (
    "     10       8 |       5       3       2     3     4 |      50      60           70       8"
)

CLIENT = ClientStats(
    *("id", "host", "agent/1 (x)", "10.0.0.1:5000"),
    *(3, 100, 2, 30, 20, 10),
    5,
    True,
    True,
    False,
    authed=False,
)


def one(**changes: Any) -> Report:
    return report(row(depth=5, ingress=10.4, egress=7.5), **changes)


def test_one_channel_looks_as_in_nsq_stat_which_counts_a_sample_before_the_first_line() -> None:
    lines = Lines(single=True)
    expected = [f"{HEADER if n in (0, 24, 49) else ''}{LINE}\n" for n in range(52)]
    assert [lines.add(one()) for _ in range(52)] == expected


def test_a_row_is_coloured_by_the_worst_of_its_problems() -> None:
    rows = [row(missing=1, paused=True), row(paused=True), row(), row(channel="")]
    assert [style_of(each) for each in rows] == ["red", "yellow", "", "dim"]


def test_notes_follow_the_columns_only_where_there_are_any() -> None:
    lines = Lines(single=True)
    lines.add(one())
    noted = report(row(depth=5, ingress=10.4, egress=7.5, paused=True, missing=2))
    assert lines.add(noted) == f"{LINE} | paused missing=2\n"
    slow = replace(one(), latencies={("t", "c"): ((0.99, 1.5), (0.5, 0.0123456))})
    assert lines.add(slow) == f"{LINE} | p99=1.5s p50=12.3ms\n"


def test_several_rows_have_their_names_behind_and_a_blank_line_after_them() -> None:
    lines = Lines(single=False)
    both = report(row(channel="", depth=5, paused=True), row(depth=5))
    rule, titles, topic, channel, blank = lines.add(both).split("\n")[:5]
    assert rule == HEADER.splitlines()[0] + "+"
    assert titles == HEADER.splitlines()[1] + " | topic channel"
    assert topic.split()[14:] == ["t", "-", "paused"]
    assert channel.split()[14:] == ["t", "c"]
    assert blank == ""
    assert lines.add(both).split("\n")[:3] == [topic, channel, ""]


def test_names_cannot_forge_lines() -> None:
    forged = report(row("a\nb", "c\x1b[2J"))
    for form in (Lines(single=False), Csv(), JsonReports()):
        text = form.add(forged)
        assert all(line.isprintable() for line in text.splitlines())
        assert "a\\nb" in text


def test_csv_has_one_header_and_leaves_empty_what_is_not_known() -> None:
    form = Csv()
    text = form.add(one()) + form.add(report(row("u", "", ingress=None, paused=True, missing=1)))
    assert text.splitlines() == [
        "time,topic,channel,ingress,egress,depth,memory_depth,backend_depth,in_flight,deferred,"
        "requeues,timeouts,messages,clients,requeue_rate,timeout_rate,paused,nsqds,missing",
        "2023-11-14T22:13:20.000Z,t,c,10.400,7.500,5,3,2,3,4,50,60,70,8,0.500,0.250,false,1,0",
        "2023-11-14T22:13:20.000Z,u,,,0.000,0,0,0,3,4,50,60,70,8,0.500,0.250,true,1,1",
    ]


def channel(*clients: ClientStats, latency: ProcessingLatency | None = None) -> TopicStats:
    found = ChannelStats("c", 1, 0, 2, 3, 4, 5, 6, 7, False, latency, clients)
    return TopicStats("t", 9, 8, 7, True, (found,), 6, latency)


def snapshot(at: float = 0.0, **nsqds: TopicStats) -> Snapshot:
    stats = {name: NsqdStats("1.3.0", "OK", 1, (topic,)) for name, topic in nsqds.items()}
    return Snapshot(at, stats, {}, {})


def test_json_is_one_line_with_each_nsqds_part_and_who_is_silent() -> None:
    given = report(row(channel=""), row(depth=5, missing=1), silent=True, lookupd=True)
    text = JsonReports().add(given)
    assert text.count("\n") == 1
    said = json.loads(text)
    assert (said["time"], said["interval"]) == ("2023-11-14T22:13:20.000Z", 2.0)
    (topic,) = said["topics"]
    assert (topic["topic"], topic["messages"]) == ("t", 70)
    (found,) = topic["channels"]
    assert (found["channel"], found["depth"], found["missing"]) == ("c", 5, 1)
    assert "consumers" not in found
    errors = {each["nsqd"]: each["error"] for each in said["nsqds"]}
    assert errors == {NSQD: None, SILENT: f"{SILENT}: connection refused"}
    assert said["lookupds"] == [{"lookupd": LOOKUPD, "error": f"{LOOKUPD}: connection refused"}]
    parts = snapshot(a=channel(latency=ProcessingLatency(3, ((0.99, 1.5),))), b=channel())
    said = json.loads(JsonReports().add(replace(one(), snapshot=parts)))
    first, second = said["topics"][0]["channels"][0]["nsqds"]
    counts = {"depth": 1, "backend_depth": 0, "in_flight": 2, "deferred": 3, "requeues": 5}
    counts |= {"timeouts": 6, "messages": 4, "clients": 7}
    assert first == {"nsqd": "a", **counts, "paused": False, "latency": {"p99": 1.5}}
    assert second == {"nsqd": "b", **counts, "paused": False, "latency": None}


def test_the_latency_of_a_row_is_that_of_the_slowest_nsqd_that_measured_any() -> None:
    found = latencies(
        snapshot(
            a=channel(latency=ProcessingLatency(3, ((0.5, 1.0), (0.99, 2.0)))),
            b=channel(latency=ProcessingLatency(3, ((0.5, 0.5), (0.99, 9.0)))),
            c=channel(latency=ProcessingLatency(0, ((0.5, 99.0),))),
            d=channel(),
        )
    )
    assert found == {("t", ""): ((0.99, 9.0), (0.5, 1.0)), ("t", "c"): ((0.99, 9.0), (0.5, 1.0))}


def test_rates_of_consumers_are_those_of_a_connection() -> None:
    rates = ConsumerRates()
    (first,) = rates.record(replace(snapshot(10.0, a=channel(CLIENT)), times={"a": 10.5}))
    assert (first.finish_rate, first.requeue_rate) == (None, None)
    later = replace(CLIENT, finish_count=30, requeue_count=14)
    (second,) = rates.record(replace(snapshot(14.0, a=channel(later)), times={"a": 14.5}))
    assert (second.finish_rate, second.requeue_rate) == (2.5, 1.0)
    assert (second.topic, second.channel, second.nsqd) == ("t", "c", "a")
    (fallen,) = rates.record(snapshot(15.0, a=channel(replace(later, finish_count=1))))
    assert (fallen.finish_rate, fallen.requeue_rate) == (0.0, 0.0)
    again = replace(later, connect_ts=99, finish_count=1)
    (third,) = rates.record(snapshot(16.0, a=channel(again)))
    assert third.finish_rate is None


def test_consumers_in_csv_and_json() -> None:
    packed = replace(CLIENT, tls=False, snappy=False, deflate=True, authed=True)
    consumers = [
        ConsumerRow("t", "c", NSQD, CLIENT, 2.4, None),
        ConsumerRow("t", "c", NSQD, packed, 0.0, 1.0),
        ConsumerRow("t", "c", NSQD, replace(CLIENT, connect_ts=1 << 62), 0.0, 0.0),
    ]
    consumed = replace(one(), consumers=consumers)
    first, second, _ = csv.DictReader(io.StringIO(Csv(consumers=True).add(consumed)))
    names = ("hostname", "user_agent", "tls", "ready_count", "finish_rate", "requeue_rate")
    assert [first[name] for name in names] == ["host", "agent/1 (x)", "true", "100", "2.400", ""]
    assert (second["compression"], second["connected"]) == ("deflate", "1970-01-01T00:00:05Z")
    (found,) = json.loads(JsonReports().add(consumed))["topics"][0]["channels"]
    rows = [line.split("\t") for line in Tables(consumers=True).add(consumed).splitlines()]
    assert rows[0] == [
        *("t", "c", "100", "2", "2", "-", "20", "10", "yes", "snappy", "", NSQD, "id", "host"),
        *("10.0.0.1:5000", "1970-01-01T00:00:05Z", "agent/1 (x)"),
    ]
    assert rows[1][8:11] == ["", "deflate", "yes"]
    assert rows[2][15] == ""
    assert [each["compression"] for each in found["consumers"]] == ["snappy", "deflate", "snappy"]
    assert found["consumers"][2]["connected"] is None
    assert found["consumers"][0]["finish_rate"] == 2.4


def test_a_report_on_a_terminal_is_a_table_with_a_blank_line_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    form, name = Tables(), "x" * 60
    rows = row(channel="", ingress=None), row("u", name, ingress=9.94, egress=10.0, paused=True)
    text = form.add(report(*rows, silent=True))
    lines = unstyle(text).splitlines()
    cut = f"{name[:21]}…"
    assert lines == [
        f"topic  {'channel':<22}  in/s  out/s  depth  disk  inflt  def"
        "  req  t-o  msgs  clients  notes",
        f"t      {'-':<22}     -      0      0     0      3    4   50   60    70        8",
        f"u      {cut}   9.9     10      0     0      3    4   50   60    70        8  paused",
        f"no answer: {REFUSED}",
    ]
    assert form.add(report(*rows, silent=True)) == f"\n{text}"
    consumed = replace(one(), consumers=[ConsumerRow("t", name, NSQD, CLIENT, 2.4, None)])
    first, second = unstyle(Tables(consumers=True).add(consumed)).splitlines()
    assert second.split()[1] == f"{name[:11]}…"
    for title in ("rdy", "inflt", "fin/s", "req/s", "fin", "req"):
        assert second[first.index(f"{title} ") + len(title) - 1] != " "


def test_a_table_has_numbers_to_the_right_and_cuts_the_longest_names() -> None:
    rows = [
        ("topic", "channel", "n", "notes"),
        ("t" * 30, "c" * 14, "12,345", "paused"),
        ("u", "-", "7", ""),
    ]
    lines = aligned(rows, TableLayout(range(2, 3), cut=2), 52)
    assert lines == [
        f"{'topic':<20}  {'channel':<14}       n  notes",
        f"{'t' * 19}…  {'c' * 14}  12,345  paused",
        f"{'u':<20}  {'-':<14}       7",
    ]
    assert aligned(rows, TableLayout(range(2, 3), cut=2), 80)[1].startswith("t" * 30)
    assert aligned([("x" * 30, "n"), ("u", "7")], TableLayout(), 9)[1] == f"u{' ' * 31}7"
