"""The source in Spark itself, with a real nsqd."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from nsqtools.errors import AuthError, ConfigError
from nsqtools.spark.sparksession import explain
from tests.support.authd import Authd
from tests.support.servers import MakeNsqd, Nsqd, drained
from tests.support.streaming import numbered, publish, source

Batches = list[list[Row]]


def drain(
    spark: SparkSession, folder: Path, options: Mapping[str, str], batches: Batches, *, fails: int
) -> None:
    """Read all that is there now in micro-batches, of which one fails, unless it is -1."""

    def keep(frame: DataFrame, number: int) -> None:
        age = f"timestamp_micros({time.time_ns() // 1000}) - timestamp AS age"
        gap = "abs(unix_micros(timestamp) - timestamp_ns div 1000) AS gap"
        batches.append(frame.selectExpr("*", age, gap).collect())
        if number == fails:
            raise RuntimeError("as told")

    frame = spark.readStream.format("nsq").options(**options).load()
    writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


def test_available_now_reads_all_there_is_in_batches_and_a_failed_one_again(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, [b"\0\xff", *numbered(249)])
    limits = {"maxMessagesPerTrigger": "100", "connectionsPerNsqd": "2"}
    options = {**source(nsqd, topic, tmp_path / "staging"), **limits}
    batches: Batches = []
    with pytest.raises(Exception, match="as told"):
        drain(spark, tmp_path, options, batches, fails=1)
    publish(nsqd, topic, numbered(249, 260))
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # as "timestamp" is in SQL then
    try:
        drain(spark, tmp_path, options, batches, fails=-1)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert [len(rows) for rows in batches] == [100, 100, 100, 61]
    _, failed, repeated, _ = batches
    assert [row.message_id for row in repeated] == [row.message_id for row in failed]
    del batches[1]
    rows = [row for batch in batches for row in batch]
    assert Counter(bytes(row.body) for row in rows) == Counter([b"\0\xff", *numbered(260)])
    assert drained(nsqd, topic, "c")
    for row in rows:
        assert (row.topic, row.channel, row.nsqd, row.attempts) == (topic, "c", str(nsqd.tcp), 1)
        assert row.gap == 0
        assert 0 <= row.age.total_seconds() < 3600


def test_what_cannot_work_is_one_line_before_a_message_moves(
    spark: SparkSession, make_nsqd: MakeNsqd, authd: Authd, topic: str, tmp_path: Path
) -> None:
    nsqd = make_nsqd(*authd.nsqd_args())
    publish(nsqd, topic, numbered(10))
    given = source(nsqd, topic, tmp_path / "staging")

    stream, batch = spark.readStream.format("nsq"), spark.read.format("nsq")
    works: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: stream.options(**given, chanel="x").load(), ConfigError, "'chanel'"),
        (lambda: batch.options(**given).load().count(), ConfigError, "batch read"),
        (lambda: drain(spark, tmp_path, given, [], fails=-1), AuthError, "nsq.auth_secret_file"),
    ]
    for work, kind, culprit in works:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is asked for next
            work()
        found = explain(caught.value)
        assert isinstance(found, kind)
        assert culprit in str(found)
        assert "\n" not in str(found)
    assert nsqd.channel(topic, "c")["depth"] == 10
