"""Queries of topics and of archives, and where their results go."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError, NSQError, OutputError
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs.sql import (
    ArchivesSettings,
    Destination,
    Query,
    StreamSettings,
    explain,
    query_archives,
    query_stream,
)
from tests.support.replays import Taken
from tests.support.streaming import OfTopic, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from nsqtools.spark.jobs.progress import Totals
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
    asking.ask(query, target, watermark=0.001)
    asking.publish(b'{"user": 9, "total": 100}')
    asking.ask(query, target, watermark=0.001)
    totals = {0: 0, 1: 0, 2: 0}
    for row in rows(asking.folder):
        totals[row["user"]] += row["total"]
    assert totals == {user: sum(range(user, 30, 3)) for user in range(3)}


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
        ("WITH t AS (SELECT * FROM nsq) SELECT a.body FROM t a JOIN t b USING (body)", "nsq"),
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
