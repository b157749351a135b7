"""The source in Spark itself, with a real nsqd."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import AuthError, ConfigError
from nsqtools.spark.sparksession import explain
from tests.support.eventually import eventually
from tests.support.servers import drained
from tests.support.spark import START
from tests.support.streaming import numbered, publish, source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.authd import Authd
    from tests.support.servers import MakeNsqd, Nsqd


class Query:
    """A stream of one checkpoint; ``batches`` has the rows of each micro-batch of all its runs."""

    def __init__(self, spark: SparkSession, folder: Path, options: Mapping[str, str]) -> None:
        self.spark, self.folder, self.options = spark, folder, options
        self.batches: list[list[Row]] = []
        self.fails: Callable[[int], bool] = lambda batch: False
        self.late: dict[str, str] = {}
        """Options of the query itself."""

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches for row in rows]

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(bytes(row.body) for row in self.rows)

    def has(self, bodies: Iterable[bytes]) -> bool:
        return set(bodies) <= set(self.bodies)

    def _keep(self, frame: DataFrame, number: int) -> None:
        age = "current_timestamp() - timestamp AS age"
        gap = "abs(unix_micros(timestamp) - timestamp_ns div 1000) AS gap"
        self.batches.append(frame.selectExpr("*", age, gap).collect())
        if self.fails(number):
            raise RuntimeError("as told")

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("nsq").options(**self.options).load()
        writer = frame.writeStream.foreachBatch(self._keep).trigger(**trigger)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        writer = writer.options(**self.late)
        query: StreamingQuery = writer.start()
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

    def logged(self, kind: str) -> int:
        """How many micro-batches Spark's log of this kind has."""
        return len(list((self.folder / "checkpoint" / kind).glob("[0-9]*")))


@pytest.fixture
def query(spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path) -> Query:
    options = source(nsqd, topic, tmp_path / "staging", maxMessagesPerTrigger="1000")
    return Query(spark, tmp_path, options)


def test_available_now_reads_all_there_is_in_batches_and_a_failed_one_again(
    query: Query, spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, [b"\0\xff", *numbered(2499)])
    query.options = {**query.options, "connectionsPerNsqd": "2"}
    query.fails = lambda batch: batch == 1
    with pytest.raises(Exception, match="as told"):
        query.drain()
    publish(nsqd, topic, numbered(2499, 2600))
    query.fails = lambda batch: False
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # as "timestamp" is in SQL then
    try:
        query.drain()
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert [len(rows) for rows in query.batches] == [1000, 1000, 1000, 601]
    _, failed, repeated, _ = query.batches
    assert [row.message_id for row in repeated] == [row.message_id for row in failed]
    del query.batches[1]
    assert query.bodies == Counter([b"\0\xff", *numbered(2600)])
    assert drained(nsqd, topic, "c")
    for row in query.rows:
        assert (row.topic, row.channel, row.nsqd, row.attempts) == (topic, "c", str(nsqd.tcp), 1)
        assert row.gap == 0
        assert 0 <= row.age.total_seconds() < 3600


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_nothing_is_lost_though_spark_writes_its_logs_late_and_in_another_form(
    query: Query, nsqd: Nsqd, topic: str
) -> None:
    """With asyncProgressTrackingEnabled a killed query has planned more than its logs tell."""
    query.spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    query.late = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": "3600000",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    }
    try:
        for number in range(3):
            with query.running():
                for part in range(3):
                    first = 300 * number + 100 * part
                    publish(nsqd, topic, numbered(first, first + 100))
                    eventually(partial(query.has, numbered(first + 100)), timeout=START)
        assert query.logged("offsets") < len(query.batches)
    finally:
        query.spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    assert set(query.bodies) == set(numbered(900))
    assert drained(nsqd, topic, "c")


@pytest.mark.full("more of what jobs make of rows in Spark")
@pytest.mark.nsqd_only("the sandbox logs no requests")
def test_a_stream_makes_batches_only_when_there_is_something(
    query: Query, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    def asked() -> int:
        return nsqd.log.read_text().count("/stats")

    def wait_for(batches: int) -> None:
        """Until there are so many, and messages were asked for a few times since."""
        eventually(lambda: query.logged("commits") == batches, START)
        before = asked()
        eventually(lambda: asked() > before + 5, START)
        assert query.logged("offsets") == batches

    with query.running() as running:
        wait_for(1)  # Spark's own, which says where the stream begins
        assert not list((tmp_path / "staging").iterdir())
        for number in range(2):
            nsqd.publish(topic, numbered(10 * number, 10 * number + 10))
            wait_for(2 + number)
        assert running.isActive
    assert [len(rows) for rows in query.batches] == [0, 10, 10]
    assert query.bodies == Counter(numbered(20))


def test_what_cannot_work_is_one_line_before_a_message_moves(
    query: Query, spark: SparkSession, make_nsqd: MakeNsqd, authd: Authd, topic: str, tmp_path: Path
) -> None:
    nsqd = make_nsqd(*authd.nsqd_args())
    publish(nsqd, topic, numbered(10))
    query.options = given = source(nsqd, topic, tmp_path / "staging")

    def load(**options: str) -> None:
        spark.readStream.format("nsq").options(**given | options).load()

    def read() -> None:
        spark.read.format("nsq").options(**given).load().count()

    works: list[tuple[Callable[[], None], type[Exception], str]] = [
        (lambda: load(chanel="x"), ConfigError, "'chanel'"),
        (lambda: load(channel=""), ConfigError, "channel"),
        (read, ConfigError, "batch read"),
        (query.drain, AuthError, "nsq.auth_secret_file"),
    ]
    for work, kind, culprit in works:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is asked for next
            work()
        found = explain(caught.value)
        assert isinstance(found, kind)
        assert culprit in str(found)
        assert "\n" not in str(found)
    assert nsqd.channel(topic, "c")["depth"] == 10
