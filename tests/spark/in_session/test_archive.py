"""Archives: what is written of a message, and what a batch that is written again replaces."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.jobs.archive import ArchiveSettings, Shape, archive
from nsqtools.spark.jobs.batches import LakeOutput
from nsqtools.spark.jobs.progress import Totals
from nsqtools.spark.lake.bodies import read_schema, with_columns
from tests.support.servers import Nsqd, free_port
from tests.support.streaming import OfTopic, numbered, publish, rows

BODIES = [b'{"user": 1, "at": "x"}', b'{"user": "no number"}', b"no JSON", b"\xff\x00", b"null"]


class Lake(OfTopic):
    """An archive of a topic."""

    def settings(
        self, source: Mapping[str, str] | None = None, form: str = "parquet", **shape: Any
    ) -> ArchiveSettings:
        return ArchiveSettings(
            source={**self.source(), **(source or {})},
            output=LakeOutput(str(self.folder), form),
            stream=self.stream(),
            shape=Shape(**shape),
        )

    def archive(self, source: Mapping[str, str] | None = None, **shape: Any) -> Totals:
        return archive(self.spark, self.settings(source, **shape), **self.given)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "_nsqtools/checkpoint"

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(row["body"] for row in rows(self.folder))

    def batches(self, number: str) -> set[str]:
        return {each.name for each in self.folder.glob(f"date=*/hour=*/batch=*{number}")}


@contextmanager
def crashing(*names: str) -> Iterator[None]:
    """What is called by these names fails, and the run with it."""

    def crash(*_: object) -> None:
        raise OutputError("disk on fire")

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(name, crash)
        with pytest.raises(OutputError, match=r"^disk on fire$"):
            yield


MORE = pytest.mark.full("more of what jobs make of rows in Spark")

WRITTEN = "nsqtools.spark.jobs.batches.summary"
"""What is called when the files of a batch are complete, and Spark does not know of that."""


@pytest.fixture
def lake(spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path) -> Lake:
    return Lake(spark, nsqd, topic, tmp_path / "la ke")


def test_many_topics_are_received_by_a_task_per_core(lake: Lake) -> None:
    topics = [f"{lake.topic}.{number}" for number in range(6)]
    for topic in topics:
        publish(lake.nsqd, topic, numbered(10))
    source = {"subscribe": ",".join(topics)}
    with crashing(WRITTEN):
        lake.archive(source)
    (plan,) = lake.settings(source).checkpoint.planned()
    assert [sum(quota.count for quota in task) for task in plan.tasks] == [30, 30]
    lake.archive(source)
    assert lake.bodies == Counter(numbered(10) * 6)


def test_a_message_is_archived_with_its_metadata_below_the_hour_of_its_publishing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all names above its file are synced before the batch is done."""
    synced: set[Path] = set()
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    lake.publish(*BODIES)
    totals = lake.archive(schema="user INT, Topic STRING, at STRING", where="user < 7")
    assert (totals.batches, totals.received, totals.written) == (1, 5, 5)
    (told,) = [fact for fact in lake.facts if fact.rows]
    assert (told.rows, told.written, told.backlog) == (5, 5, 0)
    assert told.corrupt == 4, "of which nobody knows whether they are wanted"
    assert told.lag is not None
    assert 0 <= told.lag < 3600
    assert told.rate > 0
    found = sorted(rows(lake.folder), key=lambda row: BODIES.index(row["body"]))
    assert [row["body"] for row in found] == BODIES
    corrupt = [body.decode(errors="replace") for body in BODIES[1:]]
    assert [(row["user"], row["at"], row["_corrupt"]) for row in found] == [
        (1, "x", None),
        *((None, None, text) for text in corrupt),
    ]
    for row in found:
        assert (row["topic"], row["channel"]) == (lake.topic, "c")
        assert (row["nsqd"], row["attempts"]) == (str(lake.nsqd.tcp), 1)
        assert len(row["message_id"]) == 16
        assert row["body_Topic"] is None
        published: datetime = row["timestamp"]
        assert published.utcoffset() == timedelta(0)
        assert row["timestamp_ns"] // 1000 == round(published.timestamp() * 1e6)
        assert (str(row["date"]), row["hour"]) == (f"{published:%Y-%m-%d}", published.hour)
    (leaf,) = lake.folder.glob("date=*/hour=??/batch=*")
    assert leaf.name.endswith("-00000000")
    assert [each.name for each in leaf.iterdir()] == ["part-00000-000.parquet"]
    assert {leaf, *leaf.parents[:3]} <= synced
    assert {each.name for each in lake.folder.iterdir()} == {"_nsqtools", leaf.parents[1].name}


