"""Archives: what is written of a message, and what a batch that is written again replaces.

More than 400 lines, as all of it is about one lake.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrameWriter

from nsqtools.errors import ConfigError, NSQError, OutputError
from nsqtools.spark import archive as archives
from nsqtools.spark.archive import ArchiveSettings, Shape, Writer, archive
from nsqtools.spark.bodies import read_schema, with_columns
from nsqtools.spark.claims import Stamp
from nsqtools.spark.outputs import replace_batch
from tests.support.disks import small_disk
from tests.support.eventually import eventually
from tests.support.servers import free_port
from tests.support.streaming import OfTopic, rows, stream
from tests.support.streaming import source as made

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from nsqtools.spark.progress import Totals, Written
    from tests.support.servers import Nsqd

pytestmark = pytest.mark.nsqd_only("the sandbox would take as long and tell nothing else")

BODIES = [b'{"user": 1, "at": "x"}', b'{"user": "no number"}', b"no JSON", b"\xff\x00", b"null"]


class Lake(OfTopic):
    """An archive of a topic."""

    def archive(self, source: Mapping[str, str] | None = None, **shape: str) -> Totals:
        settings = ArchiveSettings(
            source={**made(self.nsqd, self.topic, self.folder), **(source or {})},
            output=str(self.folder),
            stream=stream(self.folder),
            shape=Shape(**shape),
        )
        return archive(self.spark, settings, **self.told.given)

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(row["body"] for row in rows(self.folder))


@pytest.fixture
def lake(spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path) -> Lake:
    return Lake(spark, nsqd, topic, tmp_path / "la ke")


def test_a_message_is_archived_with_its_metadata_below_the_hour_of_its_publishing(
    lake: Lake,
) -> None:
    lake.publish(*BODIES)
    totals = lake.archive(schema="user INT, Topic STRING, at STRING")
    assert (totals.batches, totals.received, totals.written) == (1, 5, 5)
    (told,) = [fact for fact in lake.told.facts if fact.rows]
    assert (told.rows, told.written, told.backlog) == (5, 5, 0)
    assert told.lag is not None
    assert 0 <= told.lag < 60
    assert told.rate > 0
    found = sorted(rows(lake.folder), key=lambda row: BODIES.index(row["body"]))
    assert [row["body"] for row in found] == BODIES
    assert [row["user"] for row in found] == [1, None, None, None, None]
    assert [row["at"] for row in found] == ["x", None, None, None, None]
    assert [row["_corrupt"] for row in found] == [
        None,
        '{"user": "no number"}',
        "no JSON",
        "�\0",
        "null",
    ]
    for row in found:
        assert (row["topic"], row["channel"]) == (lake.topic, "lake")
        assert (row["nsqd"], row["attempts"]) == (str(lake.nsqd.tcp), 1)
        assert len(row["message_id"]) == 16
        assert row["body_Topic"] is None
        published: datetime = row["timestamp"]
        assert published.utcoffset() == timedelta(0)
        assert row["timestamp_ns"] // 1000 == round(published.timestamp() * 1e6)
        assert (str(row["date"]), row["hour"]) == (f"{published:%Y-%m-%d}", published.hour)
    (leaf,) = lake.folder.glob("date=*/hour=??/batch=*")
    assert leaf.name.endswith("-00000000")
    assert {each.name for each in lake.folder.iterdir()} == {"_nsqtools", leaf.parents[1].name}


def test_a_body_that_is_one_object_and_more_is_corrupt(spark: SparkSession) -> None:
    whole = [
        b'{"user":1}',
        b' {"user":1} \r\n\t',
        b'{"user":1,"x":{"y":[{"z":"}{"}, {}]}}',
        b'{"user":1, "x":"}"}',
    ]
    broken = [
        *(b'{"user":1} trailing', b'{"user":1}{"user":2}', b'{"user":1},{"user":2}', b"{} {}"),
        *(b'{"user":1}}', b'{"user":1}]', b'{"user":1},', b'{"user":1}]}', b'{"user":1}\0'),
        *(b"[1,2]", b'[{"user":1}]', b"null", b"", b" ", b"1", b'"{}"', b'{"user":', b"\xff{}"),
    ]
    frame = spark.createDataFrame([(body,) for body in whole + broken], "body BINARY")
    found = [*with_columns(frame, read_schema("user INT")).collect()]
    assert [(row["user"], row["_corrupt"]) for row in found[: len(whole)]] == [(1, None)] * 4
    assert [(row["user"], row["_corrupt"]) for row in found[len(whole) :]] == [
        (None, body.decode(errors="replace")) for body in broken
    ]


def test_what_went_wrong_on_executors_is_reported_before_the_run_ends(lake: Lake) -> None:
    lake.publish(b"one")
    hidden = f"127.0.0.1:{free_port()}"
    totals = lake.archive({"nsqd.tcp.addresses": f"{hidden}/{lake.nsqd.http.port}"})
    assert totals.received == 0
    notes = {note for fact in lake.told.facts for note in fact.notes}
    assert notes == {f"{hidden}: topic {lake.topic}: cannot be reached: connection refused"}


def test_where_and_select_choose_rows_and_columns_and_json_has_text(lake: Lake) -> None:
    lake.publish(*BODIES)
    totals = lake.archive(
        format="json",
        schema="user INT",
        where="user = 1 OR _corrupt IS NOT NULL",
        select="body, message_id AS id, -- a note\nlength(body) AS size",
    )
    assert (totals.received, totals.written) == (5, 5)
    (file,) = lake.folder.glob("date=*/hour=*/batch=*/*.json")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each.get("body") for each in found] == [
        None if body == b"\xff\x00" else body.decode() for body in BODIES
    ]
    assert [each.get("body_b64") for each in found] == [None, None, None, "/wA=", None]
    assert [each["size"] for each in found] == [len(body) for body in BODIES]
    assert set(found[0]) == {"body", "id", "size"}


def test_a_batch_that_is_done_again_replaces_itself_even_if_other_rows_are_wanted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(b"1")
    lake.archive()
    lake.publish(b"2", b"3")
    old = lake.folder / "date=2001-01-01/hour=00"
    for where, wanted in (("", b"123"), ("", b"123"), ("body <> X'33'", b"12"), ("", b"123")):
        with monkeypatch.context() as crashing:
            crashing.setattr("nsqtools.spark.outputs.sync", crash)
            with pytest.raises(OutputError, match=r"^disk on fire$"):
                lake.archive(where=where)
        assert lake.bodies == Counter(bytes([each]) for each in wanted)
        old.joinpath(*batches(lake, "1")).mkdir(parents=True, exist_ok=True)
    assert lake.archive(where="body <> X'33'").received == 2
    assert lake.bodies == Counter([b"1", b"2"])
    assert not any(old.iterdir())
    assert len(batches(lake, "0")) == 1


def test_half_a_batch_goes_also_where_the_stamp_is_gone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = lake.folder / "_nsqtools/checkpoint/nsq-source"
    lake.publish(b"1", b"2")

    def fail(*crashes: str) -> None:
        with monkeypatch.context() as crashing:
            for name in crashes:
                crashing.setattr(name, crash)
            with pytest.raises(OutputError, match=r"^disk on fire$"):
                lake.archive(where="body <> X'32'")

    fail("nsqtools.spark.outputs.sync")
    (batch,) = batches(lake, "0")
    half = lake.folder / "date=2001-01-01/hour=00" / batch
    half.mkdir(parents=True)
    stamp.write_text(stamp.read_text()[:-9])
    with pytest.raises(OutputError, match="nsq-source: damaged: remove it, if"):
        lake.archive(where="body <> X'32'")
    assert half.exists()
    stamp.unlink()
    fail("nsqtools.spark.claims.remove_all")  # and the run that finds no stamp is killed, too
    assert half.exists()
    lake.archive(where="body <> X'32'")
    assert not half.exists()
    assert lake.bodies == Counter([b"1"])
    assert {each.name for each in stamp.parent.glob("nsq-source*")} == {"nsq-source"}


def test_files_and_all_names_above_them_are_synced_before_a_batch_is_done(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    lake.publish(b"1")
    monkeypatch.setattr(os, "fsync", note)
    lake.archive()
    (leaf,) = lake.folder.glob("date=*/hour=*/batch=*")
    assert {*leaf.iterdir(), leaf, *leaf.parents[:3]} <= synced


def test_delta_lake_knows_a_batch_by_the_whole_id_of_its_query(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def save(writer: Any, place: str) -> None:
        writer._df.count()
        told["place"] = place

    def option(writer: Any, key: str, value: Any) -> Any:
        told[key] = value
        return writer

    settings = ArchiveSettings(
        source=made(lake.nsqd, lake.topic, lake.folder),
        output=str(lake.folder),
        stream=stream(lake.folder),
        shape=Shape("delta"),
    )
    stamp = Stamp(lake.spark, settings.stream.checkpoint, settings.stamp)
    writer = Writer(lake.spark, settings, stamp)
    batch = lake.spark.range(1).selectExpr(
        "timestamp_micros(id) AS timestamp", "id AS timestamp_ns"
    )
    monkeypatch.setattr(DataFrameWriter, "option", option)
    monkeypatch.setattr(DataFrameWriter, "save", save)
    (lake.folder / "_delta_log").mkdir()
    query = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab"
    assert writer.write(batch, query, 7).rows == 1
    assert told == {"txnAppId": query, "txnVersion": 7, "place": f"file://{lake.folder}"}


def crash(*_: object) -> None:
    raise OutputError("disk on fire")


def batches(lake: Lake, number: str) -> set[str]:
    return {each.name for each in lake.folder.glob(f"date=*/hour=*/batch=*{number}")}


def test_a_new_checkpoint_overwrites_nothing(lake: Lake) -> None:
    lake.publish(b"1")
    lake.archive()
    os.rename(lake.folder / "_nsqtools/checkpoint", lake.folder / "_nsqtools/lost")
    lake.publish(b"2")
    lake.archive()
    assert lake.bodies == Counter([b"1", b"2"])
    assert len(batches(lake, "0")) == 2


def test_nothing_to_do_is_no_batch_and_nothing_that_is_wanted_no_file(lake: Lake) -> None:
    assert lake.archive().batches == 0
    lake.publish(b"1", b"2")
    totals = lake.archive(where="body = ''", select="DISTINCT body, timestamp_ns")
    assert (totals.batches, totals.received, totals.written) == (1, 2, 0)
    assert not list(lake.folder.glob("date=*"))


def test_what_a_killed_run_left_is_removed_and_what_another_job_of_spark_writes_is_not(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(b"1")
    with monkeypatch.context() as crashing:
        crashing.setattr("nsqtools.spark.outputs.sync", crash)
        with pytest.raises(OutputError):
            lake.archive()
    (batch,) = batches(lake, "0")
    left, other = (lake.folder / f".spark-staging-{number}/date=2026-01-01" for number in (1, 2))
    (left / "hour=00" / batch).mkdir(parents=True)
    (other / "hour=00/batch=9").mkdir(parents=True)
    lake.archive()
    assert not left.parent.exists()
    assert other.exists()
    assert lake.bodies == Counter([b"1"])


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"where": "user ="}, "--where: [PARSE_SYNTAX_ERROR] Syntax error at or near end of input"),
        ({"where": "usr = 1"}, "--where: [UNRESOLVED_COLUMN"),
        ({"where": "body"}, "--where: [DATATYPE_MISMATCH"),
        ({"select": "body,"}, "--select: [PARSE_SYNTAX_ERROR]"),
        ({"select": "bdy"}, "--select: [UNRESOLVED_COLUMN"),
        ({"select": "body, topic AS date"}, "--select: two columns are called date"),
        ({"select": "body AS Batch"}, "--select: Batch is the name of a directory"),
        ({"schema": "user INTT"}, '--schema: [UNSUPPORTED_DATATYPE] Unsupported data type "INTT"'),
        ({"schema": "a INT, A INT"}, "--schema: it names 'a' more than once"),
        (
            {"schema": "_corrupt INT"},
            "--schema: _corrupt is the column of bodies that do not parse",
        ),
        ({"schema": '{"type": "struct"}'}, "--schema: "),
        ({"format": "delta"}, "--format delta: Spark has no Delta Lake: add --conf spark.jars"),
    ],
)
def test_what_cannot_be_written_is_known_before_a_message_moves(
    lake: Lake, shape: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        lake.archive(**shape)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    with pytest.raises(LookupError):
        lake.nsqd.topic(lake.topic)


def test_a_condition_that_fails_on_a_body_ends_the_run_and_another_one_goes_on(
    lake: Lake,
) -> None:
    lake.publish(b"1", b"x")
    with pytest.raises(NSQError, match="CAST_INVALID_INPUT") as caught:
        lake.archive(where="CAST(CAST(body AS STRING) AS INT) > 0")
    assert "\n" not in str(caught.value)
    lake.archive(where="try_cast(CAST(body AS STRING) AS INT) > 0")
    assert lake.bodies == Counter([b"1"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    with small_disk(tmp_path / "disk", 16 << 20) as folder:
        yield folder


@pytest.mark.parametrize("where", ["output", "staging"])
def test_a_full_disk_ends_the_run_in_one_line_and_with_room_the_next_one_goes_on(
    lake: Lake, disk: Path, tmp_path: Path, where: str
) -> None:
    numbers = Counter(b"%d" % n + os.urandom(1000) for n in range(3000))
    ballast = disk / "_ballast"
    lake.publish(*numbers)
    free = {"output": tmp_path / "free", "staging": disk / "staging"}[where]
    lake.folder = {"output": disk / "lake", "staging": tmp_path / "lake"}[where]
    more = {"stagingLocation": str(free)}
    room = os.statvfs(disk)
    ballast.write_bytes(b"\0" * (room.f_bavail * room.f_bsize - 1_500_000))
    with pytest.raises(NSQError, match="No space left on device") as caught:
        lake.archive(source=more)
    assert "\n" not in str(caught.value)
    ballast.unlink()
    eventually(lambda: lake.archive(source=more).received or lake.bodies == numbers, timeout=60)
    assert lake.bodies == numbers


def test_a_checkpoint_of_another_topic_or_channel_is_refused(lake: Lake) -> None:
    lake.publish(b"1")
    lake.archive()
    mine = lake.topic
    lake.topic = "other"
    with pytest.raises(ConfigError, match=f"it is of --topic {mine}, not of other: give another"):
        lake.archive()


def test_a_stop_ends_the_run_between_batches_and_the_next_one_goes_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(*(b"%d" % n for n in range(500)))
    settings = ArchiveSettings(
        source=made(lake.nsqd, lake.topic, lake.folder, maxMessagesPerTrigger="100"),
        output=str(lake.folder),
        stream=stream(lake.folder),
    )

    write = replace_batch

    def stop_after(*args: Any) -> Written:
        written = write(*args)
        lake.told.stop.set()
        return written

    monkeypatch.setattr(archives, "replace_batch", stop_after)
    archive(lake.spark, settings, **lake.told.given)
    assert len(rows(lake.folder)) == 100
    archive(lake.spark, settings, stop=threading.Event(), report=lake.told.facts.append)
    assert lake.bodies == Counter(b"%d" % n for n in range(500))


def test_a_continuous_run_takes_what_comes_until_it_is_stopped(lake: Lake) -> None:
    settings = ArchiveSettings(
        source=made(lake.nsqd, lake.topic, lake.folder),
        output=str(lake.folder),
        stream=stream(lake.folder, trigger=0.05),
    )
    runner = threading.Thread(target=archive, args=(lake.spark, settings), kwargs=lake.told.given)
    runner.start()
    try:
        for number in (b"1", b"2"):
            count = sum(fact.rows for fact in lake.told.facts)
            lake.publish(number)
            eventually(lambda: sum(fact.rows for fact in lake.told.facts) > count, timeout=30)  # noqa: B023
    finally:
        lake.told.stop.set()
        runner.join(30)
    assert not runner.is_alive()
    assert lake.bodies == Counter([b"1", b"2"])
    checkpoint = lake.folder / "_nsqtools/checkpoint"
    planned, done = ({e.name for e in (checkpoint / n).iterdir()} for n in ("offsets", "commits"))
    assert planned == done
