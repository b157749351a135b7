"""The sink: what rows become, and that none is lost; with and without Spark around it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from nsqtools.errors import ConfigError, RecordError, UnreachableError
from nsqtools.spark.session import explain
from nsqtools.spark.sink import Columns, Published, make_writer, split
from tests.support.eventually import eventually
from tests.support.servers import empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd

BODY = StructType([StructField("body", BinaryType())])
ROUTED = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])


def options(*nsqds: Nsqd, **more: str) -> dict[str, str]:
    return {"nsqd.tcp.addresses": ",".join(str(each.tcp) for each in nsqds), **more}


def batch(bodies: Iterable[bytes | str | None], **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({**columns, "body": list(bodies)})


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def published(cli: Cli, topic: str, *nsqds: Nsqd) -> Counter[bytes]:
    """How often each body is there."""
    found: Counter[bytes] = Counter()
    for nsqd in nsqds:
        tailed = cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
        assert tailed.code == 0, tailed
        found.update(tailed.stdout.split(b"\n")[:-1])
    return found


def schema(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("of", "topic", "expected"),
    [
        (schema(body=BinaryType()), "t", Columns(0, "body", None)),
        (schema(n=LongType(), value=StringType()), "t", Columns(1, "value", None)),
        (schema(value=StringType(), Body=StringType()), "t", Columns(1, "Body", None)),
        (schema(topic=StringType(), body=BinaryType()), "", Columns(1, "body", 0)),
        (schema(topic=StringType(), body=BinaryType()), "t", Columns(1, "body", None)),
    ],
)
def test_the_columns_are_body_or_value_and_topic(
    of: StructType, topic: str, expected: Columns
) -> None:
    assert Columns.find(of, topic) == expected


@pytest.mark.parametrize(
    ("of", "options", "text"),
    [
        (schema(text=StringType()), {"topic": "t"}, "a column body, or value, among text"),
        (schema(body=LongType()), {"topic": "t"}, "column body is bigint: expected binary or str"),
        (schema(body=BinaryType()), {}, "set the option topic, or select a column topic"),
        (schema(body=BinaryType(), topic=LongType()), {}, "column topic is bigint"),
        (schema(body=BinaryType()), {"topic": "a b"}, "topic 'a b'"),
        (schema(body=BinaryType()), {"topic": "t", "nsq.snapy": "true"}, "did you mean"),
    ],
)
def test_a_wrong_write_is_one_clear_error_before_anything_is_published(
    of: StructType, options: Mapping[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make_writer(options, of, overwrite=False)


def test_a_topic_cannot_be_overwritten() -> None:
    with pytest.raises(ConfigError, match="use mode append"):
        make_writer({"topic": "t"}, BODY, overwrite=True)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.binary(min_size=1, max_size=9))),
    st.booleans(),
)
def test_every_row_is_in_one_publish_of_its_topic_in_order(
    rows: list[tuple[str, bytes]], routed: bool
) -> None:
    topics, bodies = [topic for topic, _ in rows], [body for _, body in rows]
    made = pa.RecordBatch.from_arrays(
        [pa.array(topics, pa.string()), pa.array(bodies, pa.binary())], ["topic", "body"]
    )
    found: dict[str, list[bytes]] = {}
    for topic, some in split(made, Columns(1, "body", 0 if routed else None), "fixed"):
        found.setdefault(topic, []).extend(some)
    expected: dict[str, list[bytes]] = {}
    for topic, body in rows:
        expected.setdefault(topic if routed else "fixed", []).append(body)
    assert found == expected


def test_large_bodies_are_published_a_megabyte_at_a_time() -> None:
    sizes = [
        [len(body) for body in bodies]
        for _, bodies in split(batch([b"x" * 300_000] * 10), Columns(0, "body", None), "t")
    ]
    assert sizes == [[300_000] * 3] * 3 + [[300_000]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_string_is_published_in_utf_8(kind: pa.DataType) -> None:
    made = pa.array(["é", "plain"]).cast(kind)
    rows = pa.RecordBatch.from_arrays([made], ["value"])
    assert list(split(rows, Columns(0, "value", None), "t")) == [("t", ["é".encode(), b"plain"])]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (batch([b"x", None], topic=["t", "t"]), "column body is null in row 102 of a task"),
        (batch([b"x", b""], topic=["t", "t"]), "column body is empty in row 102 of a task"),
        (batch(["x", ""], topic=["t", "t"]), "column body is empty in row 102 of a task"),
        (batch([b"x", b"y"], topic=[None, "t"]), "column topic is null in row 101 of a task"),
    ],
)
def test_a_row_without_body_or_topic_is_an_error_that_names_it(
    rows: pa.RecordBatch, text: str
) -> None:
    with pytest.raises(RecordError, match=text):
        next(split(rows, Columns(1, "body", 0), "", before=100))


def test_rows_arrive_once_each_in_the_topics_of_their_column(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    topics = [f"{topic}.{number % 3}" for number in range(2000)]
    bodies = numbered(range(2000))
    made = [batch(bodies[:700], topic=topics[:700]), batch(bodies[700:], topic=topics[700:])]
    done = make_writer(options(nsqd), ROUTED, overwrite=False).write(iter(made))
    assert done == Published(2000)
    for number in range(3):
        expected = Counter(numbered(range(number, 2000, 3)))
        assert published(nsqtools_cli, f"{topic}.{number}", nsqd) == expected


def test_a_task_without_rows_succeeds(nsqd: Nsqd) -> None:
    writer = make_writer(options(nsqd, topic="t"), BODY, overwrite=False)
    for rows in ([], [batch([b"x"]).slice(0, 0)]):
        assert writer.write(iter(rows)) == Published(0)


def test_nsqds_are_found_through_nsqlookupd(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    nsqds = [make_nsqd(lookupds=[lookupd]) for _ in range(2)]
    for nsqd in nsqds:
        nsqd.create(f"{topic}.known")
    eventually(lambda: len(lookupd.lookup(f"{topic}.known")) == 2)
    given = {"nsqlookupd.http.addresses": str(lookupd.http), "topic": topic}
    rows = [batch([b"%d.%d" % (i, n) for n in range(50)]) for i in range(10)]
    make_writer(given, BODY, overwrite=False).write(iter(rows))
    assert published(nsqtools_cli, topic, *nsqds).total() == 500
    assert all(nsqd.topic(topic)["message_count"] >= 100 for nsqd in nsqds)


def test_what_an_nsqd_that_fails_does_not_take_goes_to_another(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    dying, other = make_nsqd(), make_nsqd()

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            if number == 20:
                eventually(lambda: dying.topic(topic)["message_count"])
                dying.kill()
            yield batch(numbered(range(number * 100, number * 100 + 100)))

    make_writer(options(dying, other, topic=topic), BODY, overwrite=False).write(rows())
    there = published(nsqtools_cli, topic, other)
    assert set(numbered(range(2000, 4000))) <= set(there)


def test_an_nsqd_that_cannot_be_reached_is_an_error_that_names_it(nsqd: Nsqd) -> None:
    nsqd.stop()
    writer = make_writer(options(nsqd, topic="t"), BODY, overwrite=False)
    with pytest.raises(UnreachableError, match=f"{nsqd.tcp}: "):
        writer.write(iter([batch([b"x"])]))


def test_an_executor_needs_no_httpx() -> None:
    script = "import sys; sys.modules['httpx'] = None; import nsqtools.spark.sink"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_data_frame_is_published_whole(
    spark: SparkSession, nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    frame = spark.range(0, 30_000, numPartitions=3).selectExpr("cast(id as string) as value", "id")
    frame.write.format("nsq").options(**options(nsqd, topic=topic)).mode("append").save()
    assert published(nsqtools_cli, topic, nsqd) == Counter(numbered(range(30_000)))


@pytest.mark.parametrize(
    ("columns", "mode", "given", "text"),
    [
        ("id", "append", {"topic": "t"}, "sink nsq: expected a column body, or value, among id"),
        ("'x' as body", "append", {"topics": "t"}, "unknown option 'topics'; did you mean 'topic'"),
        ("'x' as body", "overwrite", {"topic": "t"}, "sink nsq: a topic cannot be overwritten"),
    ],
)
def test_a_wrong_write_is_one_line_of_ours_through_all_of_spark(
    spark: SparkSession, columns: str, mode: str, given: Mapping[str, str], text: str
) -> None:
    writer = spark.range(10).selectExpr(columns).write.format("nsq").mode(mode).options(**given)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the kind is Spark's affair
        writer.save()
    assert str(explain(caught.value)).startswith(text)
    assert isinstance(explain(caught.value), ConfigError)


def test_an_error_of_a_task_is_one_line_of_ours_through_all_of_spark(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    frame = spark.range(10).selectExpr("if(id = 3, null, 'x') as body")
    writer = frame.write.format("nsq").mode("append").options(**options(nsqd, topic=topic))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the kind is Spark's affair
        writer.save()
    assert isinstance(explain(caught.value), RecordError)
    assert str(explain(caught.value)).startswith("sink nsq: column body is null in row 4 of a task")


def test_a_stream_is_published_and_goes_on_where_it_ended(
    spark: SparkSession, nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    numbers = count()

    def run() -> None:
        number = next(numbers)
        frame = spark.range(number * 1000, number * 1000 + 1000, numPartitions=1)
        frame.selectExpr(f"'{topic}' as topic", "cast(id as string) as body").write.mode(
            "append"
        ).parquet(str(source))
        stream = spark.readStream.schema("topic string, body string").parquet(str(source))
        writer = stream.writeStream.format("nsq").options(**options(nsqd))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    run()
    assert published(nsqtools_cli, topic, nsqd) == Counter(numbered(range(2000)))
