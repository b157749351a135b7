"""Queries of topics and of archives, and where their results go."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from nsqtools.errors import ConfigError, NSQError, OutputError
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs.archive import ArchiveSettings, archive
from nsqtools.spark.jobs.progress import Totals
from nsqtools.spark.jobs.sql import (
    ArchivesSettings,
    Destination,
    Query,
    StreamSettings,
    explain,
    query_archives,
    query_stream,
)
from nsqtools.spark.jobs.streams import Stream
from nsqtools.spark.lake.dataframes import body_schema
from tests.support.replays import Taken, nothing
from tests.support.streaming import OfTopic, publish, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.process import Cli
    from tests.support.servers import Nsqd

ORDERS = [b'{"user": %d, "total": %d}' % (n % 3, n) for n in range(30)]


class Shown:
    """What a console would show."""

    def __init__(self) -> None:
        self.columns: Sequence[str] = ()
        self.rows: list[tuple[Any, ...]] = []

    def __call__(self, columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
        self.columns = columns
        self.rows += map(tuple, rows)

    @property
    def target(self) -> Destination:
        return Destination("console", show=self)


class Asking(OfTopic):
    """Queries of a topic."""

    def settings(
        self, query: str, target: Destination, *, mode: str = "append", **more: Any
    ) -> StreamSettings:
        return StreamSettings(
            query=Query(query, **{"schema": "user INT, total INT", **more}),
            target=target,
            source=self.source(),
            stream=self.stream(output_mode=mode),
        )

    def ask(self, query: str, target: Destination, **more: Any) -> Totals:
        settings = self.settings(query, target, **more)
        return query_stream(self.spark, settings, **self.given)


@pytest.fixture
def asking(spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path) -> Asking:
    return Asking(spark, nsqd, topic, tmp_path / "result")


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_a_stream_is_queried_into_files_that_a_repeated_batch_replaces(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Destination("parquet", output=str(asking.folder))
    asking.publish(*ORDERS)
    with monkeypatch.context() as crashing:
        crashing.setattr("nsqtools.spark.jobs.batches.summary", crash)
        with pytest.raises(OutputError):
            asking.ask("SELECT user, total FROM nsq WHERE total >= 10", target)
    totals = asking.ask("SELECT user, total FROM nsq WHERE total >= 20", target)
    assert (totals.received, totals.written) == (30, 10)
    found = rows(asking.folder)
    assert sorted(row["total"] for row in found) == list(range(20, 30))
    assert {name for row in found for name in row} == {"user", "total", "batch"}


def crash(*_: object) -> None:
    raise OutputError("disk on fire")


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_windows_with_a_watermark_are_written_once_they_are_final(asking: Asking) -> None:
    asking.publish(*ORDERS)
    query = (
        "SELECT user, sum(total) AS total FROM nsq "
        "GROUP BY window(timestamp, '1 millisecond'), user"
    )
    target = Destination("parquet", output=str(asking.folder))
    written = asking.ask(query, target, watermark=0.001).written
    asking.publish(b'{"user": 9, "total": 100}')
    written += asking.ask(query, target, watermark=0.001).written
    assert written == len(rows(asking.folder)), "those of batches without messages, too"
    totals = {0: 0, 1: 0, 2: 0}
    for row in rows(asking.folder):
        totals[row["user"]] += row["total"]
    assert totals == {user: sum(range(user, 30, 3)) for user in range(3)}


JOIN = """
SELECT o.id, o.n FROM {orders} o JOIN {clicks} c ON o.id = c.id
    AND c.at BETWEEN o.at AND o.at + INTERVAL '10' MINUTE