def test_a_body_that_is_one_object_and_more_is_corrupt(spark: SparkSession) -> None:
    whole = [b'{"user":1}', b' {"user":1} \r\n\t', b'{"user":1,"x":{"y":[{"z":"}{"}, {}]}}']
    broken = [
        *(b'{"user":1} trailing', b'{"user":1}{"user":2}', b'{"user":1},{"user":2}', b"{} {}"),
        *(b'{"user":1}}', b'{"user":1}]', b'{"user":1},', b'{"user":1}]}', b'{"user":1}\0'),
        *(b"[1,2]", b'[{"user":1}]', b"null", b"", b" ", b"1", b'"{}"', b'{"user":', b"\xff{}"),
    ]
    frame = spark.createDataFrame([(body,) for body in whole + broken], "body BINARY")
    found = [*with_columns(frame, read_schema("user INT")).collect()]
    assert [(row["user"], row["_corrupt"]) for row in found] == [
        *[(1, None)] * len(whole),
        *((None, body.decode(errors="replace")) for body in broken),
    ]


@MORE
def test_what_went_wrong_on_executors_is_reported_before_the_run_ends(lake: Lake) -> None:
    lake.publish(b"one")
    hidden = f"127.0.0.1:{free_port()}"
    totals = lake.archive({"nsqd.tcp.addresses": f"{hidden}/{lake.nsqd.http.port}"})
    assert totals.received == 0
    (note,) = {note for fact in lake.facts for note in fact.notes}
    assert hidden in note


def test_where_and_select_choose_rows_and_columns_and_json_has_text(lake: Lake) -> None:
    """Topics have directories where asked, and files no such column."""
    lake.publish(*BODIES)
    totals = lake.archive(
        form="json",
        schema="user INT",
        where="user = 1 OR _corrupt IS NOT NULL",
        select="topic, body, message_id AS id, -- a note\nlength(body) AS size -- another",
        partition_by="topic",
    )
    assert (totals.received, totals.written) == (5, 5)
    (file,) = lake.folder.glob(f"date=*/hour=*/topic={lake.topic}/batch=*/*.json")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each.get("body") for each in found] == [
        None if body == b"\xff\x00" else body.decode() for body in BODIES
    ]
    assert [each.get("body_b64") for each in found] == [None, None, None, "/wA=", None]
    assert [each["size"] for each in found] == [len(body) for body in BODIES]
    assert set(found[0]) == {"body", "id", "size"}


@pytest.mark.parametrize("form", ["1", pytest.param("2", marks=MORE)])
def test_a_batch_that_is_done_again_replaces_itself_even_if_other_rows_are_wanted(
    lake: Lake, form: str
) -> None:
    """Whatever form Spark's log has, and also what other tasks had written of it."""
    version, where = "spark.sql.streaming.offsetLog.formatVersion", "body <> X'33'"
    lake.spark.conf.set(version, form)
    try:
        lake.publish(b"1")
        lake.archive()
        lake.publish(b"2", b"3")
        with crashing(WRITTEN):
            lake.archive()
        assert not lake.settings().checkpoint.is_settled(lake.settings().stamp)
        assert lake.bodies == Counter([b"1", b"2", b"3"])
        (file,) = lake.folder.glob("date=*/hour=*/batch=*1/part-*")
        old = lake.folder / "date=2001-01-01/hour=00"
        for other in (file.parent, old / file.parent.name):
            other.mkdir(parents=True, exist_ok=True)
            other.joinpath("part-00007-000.parquet").write_bytes(file.read_bytes())
        assert lake.archive(where=where).received == 2
    finally:
        lake.spark.conf.unset(version)
    assert lake.bodies == Counter([b"1", b"2"])
    assert not any(old.iterdir())
    assert len(lake.batches("0")) == 1
    last = lake.settings(where=where)
    assert last.checkpoint.planned() == []
    assert last.checkpoint.is_settled(last.stamp)


def test_a_table_has_a_batch_once_although_a_run_failed_after_its_commit(lake: Lake) -> None:
    lake.publish(*BODIES)
    with crashing(WRITTEN):
        lake.archive(form="delta")
    assert lake.archive(form="delta").written == 0
    lake.publish(b"more")
    lake.archive(form="delta")
    table = DeltaTable(str(lake.folder))
    assert table.metadata().partition_columns == ["date", "hour"]
    found = table.to_pyarrow_table(columns=["topic", "body", "date"]).to_pylist()
    assert Counter(row["body"] for row in found) == Counter([*BODIES, b"more"])
    assert {row["topic"] for row in found} == {lake.topic}


