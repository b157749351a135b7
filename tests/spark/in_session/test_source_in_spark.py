"""The source in Spark itself, with a real nsqd."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import AuthError, ConfigError, OutputError, UnreachableError
from nsqtools.spark.session import explain
from tests.support.eventually import eventually
from tests.support.servers import drained, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.authd import Authd
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd
    from tests.support.tls import Certificates

pytestmark = pytest.mark.nsqd_only("Spark's own ways are tested, and they take time")

PATIENCE = 60.0
"""Seconds for a query to begin, in a JVM that has not run one yet."""


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % each for each in range(*numbers)]


def bodies_of(rows: Iterable[Row]) -> Counter[bytes]:
    return Counter(bytes(row.body) for row in rows)


def at(nsqd: Nsqd) -> str:
    return f"{nsqd.tcp}/{nsqd.http.port}"


class Query:
    """A stream of one checkpoint; ``batches`` has the rows of each micro-batch of all its runs."""

    def __init__(self, spark: SparkSession, folder: Path, topic: str, **options: str) -> None:
        self.spark = spark
        self.checkpoint = folder / "checkpoint"
        self.options = {
            "subscribe": topic,
            "channel": "lake",
            "stagingLocation": str(folder / "staging"),
            "pollIntervalMs": "50",
            **{key.replace("__", "."): text for key, text in options.items()},
        }
        self.batches: list[list[Row]] = []
        self.fails: Callable[[int], bool] = lambda batch: False

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches for row in rows]

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.batches.append(frame.collect())
        if self.fails(number):
            raise RuntimeError("as told")

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("nsq").options(**self.options).load()
        writer = frame.writeStream.foreachBatch(self._keep).trigger(**trigger)
        query: StreamingQuery = writer.option("checkpointLocation", str(self.checkpoint)).start()
        return query

    def drain(self) -> None:
        """Run until all that is there now was read; raises what the query failed of."""
        self.start(availableNow=True).awaitTermination()

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = self.start(processingTime="0 seconds")
        try:
            yield query
        finally:
            query.stop()

    def error(self) -> str:
        """The one line that a drain ends with."""
        with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is asked for next
            self.drain()
        found = explain(caught.value)
        assert isinstance(found, ConfigError | AuthError | UnreachableError)
        assert "\n" not in str(found)
        return str(found)

    def logged(self, kind: str) -> int:
        """How many micro-batches Spark's log of this kind has."""
        folder = self.checkpoint / kind
        return len(list(folder.glob("[0-9]*"))) if folder.is_dir() else 0