"""


def event(number: int, minute: int, *, late: bool = False) -> bytes:
    """A body of the minute after ten o'clock."""
    at = datetime(2026, 11, 21, 10, tzinfo=UTC) + timedelta(minutes=minute)
    return json.dumps(
        {"id": number % 1000, "n": number, "at": at.isoformat(), "late": late}
    ).encode()


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_topics_are_joined_by_the_time_of_events_without_those_that_are_late(
    asking: Asking, tmp_path: Path
) -> None:
    """As DuckDB joins an archive of the same messages; each number that is told is there."""
    orders, clicks = topics = [f"{asking.topic}.{name}" for name in ("orders", "Clicks")]
    source = {**asking.source(), "subscribe": ",".join(topics)}
    query = Query(
        JOIN.format(orders=f"`{orders}`", clicks=f"`{clicks}`"),
        schema="id INT, n INT, at TIMESTAMP, late BOOLEAN",
        timestamp="at",
        watermark=600.0,
    )
    settings = StreamSettings(
        query, Destination("parquet", str(asking.folder)), source, asking.stream()
    )
    first = [event(number, number) for number in range(20)]
    runs = [
        ([*first, b"[]"], [event(n, n + (5 if n % 3 else 20)) for n in range(0, 20, 2)]),
        ([event(n, 100 + n) for n in range(20, 30)], [event(n, 101 + n) for n in range(20, 30)]),
        (
            [event(50, 3, late=True), event(31, 140)],
            [event(50, 4, late=True), event(1, 4, late=True), event(31, 141), event(1031, 142)],
        ),
    ]
    totals = Totals()
    for run in runs:
        for topic, bodies in zip(topics, run, strict=True):
            for channel in ("c", "lake"):
                asking.nsqd.create(topic, channel)
            publish(asking.nsqd, topic, bodies)
        query_stream(asking.spark, settings, **asking.given)
    for fact in asking.facts:
        totals.add(fact)
    lake = ArchiveSettings(
        {**source, "channel": "lake", "stagingLocation": str(tmp_path / "staging")},
        str(tmp_path / "lake"),
        Stream(str(tmp_path / "checkpoint")),
    )
    archive(asking.spark, lake, **{**asking.given, "report": nothing})
    for topic, table in zip(topics, ("orders", "clicks"), strict=True):
        duckdb.execute(
            f"create or replace temp view {table} as "
            "select cast(cast(decode(body) as json)->>'id' as int) as id, "
            "cast(cast(decode(body) as json)->>'n' as int) as n, "
            "cast(cast(decode(body) as json)->>'at' as timestamptz) as at, "
            "coalesce(cast(cast(decode(body) as json)->>'late' as bool), false) as late "
            f"from read_parquet('{tmp_path}/lake/**/*.parquet') where topic = '{topic}'"
        )
    expected = duckdb.execute(
        JOIN.format(orders="orders", clicks="clicks") + " AND NOT o.late AND NOT c.late"
    ).fetchall()
    found = rows(asking.folder)
    assert sorted((row["id"], row["n"]) for row in found) == sorted(expected)
    assert len(found) > 15
    ((messages, late),) = duckdb.execute(
        "select count(*), count_if(late) from (from orders union all from clicks)"
    ).fetchall()
    assert (totals.received, totals.written) == (messages, len(found))
    assert (totals.corrupt, totals.late) == (1, late)


def test_a_topic_is_read_once_and_each_topic_is_used(asking: Asking) -> None:
    target = Destination("parquet", str(asking.folder))
    with pytest.raises(ConfigError, match=r"^--query: .*once"):
        asking.ask(f"SELECT a.body FROM nsq a JOIN `{asking.topic}` b USING (body)", target)
    settings = asking.settings("SELECT body FROM nsq_other", target)
    settings = replace(settings, source={**settings.source, "subscribe": "nsq_other,more"})
    with pytest.raises(ConfigError, match=r"^--topic more: "):
        query_stream(asking.spark, settings, **asking.given)
    with pytest.raises(ConfigError, match=r"^--timestamp total: .*int"):
        asking.ask("SELECT body FROM nsq", target, timestamp="total")
    with pytest.raises(ConfigError, match=r"^--timestamp at: "):
        asking.ask("SELECT body FROM nsq", target, timestamp="at")


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_a_changed_query_is_told_to_take_another_checkpoint(asking: Asking) -> None:
    target = Destination("parquet", str(asking.folder))
    asking.publish(*ORDERS)
    windows = "SELECT count(*) AS n{} FROM nsq GROUP BY window(timestamp, '1 second'){}"
    asking.ask(windows.format("", ""), target, watermark=1.0)
    asking.publish(*ORDERS)
    with pytest.raises(NSQError, match="another --checkpoint"):
        asking.ask(windows.format(", user", ", user"), target, watermark=1.0)