@MORE
def test_a_table_of_iceberg_has_hidden_partitions(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    for name, value in known.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__HERE__{name.upper()}", value)
    output = LakeOutput("lake.events", "iceberg", "here")
    lake.publish(*BODIES)
    shape: dict[str, Any] = {"select": "topic, timestamp, body", "partition_by": "topic"}
    settings = replace(lake.settings(**shape), output=output)
    with crashing(WRITTEN):
        archive(lake.spark, settings, **lake.given)
    assert archive(lake.spark, settings, **lake.given).written == 0
    lake.publish(b"more")
    assert archive(lake.spark, settings, **lake.given).written == 1
    table = load_catalog("here", **known).load_table("lake.events")
    assert [each.name for each in table.spec().fields] == ["timestamp_hour", "topic"]
    found = table.scan(row_filter=f"topic = '{lake.topic}'").to_arrow()
    assert found.column_names == ["topic", "timestamp", "body"]
    assert Counter(found["body"].to_pylist()) == Counter([*BODIES, b"more"])
    other = replace(settings, output=replace(output, place="lake.others"))
    with pytest.raises(ConfigError, match="belongs to --output iceberg:here/"):
        archive(lake.spark, other, **lake.given)


@MORE
def test_what_a_killed_run_left_is_removed_also_where_the_stamp_is_gone(lake: Lake) -> None:
    stamp = lake.checkpoint / "nsq-source"
    lake.publish(b"1", b"2")
    where = "body <> X'32'"
    with crashing(WRITTEN):
        lake.archive(where=where)
    (batch,) = lake.batches("0")
    half = lake.folder / "date=2001-01-01/hour=00" / batch / "part-00007-000.parquet"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"")
    stamp.write_text(stamp.read_text()[:-9])
    with pytest.raises(OutputError, match="nsq-source"):
        lake.archive(where=where)
    assert half.exists()
    stamp.unlink()
    # The run that finds no stamp is killed, too.
    with crashing("nsqtools.spark.jobs.batches.remove_batch"):
        lake.archive(where=where)
    assert half.exists()
    lake.archive(where=where)
    assert not half.exists()
    assert lake.bodies == Counter([b"1"])
    assert {each.name for each in stamp.parent.glob("nsq-source*")} == {"nsq-source"}


@MORE
def test_nothing_to_do_is_no_batch_and_a_new_checkpoint_overwrites_nothing(lake: Lake) -> None:
    assert lake.archive().batches == 0
    lake.publish(b"1")
    totals = lake.archive(where="body = ''", select="DISTINCT body, timestamp_ns")
    assert (totals.batches, totals.received, totals.written) == (1, 1, 0)
    assert not list(lake.folder.glob("date=*"))
    for number in range(2):
        os.rename(lake.checkpoint, lake.folder / f"_nsqtools/lost-{number}")
        lake.publish(b"%d" % number)
        lake.archive()
    assert lake.bodies == Counter([b"0", b"1"])
    assert len(lake.batches("0")) == 2


@pytest.mark.parametrize(
    ("option", "text", "culprit"),
    [
        ("where", "user =", "PARSE_SYNTAX_ERROR"),
        ("where", "usr = 1", "UNRESOLVED_COLUMN"),
        ("where", "body", "DATATYPE_MISMATCH"),
        ("select", "body,", "TRAILING_COMMA"),
        ("select", "bdy", "UNRESOLVED_COLUMN"),
        ("select", "body, topic AS date", "date"),
        ("select", "body AS Batch", "Batch"),
        ("schema", "user INTT", "INTT"),
        ("schema", "a INT, A INT", "'a'"),
        ("schema", "_corrupt INT", "_corrupt"),
        ("schema", '{"type": "struct"}', ""),
    ],
)
def test_what_cannot_be_written_is_known_before_a_message_moves(
    lake: Lake, option: str, text: str, culprit: str
) -> None:
    shape: dict[str, Any] = {option: text}
    with pytest.raises(ConfigError, match=f"^--{option}.*{culprit}[^\n]*$"):
        lake.archive(**shape)
    with pytest.raises(LookupError):
        lake.nsqd.topic(lake.topic)
