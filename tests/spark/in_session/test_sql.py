"""Queries of topics and of archives, and where their results go."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from nsqtools.errors import ConfigError, NSQError
from nsqtools.records.bodies.decoders import Decoding
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs.batches import LakeOutput
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
from nsqtools.spark.lake.dataframes import body_schema
from tests.support.decoding import order, protobuf_file
from tests.support.lakes import sent, to_parquet
from tests.support.process import Cli
from tests.support.replays import Taken, nothing
from tests.support.servers import Nsqd
from tests.support.streaming import OfTopic, publish, rows

MORE = pytest.mark.full("more of what jobs make of rows in Spark")

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
        return Destination(show=self)


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


@MORE
def test_windows_with_a_watermark_are_written_once_they_are_final(asking: Asking) -> None:
    asking.publish(*ORDERS)
    query = (
        "SELECT user, sum(total) AS total FROM nsq "
        "GROUP BY window(timestamp, '1 millisecond'), user"
    )
    target = Destination(LakeOutput(str(asking.folder)))
    written = asking.ask(query, target, watermark=0.001).written
    asking.publish(b'{"user": 9, "total": 100}')
    written += asking.ask(query, target, watermark=0.001).written
    assert written == len(rows(asking.folder)), "those of batches without messages, too"
    totals = {0: 0, 1: 0, 2: 0}
    for row in rows(asking.folder):
        totals[row["user"]] += row["total"]
    assert totals == {user: sum(range(user, 30, 3)) for user in range(3)}


def event(number: int, minute: int, *, late: bool = False) -> dict[str, Any]:
    """Of the minute after ten o'clock."""
    at = datetime(2026, 11, 21, 10, tzinfo=UTC) + timedelta(minutes=minute)
    return {"id": number % 1000, "n": number, "at": at.isoformat(), "late": late}


@MORE
def test_topics_are_joined_by_the_time_of_events_without_those_that_are_late(
    asking: Asking,
) -> None:
    topics = [f"{asking.topic}.{name}" for name in ("orders", "Clicks")]
    source = {**asking.source(), "subscribe": ",".join(topics)}
    query = Query(
        f"SELECT o.id, o.n FROM `{topics[0]}` o JOIN `{topics[1]}` c ON o.id = c.id "
        "AND c.at BETWEEN o.at AND o.at + INTERVAL '10' MINUTE",
        schema="id INT, n INT, at TIMESTAMP, late BOOLEAN",
        timestamp="at",
        watermark=600.0,
    )
    settings = StreamSettings(
        query, Destination(LakeOutput(str(asking.folder))), source, asking.stream()
    )
    runs = [
        (
            [event(number, number) for number in range(20)],
            [event(n, n + (5 if n % 3 else 20)) for n in range(0, 20, 2)],
        ),
        ([event(n, 100 + n) for n in range(20, 30)], [event(n, 101 + n) for n in range(20, 30)]),
        (
            [event(50, 3, late=True), event(31, 140)],
            [event(50, 4, late=True), event(1, 4, late=True), event(31, 141), event(1031, 142)],
        ),
    ]
    totals = Totals()
    corrupt = [b"[]"]
    for run in runs:
        for topic, events in zip(topics, run, strict=True):
            publish(asking.nsqd, topic, [json.dumps(each).encode() for each in events] + corrupt)
            corrupt = []
        query_stream(asking.spark, settings, **asking.given)
    for fact in asking.facts:
        totals.add(fact)
    orders, clicks = ([each for run in runs for each in run[side]] for side in range(2))
    minutes = {each["n"]: datetime.fromisoformat(each["at"]) for each in orders}
    expected = [
        (order["id"], order["n"])
        for order in orders
        for click in clicks
        if order["id"] == click["id"]
        and not (order["late"] or click["late"])
        and timedelta()
        <= datetime.fromisoformat(click["at"]) - minutes[order["n"]]
        <= timedelta(minutes=10)
    ]
    found = rows(asking.folder)
    assert sorted((row["id"], row["n"]) for row in found) == sorted(expected)
    assert len(found) > 15
    late = sum(each["late"] for each in orders + clicks)
    assert (totals.received, totals.written) == (len(orders + clicks) + 1, len(found))
    assert (totals.corrupt, totals.late) == (1, late)


