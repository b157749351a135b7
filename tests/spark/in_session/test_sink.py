"""The sink: what rows become, and that none is lost; with and without Spark around it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from nsqtools.errors import ConfigError, RecordError, UnreachableError
from nsqtools.spark.source.sink import Columns, NsqWriter, TaskCommit, split
from nsqtools.spark.sparksession import explain
from tests.support.eventually import eventually
from tests.support.lakes import sent, to_parquet
from tests.support.process import Cli
from tests.support.replays import Taken
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
from tests.support.streaming import numbered


def options(*nsqds: Nsqd, **more: str) -> dict[str, str]:
    return {"nsqd.tcp.addresses": ",".join(str(each.tcp) for each in nsqds), **more}


def batch(bodies: Iterable[bytes | str | None], **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({**columns, "body": list(bodies)})


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


BODY = schema(body=BinaryType())
ROUTED = schema(topic=StringType(), body=BinaryType())


@pytest.fixture
def published(nsqtools_cli: Cli) -> Callable[..., Counter[bytes]]:
    """How often each body is in a topic of these nsqds."""

    def find(topic: str, *nsqds: Nsqd) -> Counter[bytes]:
        return Counter(body for nsqd in nsqds for body in Taken(nsqtools_cli, nsqd, topic)())

    return find


def test_the_columns_are_body_or_value_and_topic() -> None:
    value = schema(value=StringType(), n=LongType())
    assert Columns.find(value, "t") == Columns(0, "value", None)
    assert Columns.find(schema(value=StringType(), Body=StringType()), "t") == Columns(
        1, "Body", None
    )
    assert Columns.find(ROUTED, "") == Columns(1, "body", 0)
    assert Columns.find(ROUTED, "t") == Columns(1, "body", None)


@pytest.mark.parametrize(
    ("of", "options", "culprit"),
    [
        (schema(text=StringType()), {"topic": "t"}, "text"),
        (schema(body=LongType()), {"topic": "t"}, "body is bigint"),
        (BODY, {}, "topic"),
        (schema(body=BinaryType(), topic=LongType()), {}, "topic is bigint"),
        (BODY, {"topic": "a b"}, "'a b'"),
        (BODY, {"topic": "t", "nsq.snapy": "true"}, "nsq.snapy"),
    ],
)
def test_a_wrong_write_is_one_clear_error_before_anything_is_published(
    of: StructType, options: Mapping[str, str], culprit: str
) -> None:
    with pytest.raises(ConfigError, match=culprit):
        NsqWriter(options, of, overwrite=False)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.text(min_size=1, max_size=9))),
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]),
    st.booleans(),
)
def test_every_row_is_in_one_publish_of_its_topic_in_order(
    rows: list[tuple[str, str]], kind: pa.DataType, routed: bool
) -> None:
    """Text in UTF-8."""
    topics, bodies = [topic for topic, _ in rows], [body for _, body in rows]
    made = pa.RecordBatch.from_arrays(
        [pa.array(topics, pa.string()), pa.array(bodies, pa.string()).cast(kind)],
        ["topic", "body"],
    )
    found: dict[str, list[bytes]] = {}
    for topic, some in split(made, Columns(1, "body", 0 if routed else None), "fixed"):
        found.setdefault(topic, []).extend(some)
    expected: dict[str, list[bytes]] = {}
    for topic, body in rows:
        expected.setdefault(topic if routed else "fixed", []).append(body.encode())
    assert found == expected


def test_large_bodies_are_published_a_megabyte_at_a_time() -> None:
    rows = batch([b"x" * 300_000] * 10)
    sizes = [len(bodies) for _, bodies in split(rows, Columns(0, "body", None), "t")]
    assert sizes == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("rows", "culprit"),
    [
        (batch([b"x", None], topic=["t", "t"]), "body is null in row 102"),
        (batch([b"x", b""], topic=["t", "t"]), "body is empty in row 102"),
        (batch(["x", ""], topic=["t", "t"]), "body is empty in row 102"),
        (batch([b"x", b"y"], topic=[None, "t"]), "topic is null in row 101"),
    ],
)
def test_a_row_without_body_or_topic_is_an_error_that_names_it(
    rows: pa.RecordBatch, culprit: str
) -> None:
    with pytest.raises(RecordError, match=culprit):
        next(split(rows, Columns(1, "body", 0), "", before=100))


def test_rows_arrive_once_each_in_the_topics_of_their_column_or_the_error_names_the_nsqd(
    published: Callable[..., Counter[bytes]], nsqd: Nsqd, topic: str
) -> None:
    bodies, topics = numbered(2000), [f"{topic}.{number % 2}" for number in range(2000)]
    made = [batch(bodies[:700], topic=topics[:700]), batch(bodies[700:], topic=topics[700:])]
    writer = NsqWriter(options(nsqd), ROUTED, overwrite=False)
    assert writer.write(iter(made)) == TaskCommit(2000)
    for number in range(2):
        assert published(f"{topic}.{number}", nsqd) == Counter(bodies[number::2])
    assert writer.write(iter([made[0].slice(0, 0)])) == TaskCommit(0)
    nsqd.stop()
    with pytest.raises(UnreachableError, match=f"{nsqd.tcp}: "):
        writer.write(iter(made))


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_nsqds_are_found_through_nsqlookupd(
    published: Callable[..., Counter[bytes]],
    make_nsqd: MakeNsqd,
    nsqlookupd: Nsqlookupd,
    topic: str,
) -> None:
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]
    for nsqd in nsqds:
        nsqd.create(f"{topic}.known")
    eventually(lambda: len(nsqlookupd.lookup(f"{topic}.known")) == 2)
    given = {"nsqlookupd.http.addresses": str(nsqlookupd.http), "topic": topic}
    rows = [batch([b"%d.%d" % (i, n) for n in range(50)]) for i in range(10)]
    NsqWriter(given, BODY, overwrite=False).write(iter(rows))
    assert published(topic, *nsqds).total() == 500
    assert all(nsqd.topic(topic)["message_count"] >= 100 for nsqd in nsqds)


@pytest.mark.parametrize(
    ("columns", "mode", "kind", "culprit"),
    [
        ("'x' as body", "overwrite", ConfigError, "overwritten"),
        pytest.param(
            *("if(id = 3, null, 'x') as body", "append", RecordError, "body is null"),
            marks=pytest.mark.full("more of what jobs make of rows in Spark"),
        ),
    ],
)
def test_a_wrong_write_is_one_line_of_ours_through_all_of_spark(
    spark: SparkSession, nsqd: Nsqd, columns: str, mode: str, kind: type[Exception], culprit: str
) -> None:
    writer = spark.range(10).selectExpr(columns).write.format("nsq").mode(mode)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the kind is Spark's affair
        writer.options(**options(nsqd, topic="t")).save()
    found = explain(caught.value)
    assert isinstance(found, kind)
    assert culprit in str(found)
    assert "\n" not in str(found)


def test_a_stream_is_published_and_goes_on_where_it_ended_and_sql_inserts_into_a_view(
    spark: SparkSession,
    published: Callable[..., Counter[bytes]],
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
) -> None:
    for name, numbers in (("a", numbered(100)), ("b", numbered(100, 200))):
        to_parquet(tmp_path / f"source/{name}.parquet", sent(*numbers, topic=topic))
        stream = spark.readStream.schema("topic string, body binary")
        writer = stream.parquet(str(tmp_path / "source")).writeStream.format("nsq")
        writer = writer.options(**options(nsqd), checkpointLocation=str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    where = f"`nsqd.tcp.addresses` '{nsqd.tcp}', `topic` '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW outgoing (body BINARY) USING nsq OPTIONS ({where})")
    spark.sql("INSERT INTO outgoing SELECT CAST(CAST(200 AS STRING) AS BINARY)")
    spark.catalog.dropTempView("outgoing")
    assert published(topic, nsqd) == Counter(numbered(201))