def test_columns_are_inferred_from_a_sample(
    spark: SparkSession, asking: Asking, tmp_path: Path
) -> None:
    sample = tmp_path / "sample.log"
    sample.write_bytes(b'{"user": 1, "at": "2026-11-21T10:00:00Z"}\nnot JSON\n{"total": 0.5}\n')
    found = body_schema(spark, "", str(sample))
    assert found
    assert found.simpleString() == "struct<at:timestamp,total:double,user:bigint>"
    sample.write_bytes(b"1\n")
    with pytest.raises(ConfigError, match=f"^--infer {sample}: "):
        body_schema(spark, "", str(sample))


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_an_aggregation_is_shown_anew_after_each_batch_in_the_mode_that_says_so(
    asking: Asking,
) -> None:
    shown = Shown()
    asking.publish(*ORDERS)
    query = "SELECT user, count(*) AS n FROM nsq GROUP BY user"
    asking.ask(query, shown.target, mode="complete")
    assert list(shown.columns) == ["user", "n"]
    assert sorted(shown.rows) == [(0, 10), (1, 10), (2, 10)]
    asking.publish(b'{"user": 2}')
    asking.ask(query, shown.target, mode="complete")
    assert sorted(shown.rows[3:]) == [(0, 10), (1, 10), (2, 11)]


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_what_a_query_has_not_shown_the_next_one_begins_with_whatever_it_asks(
    asking: Asking, tmp_path: Path
) -> None:
    shown = Shown()
    asking.publish(b"1", b"x", b"2")

    def ask(query: str, run: int, mode: str = "append") -> None:
        settings = asking.settings(query, shown.target, mode=mode, schema="")
        settings = replace(
            settings,
            source={**settings.source, "streamName": "console"},
            stream=replace(settings.stream, checkpoint=str(tmp_path / f"scratch-{run}")),
        )
        query_stream(asking.spark, settings, **asking.given)

    with pytest.raises(NSQError, match="CAST_INVALID_INPUT"):
        ask("SELECT CAST(CAST(body AS STRING) AS INT) FROM nsq", 1)
    assert asking.nsqd.channel(asking.topic, "c")["depth"] == 0
    for query in (
        "SELECT window.start, count(*) FROM nsq GROUP BY window(timestamp, '1 minute')",
        "SELECT DISTINCT timestamp FROM nsq",
    ):
        with pytest.raises(ConfigError, match="--checkpoint"):
            ask(query, 2)
    total = "SELECT count(*) AS n, sum(try_cast(CAST(body AS STRING) AS INT)) AS total FROM nsq"
    ask(total, 3, "complete")
    assert shown.rows == [(3, 3)]
    ask("SELECT body FROM nsq", 4)
    assert shown.rows == [(3, 3)]


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_a_topic_gets_bodies_or_else_rows_as_json(asking: Asking, nsqtools_cli: Cli) -> None:
    sink = {"topic": f"{asking.topic}.out", "nsqd.tcp.addresses": str(asking.nsqd.tcp)}
    asking.nsqd.create(sink["topic"], "c")
    asking.publish(b'{"user": 1}', b"\xff")
    asking.ask("SELECT upper(topic) AS topic, body FROM nsq", Destination("topic", sink=sink))
    asking.publish(b'{"user": 2}')
    asking.ask("SELECT user FROM nsq", Destination("topic", sink=sink))
    taken = Taken(nsqtools_cli, asking.nsqd, sink["topic"])
    assert sorted(taken()) == [b'{"user": 1}', b'{"user":2}', b"\xff"]


@pytest.mark.parametrize(
    ("query", "culprit"),
    [
        ("SELECT usr FROM nsq", "UNRESOLVED_COLUMN"),
        ("SELEC user FROM nsq", "PARSE_SYNTAX_ERROR"),
        ("SELECT 1", "nsq"),
        ("SELECT 1 AS batch FROM nsq", "batch"),
        # A stream is read once, or each reader would miss some.
        ("SELECT body FROM nsq UNION ALL SELECT body FROM nsq", "more than once"),
        ("WITH t AS (SELECT * FROM nsq) SELECT a.body FROM t a JOIN t b USING (body)", "once"),
    ],
)
def test_a_query_that_cannot_be_is_known_before_a_message_moves(
    asking: Asking, query: str, culprit: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--query: .*{culprit}"):
        asking.ask(query, Destination("parquet", output=str(asking.folder)))
    with pytest.raises(LookupError):
        asking.nsqd.topic(asking.topic)


def test_a_plan_is_explained_and_nothing_consumed(asking: Asking) -> None:
    settings = asking.settings("SELECT user FROM nsq WHERE total > 1", Shown().target)
    text = explain(asking.spark, settings, stop=asking.stop)
    assert text.startswith("== Physical Plan ==")
    assert "StreamingRelation" in text
    with pytest.raises(LookupError):
        asking.nsqd.topic(asking.topic)


def test_archives_are_queried_once(asking: Asking, tmp_path: Path) -> None:
    asking.publish(*ORDERS)
    lake = tmp_path / "lake"
    asking.ask("SELECT * FROM nsq", Destination("parquet", output=str(lake)))
    shown = Shown()

    def ask(query: str, target: Destination) -> None:
        settings = ArchivesSettings(Query(query, "user INT"), target, (str(lake),), None)
        given = {**asking.given, "report": lambda *_: None}
        query_archives(asking.spark, settings, **given)

    ask("SELECT user, count(*) AS n, max(hour) >= 0 FROM nsq GROUP BY user", shown.target)
    assert sorted(shown.rows) == [(user, 10, True) for user in range(3)]
    assert "Scan parquet" in explain(
        asking.spark,
        ArchivesSettings(Query("SELECT body FROM nsq"), shown.target, (str(lake),), None),
        stop=asking.stop,
    )
    target = Destination("json", output=str(tmp_path / "json"))
    ask("SELECT user, body FROM nsq WHERE user = 2", target)
    (file,) = (tmp_path / "json").glob("*.json")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["body"].encode() for each in found] == ORDERS[2::3]
    with pytest.raises(ConfigError, match="json: has files"):
        ask("SELECT user FROM nsq", target)
    with pytest.raises(ConfigError, match="--query: "):
        ask("SELECT usr FROM nsq", shown.target)
    asking.stop.set()
    with pytest.raises(StoppedError):
        ask("SELECT count(*) FROM range(1000000000000), nsq", shown.target)