def test_decoded_bodies_are_a_column_and_have_the_columns_of_a_schema(
    asking: Asking, tmp_path: Path
) -> None:
    """Once in the stream of a topic, once in an archive, whose columns are inferred."""
    bodies = [*(order(id=n, user_name=f"u{n}").SerializeToString() for n in (1, 2)), b"\xff\x00"]
    decode = Decoding.read(protobuf_file(tmp_path))
    shown = Shown()
    query = "SELECT body, decoded, id, _corrupt FROM nsq ORDER BY id"
    archive = str(to_parquet(tmp_path / "a.parquet", sent(*bodies)))
    asked = Query(query, infer=archive, decode=decode)
    settings = ArchivesSettings(asked, shown.target, (archive,), None)
    query_archives(asking.spark, settings, **{**asking.given, "report": nothing})
    assert [(bytes(body), *rest) for body, *rest in shown.rows] == [
        (bodies[2], None, None, "\ufffd\x00"),
        (bodies[0], '{"id":1,"user_name":"u1"}', 1, None),
        (bodies[1], '{"id":2,"user_name":"u2"}', 2, None),
    ]
    asking.publish(*bodies)
    totals = asking.ask("SELECT decoded FROM nsq", shown.target, schema="", decode=decode)
    assert (totals.written, totals.corrupt) == (3, 1)
    assert set(shown.rows[3:]) == {(row[1],) for row in shown.rows[:3]}
    asking.publish(*bodies)
    failing = Decoding("cmd:false")
    with pytest.raises(NSQError, match="--decode cmd:false: "):
        asking.ask("SELECT decoded FROM nsq", shown.target, schema="", decode=failing)


@pytest.mark.parametrize(
    ("query", "culprit", "more"),
    [
        ("SELECT usr FROM nsq", "query: .*UNRESOLVED_COLUMN", {}),
        ("SELEC user FROM nsq", "query: .*PARSE_SYNTAX_ERROR", {}),
        ("SELECT 1", "query: .*nsq", {}),
        ("SELECT 1 AS batch FROM nsq", "query: .*batch", {}),
        # A stream is read once, or each reader would miss some.
        ("SELECT a.body FROM nsq a JOIN `{topic}` b USING (body)", "query: .*once", {}),
        ("SELECT body FROM nsq UNION ALL SELECT body FROM nsq", "query: .*more than once", {}),
        (
            "WITH t AS (SELECT * FROM nsq) SELECT a.body FROM t a JOIN t b USING (body)",
            "query: .*once",
            {},
        ),
        ("SELECT body FROM `{topic}`", "topic more: ", {"source": {"subscribe": "{topic},more"}}),
        ("SELECT body FROM nsq", "timestamp total: .*int", {"timestamp": "total"}),
        ("SELECT body FROM nsq", "timestamp at: ", {"timestamp": "at"}),
        # What was not shown is shown by a query that may ask for something else.
        ("SELECT DISTINCT timestamp FROM nsq", "checkpoint", {"source": {"streamName": "console"}}),
    ],
)
def test_a_query_that_cannot_be_is_known_before_a_message_moves(
    asking: Asking, query: str, culprit: str, more: dict[str, Any]
) -> None:
    target = Shown().target if "checkpoint" in culprit else Destination(LakeOutput("/none"))
    given = {key: text.format(topic=asking.topic) for key, text in more.get("source", {}).items()}
    named = {key: text for key, text in more.items() if key != "source"}
    settings = asking.settings(query.format(topic=asking.topic), target, **named)
    settings = replace(settings, source={**settings.source, **given})
    with pytest.raises(ConfigError, match=f"--{culprit}"):
        query_stream(asking.spark, settings, **asking.given)
    with pytest.raises(LookupError):
        asking.nsqd.topic(asking.topic)