def test_available_now_reads_all_there_is_in_batches_and_a_restart_goes_on(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.publish(topic, numbered(2500))
    given = {"nsqd__tcp__addresses": at(nsqd), "maxMessagesPerTrigger": "1000"}
    query = Query(spark, tmp_path, topic, **given)
    query.drain()
    assert [len(rows) for rows in query.batches] == [1000, 1000, 500]
    assert bodies_of(query.rows) == Counter(numbered(2500))
    assert drained(nsqd, topic, "lake")
    query.drain()
    assert len(query.batches) == 3
    nsqd.publish(topic, numbered(2500, 2600))
    eventually(lambda: nsqd.channel(topic, "lake")["depth"] == 100)
    again = Query(spark, tmp_path, topic, **given)
    again.drain()
    assert bodies_of(again.rows) == Counter(numbered(2500, 2600))
    assert not list((tmp_path / "staging").glob("*/b*"))


def test_a_batch_that_failed_is_the_same_when_it_is_run_again(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.publish(topic, numbered(300))
    query = Query(
        spark,
        tmp_path,
        topic,
        nsqd__tcp__addresses=at(nsqd),
        maxMessagesPerTrigger="100",
        connectionsPerNsqd="2",
    )
    query.fails = lambda batch: batch == 1
    with pytest.raises(Exception, match="as told"):
        query.drain()
    first, failed = query.batches
    nsqd.publish(topic, numbered(300, 400))
    query.fails = lambda batch: False
    query.drain()
    assert len(first) == 100
    assert query.batches[2] == failed
    del query.batches[1]
    assert bodies_of(query.rows) == Counter(numbered(400))


def test_a_batch_under_way_is_not_committed_without_what_is_staged_elsewhere(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    """It fails with another staging, goes on with the old one, and may be moved after that."""
    nsqd.publish(topic, numbered(300))
    query = Query(spark, tmp_path, topic, nsqd__tcp__addresses=at(nsqd))
    query.fails = lambda batch: True
    with pytest.raises(Exception, match="as told"):
        query.drain()
    query.batches.clear()
    query.fails = lambda batch: False
    old, new = query.options["stagingLocation"], str(tmp_path / "new")
    query.options["stagingLocation"] = new
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is asked for next
        query.drain()
    error = explain(caught.value)
    assert isinstance(error, OutputError)
    assert "the batch under way is staged elsewhere: give the old --staging" in str(error)
    assert query.batches == []
    query.options["stagingLocation"] = old
    query.drain()
    assert bodies_of(query.rows) == Counter(numbered(300))
    nsqd.publish(topic, numbered(300, 400))
    eventually(lambda: nsqd.channel(topic, "lake")["depth"] == 100)
    query.options["stagingLocation"] = new
    query.drain()
    assert bodies_of(query.rows) == Counter(numbered(400))


def test_a_stream_makes_batches_only_when_there_is_something(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, topic, nsqd__tcp__addresses=at(nsqd))

    def asked() -> int:
        return nsqd.log.read_text().count("/stats")

    def wait_for(batches: int) -> None:
        """Until there are so many, and messages were asked for a few times since."""
        eventually(lambda: query.logged("commits") == batches, PATIENCE)
        before = asked()
        eventually(lambda: asked() > before + 5, PATIENCE)
        assert query.logged("offsets") == batches

    with query.running() as running:
        wait_for(1)  # Spark's own, which says where the stream begins
        assert not list((tmp_path / "staging").iterdir())
        for number in range(2):
            nsqd.publish(topic, numbered(10 * number, 10 * number + 10))
            wait_for(2 + number)
        assert running.isActive
    assert [len(rows) for rows in query.batches] == [0, 10, 10]
    assert bodies_of(query.rows) == Counter(numbered(20))


def test_two_streams_with_one_staging_directory_keep_to_themselves(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    queries = []
    for name in ("a", "b"):
        nsqd.publish(f"{topic}.{name}", [b"%s%d" % (name.encode(), each) for each in range(500)])
        query = Query(spark, tmp_path / name, f"{topic}.{name}", nsqd__tcp__addresses=at(nsqd))
        query.options |= {"stagingLocation": str(tmp_path / "staging")}
        query.options |= {"maxMessagesPerTrigger": "250"}
        queries.append(query)
    running = [query.start(availableNow=True) for query in queries]
    for each in running:
        each.awaitTermination()
    for name, query in zip(("a", "b"), queries, strict=True):
        expected = Counter(b"%s%d" % (name.encode(), each) for each in range(500))
        assert bodies_of(query.rows) == expected


def test_a_topic_may_appear_later_and_an_nsqd_go_and_come_back(
    spark: SparkSession,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    certificates: Certificates,
    topic: str,
    tmp_path: Path,
) -> None:
    lookupd = make_nsqlookupd()
    one, two = (make_nsqd(*certificates.server.nsqd_args(), lookupds=[lookupd]) for _ in range(2))
    query = Query(
        spark,
        tmp_path,
        topic,
        nsqlookupd__http__addresses=str(lookupd.http),
        nsq__tls_v1="true",
        nsq__tls_root_ca_file=str(certificates.ca),
        nsq__snappy="true",
    )

    def expect(number: int) -> None:
        eventually(lambda: bodies_of(query.rows) == Counter(numbered(number)), PATIENCE)

    with query.running() as running:
        eventually(lambda: lookupd.log.read_text().count("/lookup") > 2, PATIENCE)
        one.publish(topic, numbered(100))
        expect(100)
        two.publish(topic, numbered(100, 200))
        expect(200)
        two.stop()
        one.publish(topic, numbered(200, 300))
        expect(300)
        two.start()
        eventually(lambda: two.tcp in lookupd.lookup(topic))
        two.publish(topic, numbered(300, 400))
        expect(400)
        assert running.isActive
    assert {row.nsqd for row in query.rows} == {str(one.tcp), str(two.tcp)}


def test_wrong_options_are_one_line_before_a_message_moves(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.publish(topic, numbered(10))
    given = Query(spark, tmp_path, topic, nsqd__tcp__addresses=at(nsqd)).options

    def load(options: Mapping[str, str], *, batch: bool) -> None:
        if batch:
            spark.read.format("nsq").options(**options).load().count()
        else:
            spark.readStream.format("nsq").options(**options).load()

    def error(options: Mapping[str, str], *, batch: bool = False) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is asked for next
            load(options, batch=batch)
        found = explain(caught.value)
        assert isinstance(found, ConfigError)
        assert "\n" not in str(found)
        return str(found)

    assert error(given | {"chanel": "x"}) == "unknown option 'chanel'; did you mean 'channel'?"
    assert error(given | {"channel": ""}).startswith("option channel is required: ")
    assert error(given, batch=True).startswith("source nsq: a batch read would take messages off")
    assert nsqd.topic(topic)["depth"] == 10


def test_what_cannot_work_ends_the_query_with_one_line(
    spark: SparkSession, make_nsqd: MakeNsqd, authd: Authd, topic: str, tmp_path: Path
) -> None:
    nsqd = make_nsqd(*authd.nsqd_args())
    nsqd.publish(topic, numbered(10))

    def error(**options: str) -> str:
        given = {"nsqd__tcp__addresses": at(nsqd)} | options
        return Query(spark, tmp_path, topic, **given).error()

    assert "no nsqd answers" in error(nsqd__tcp__addresses=f"127.0.0.1:{free_port()}")
    assert "set nsq.auth_secret_file" in error()
    assert nsqd.channel(topic, "lake")["depth"] == 10


def test_columns_have_the_types_that_are_promised(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.publish(topic, [b"\0\xff"])
    query = Query(spark, tmp_path, topic, nsqd__tcp__addresses=at(nsqd))
    frame = spark.readStream.format("nsq").options(**query.options).load()
    assert dict(frame.dtypes) == {
        "topic": "string",
        "channel": "string",
        "nsqd": "string",
        "message_id": "string",
        "timestamp": "timestamp",
        "timestamp_ns": "bigint",
        "attempts": "int",
        "body": "binary",
    }
    seconds = "abs(unix_micros(timestamp) - timestamp_ns div 1000) as gap"
    rows: list[Row] = []

    def keep(found: DataFrame, number: int) -> None:
        age = "current_timestamp() - timestamp as age"
        rows.extend(found.selectExpr("*", age, seconds).collect())

    writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(query.checkpoint)).start().awaitTermination()
    (row,) = rows
    assert bytes(row.body) == b"\0\xff"
    assert (row.topic, row.channel, row.nsqd, row.attempts) == (topic, "lake", str(nsqd.tcp), 1)
    assert row.gap == 0
    assert 0 <= row.age.total_seconds() < 3600