@MORE
def test_a_changed_query_is_told_to_take_another_checkpoint(asking: Asking) -> None:
    target = Destination(LakeOutput(str(asking.folder)))
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


@MORE
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


@MORE
def test_a_topic_gets_bodies_or_else_rows_as_json(asking: Asking, nsqtools_cli: Cli) -> None:
    sink = {"topic": f"{asking.topic}.out", "nsqd.tcp.addresses": str(asking.nsqd.tcp)}
    asking.nsqd.create(sink["topic"], "c")
    asking.publish(b'{"user": 1}', b"\xff")
    asking.ask("SELECT upper(topic) AS topic, body FROM nsq", Destination(sink=sink))
    asking.publish(b'{"user": 2}')
    asking.ask("SELECT user FROM nsq", Destination(sink=sink))
    taken = Taken(nsqtools_cli, asking.nsqd, sink["topic"])
    assert sorted(taken()) == [b'{"user": 1}', b'{"user":2}', b"\xff"]


@MORE
def test_a_table_gets_the_rows_of_a_query_and_new_columns_when_asked(asking: Asking) -> None:
    place = str(asking.folder)
    asking.publish(*ORDERS)
    asking.ask("SELECT user FROM nsq", Destination(LakeOutput(place, "delta")))
    asking.publish(*ORDERS)
    more = "SELECT user, total FROM nsq"
    with pytest.raises(ConfigError, match="lacks total"):
        asking.ask(more, Destination(LakeOutput(place, "delta")))
    asking.ask(more, Destination(LakeOutput(place, "delta", evolve=True)))
    found = DeltaTable(place).to_pyarrow_table()
    assert found.num_rows == 2 * len(ORDERS)
    assert found["total"].null_count == len(ORDERS)


def test_archives_are_queried_once_and_plans_explained(asking: Asking, tmp_path: Path) -> None:
    to_parquet(tmp_path / "lake/date=2026-11-21/hour=09/batch=0-1/part-1.parquet", sent(*ORDERS))
    shown = Shown()

    def of(query: str, target: Destination) -> ArchivesSettings:
        return ArchivesSettings(Query(query, "user INT"), target, (str(tmp_path / "lake"),), None)

    def ask(query: str, target: Destination) -> None:
        given = {**asking.given, "report": nothing}
        query_archives(asking.spark, of(query, target), **given)

    query = "SELECT user, count(*) AS n, max(hour) = 9 FROM nsq GROUP BY user"
    assert "Scan parquet" in explain(asking.spark, of(query, shown.target), stop=asking.stop)
    stream = asking.settings("SELECT user FROM nsq WHERE total > 1", shown.target)
    text = explain(asking.spark, stream, stop=asking.stop)
    assert text.startswith("== Physical Plan ==")
    assert "StreamingRelation" in text
    ask(query, shown.target)
    assert sorted(shown.rows) == [(user, 10, True) for user in range(3)]
    target = Destination(LakeOutput(str(tmp_path / "json"), "json"))
    ask("SELECT user, body FROM nsq WHERE user = 2", target)
    (file,) = (tmp_path / "json").glob("*.json")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["body"].encode() for each in found] == ORDERS[2::3]
    ask("SELECT user, body FROM nsq", Destination(LakeOutput(str(tmp_path / "table"), "delta")))
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["body"])
    assert sorted(table["body"].to_pylist()) == sorted(ORDERS)
    with pytest.raises(ConfigError, match="json: has files"):
        ask("SELECT user FROM nsq", target)
    with pytest.raises(ConfigError, match="--query: "):
        ask("SELECT usr FROM nsq", shown.target)
    asking.stop.set()
    with pytest.raises(StoppedError):
        ask("SELECT count(*) FROM range(1000000000000), nsq", shown.target)
