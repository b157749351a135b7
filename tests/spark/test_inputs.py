"""Which files are inputs of a job, and the rows that archives give back."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.layout import Layout
from nsqtools.records.manifest import CompletedFile
from nsqtools.sinks.files.aftercare import Manifest
from nsqtools.spark.lake.archives import INPUT_SCHEMA, read
from nsqtools.spark.lake.inputs import Input, find, real
from tests.support.lakes import JSON, NINE, PREFIXED, RAW, Sent, at, sent, to_file, to_parquet

HOSTILE = [b"", b"a\nb\n", b"\0" * 5, b"\xff\xfe\x00", "schön \u2028".encode(), b'{"body":"x"}']


def names(*places: Path, layout: Layout | None = RAW, exclude: tuple[Path, ...] = ()) -> list[str]:
    found = find(list(map(str, places)), layout, exclude=list(map(str, exclude)))
    return [os.path.basename(each.path) for each in found]


def archive(path: Path, layout: Layout) -> Input:
    status = path.stat()
    return Input(str(path), status.st_size, status.st_mtime_ns, "records", "", layout)


def rows(path: Path, layout: Layout) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(
        read(archive(path, layout)), INPUT_SCHEMA
    ).to_pylist()
    return found


def test_a_pattern_is_what_matches_it_unless_a_file_has_that_name(tmp_path: Path) -> None:
    for day in ("date=2026-11-20", "date=2026-11-21", "date=2026-12-01"):
        to_parquet(tmp_path / day / f"{day}.parquet", sent(b"a"))
    to_parquet(tmp_path / "[x]" / "x.parquet", sent(b"a"))
    (tmp_path / "link").symlink_to(tmp_path)
    for given, days in (
        ("date=2026-11-*", ["20", "21"]),
        ("date=2026-{11-21,12-??}", ["01", "21"]),
        ("link/date=2026-1[12]-*1", ["01", "21"]),
    ):
        assert sorted(name[13:15] for name in names(tmp_path / given)) == sorted(days)
    assert names(tmp_path / "[x]") == ["x.parquet"]
    with pytest.raises(ConfigError, match=r"date=2027"):
        names(tmp_path / "date=2027*")


def test_what_is_not_published_or_not_data_is_no_input(tmp_path: Path) -> None:
    for name in (
        *("events.log.part", "events.log.torn", "to-file.lock", ".events.log.0123abcd.copy"),
        *(".hidden/events.log", "_nsqtools/checkpoint/offsets/0", "_SUCCESS"),
        *(".spark-staging-1/part-1.parquet", "_spark_metadata/0", ".part-1.parquet.crc"),
        "_temporary/0/part-1.parquet",
    ):
        to_file(tmp_path / name, sent(b"a"), RAW)
    facts: dict[str, Any] = {
        "sha256": "0",
        "format": "raw",
        "delimiter": "\\n",
        "compression": "none",
    }
    Manifest(str(tmp_path / "manifest")).append(
        CompletedFile(path="/x.log", name="x.log", topic="x", records=1, size=2, **facts)
    )
    assert names(tmp_path) == []


def test_the_result_inside_an_input_is_no_input_and_an_input_inside_it_refused(
    tmp_path: Path,
) -> None:
    to_file(tmp_path / "events.log", sent(b"a"), RAW)
    to_parquet(tmp_path / "clean" / "date=2026-11-21" / "part-1.parquet", sent(b"b"))
    (tmp_path / "link").symlink_to("clean/date=2026-11-21")
    assert names(tmp_path, exclude=(tmp_path / "clean",)) == ["events.log"]
    for place in ("clean", "clean/date=2026-11-21", "link"):
        with pytest.raises(ConfigError, match=r"is within .*clean"):
            names(tmp_path / place, exclude=(tmp_path / "clean",))


def test_a_directory_is_searched_to_its_leaves_and_a_file_is_found_once(tmp_path: Path) -> None:
    """Whatever ways lead to it; without a layout only what the pipeline wrote is taken."""
    lake = tmp_path / "lake"
    to_parquet(lake / "date=2026-11-21/hour=09/batch=0a-1/part-1.parquet", sent(b"a"))
    to_file(lake / "hour=09" / "batch=1-1" / "part-1.json.gz", sent(b"a"), JSON)
    assert names(lake, layout=None) == ["part-1.parquet", "part-1.json.gz"]
    path = to_file(lake / "deep/er/events.json", sent(b"b"), JSON)
    (lake / "deep/latest").symlink_to("er/events.json")
    (lake / "deep/self").symlink_to(".")
    (tmp_path / "other").symlink_to(lake)
    os.link(path, lake / "deep/linked.json")
    found = names(lake, path, lake / "deep", tmp_path / "other" / ".." / "lake", layout=JSON)
    assert sorted(found) == ["events.json", "part-1.json.gz", "part-1.parquet"]
    with pytest.raises(ConfigError, match=r"events.json: .*--input-format"):
        names(lake, layout=None)
    to_file(tmp_path / "_audit" / "_audit.log", sent(b"a"), RAW)
    assert names(tmp_path / "_audit") == ["_audit.log"], "a topic may begin so"


def test_places_that_cannot_be_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    to_file(tmp_path / "x.log.torn", sent(b"a"), RAW)
    (tmp_path / "delta/_delta_log").mkdir(parents=True)
    to_parquet(tmp_path / "delta/part-1.parquet", sent(b"a"))
    to_parquet(tmp_path / "skipped/_part-1.parquet", sent(b"a"))  # by Spark, in silence
    to_file(tmp_path / "no text" / os.fsdecode(b"\xff.log"), sent(b"a"), RAW)
    for name in ("gone", "fifo", "x.log.torn", "delta", "skipped", "no text"):
        with pytest.raises(ConfigError, match=name):
            names(tmp_path / name)
    with pytest.raises(ConfigError, match="ftp"):
        find(["ftp://host/lake"], RAW)


def test_a_place_is_known_by_its_path_without_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert real(str(tmp_path / "link" / "a")) == str(tmp_path / "target" / "a")
    assert real(f"file://{tmp_path}/b") == str(tmp_path / "b")
    assert real("s3://bucket/x/") == "s3a://bucket/x", "as Spark calls it"
    with pytest.raises(ConfigError, match="UTF-8"):
        real(f"{tmp_path}/{os.fsdecode(bytes([255]))}")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_json_archives_give_back_whole_messages(tmp_path: Path, suffix: str) -> None:
    messages = [*sent(*HOSTILE, attempts=3), Sent(b"a", 2**63 - 1), Sent(b"b", 2**53 + 1)]
    found = rows(to_file(tmp_path / f"events.json{suffix}", messages, JSON), JSON)
    assert [row.pop("source_record") for row in found] == list(range(len(messages)))
    facts = {"body", "timestamp_ns", "message_id", "attempts", "topic", "channel", "nsqd"}
    assert [{name: row[name] for name in facts} for row in found] == [
        {name: each.row[name] for name in facts} for each in messages
    ]


@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("layout", [PREFIXED, Layout("raw", b"\xff--\xff")])
def test_bodies_alone_have_the_time_of_the_file_and_their_place(
    tmp_path: Path, suffix: str, layout: Layout
) -> None:
    path = at(to_file(tmp_path / f"events.log{suffix}", sent(*HOSTILE), layout), NINE + 1234)
    found = rows(path, layout)
    assert [row["body"] for row in found] == HOSTILE
    assert [row["source_record"] for row in found] == list(range(len(HOSTILE)))
    assert {row["source_file"] for row in found} == {str(path)}
    when = {row["timestamp"].isoformat() for row in found}
    assert when == {"2026-11-21T09:00:00.000001+00:00"}
    for name in ("topic", "channel", "nsqd", "message_id", "timestamp_ns", "attempts"):
        assert {row[name] for row in found} == {None}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("timestamp", (2**63, -1, 1.5, "1", True)),
        ("attempts", (2**31,)),
        ("id", (7,)),
        ("topic", (None,)),
        ("nsqd", (["db1"],)),
    ],
)
def test_what_others_put_in_an_envelope_is_unknown_rather_than_wrong(
    tmp_path: Path, key: str, values: tuple[object, ...]
) -> None:
    path = tmp_path / "x.json"
    envelope = {"topic": "t", "id": "i", "timestamp": 5, "attempts": 1, "body": "b"}
    path.write_text("".join(json.dumps({**envelope, key: each}) + "\n" for each in values))
    at(path, NINE)
    column = {"timestamp": "timestamp_ns", "id": "message_id"}.get(key, key)
    for row in rows(path, JSON):
        assert (row[column], row["body"]) == (None, b"b")
        assert key != "timestamp" or row["timestamp"].year == 2026


def test_batches_are_bounded_and_nothing_is_between_them(tmp_path: Path) -> None:
    bodies = [b"%d" % number * (number % 400) + b"." for number in range(20_000)]
    path = to_file(tmp_path / "events.log.gz", sent(*bodies), RAW, members=2)
    batches = list(read(archive(path, RAW)))
    assert len(batches) > 2
    assert max(batch.num_rows for batch in batches) < 20_000
    assert max(batch.nbytes for batch in batches) < 12 << 20
    assert [body for batch in batches for body in batch["body"].to_pylist()] == bodies
    places = [place for batch in batches for place in batch["source_record"].to_pylist()]
    assert places == list(range(20_000))


def test_an_empty_file_has_no_records_and_blank_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'\n{"body":"a"}\n \n\n{"body":"b"}\n')
    assert [(row["body"], row["source_record"]) for row in rows(path, JSON)] == [
        (b"a", 0),
        (b"b", 1),
    ]
    for layout in (RAW, JSON, PREFIXED):
        path.write_bytes(b"")
        assert rows(path, layout) == []
        assert rows(to_file(tmp_path / "x.json.gz", [], layout), layout) == []


@pytest.mark.parametrize(
    ("data", "layout", "place"),
    [
        (b"one\ntwo", RAW, "record 2 at byte 4: "),
        (b"\0\0\0\x09abc", PREFIXED, "record 1"),
        (b'{"body":"a"}\n{"body":', JSON, "line 2: "),
        (b'{"body":"a"}\n{"body":}\n', JSON, "line 2: "),
        (b'{"body":"a"},{"body":"b"}\n', JSON, "line 1: "),
        (b"[1]\n", JSON, "line 1: .* array"),
        (b'{"id":"1"}\n', JSON, "line 1: .* none"),
        (b'{"body":"a","body_b64":"YQ=="}\n', JSON, "line 1: .* both"),
        (b'{"body":7}\n', JSON, "line 1: body is a number"),
        (b'{"body_b64":"***"}\n', JSON, "line 1: body_b64 is not base64"),
        (b'{"body_b64":1234}\n', JSON, "line 1: body_b64 is a number"),
        (b'{"body":"\xff"}\n', JSON, "line 1: .*UTF-8"),
        (b'{"body":"\\ud800"}\n', JSON, "line 1: body "),
        (b'{"body":"a","id":"\\ud800"}\n', JSON, "id "),
    ],
)
def test_a_damaged_file_is_named_with_the_place(
    tmp_path: Path, data: bytes, layout: Layout, place: str
) -> None:
    path = tmp_path / "bad.log"
    path.write_bytes(data)
    with pytest.raises(RecordError, match=f"^{path}: .*{place}"):
        rows(path, layout)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_member_and_a_file_that_has_changed_since_it_was_found_are_named(
    tmp_path: Path, suffix: str
) -> None:
    path = to_file(tmp_path / f"x.log{suffix}", sent(*[b"some body"] * 1000), RAW)
    then, whole = archive(path, RAW), path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (whole[:-3], bytes(flipped), b""):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=f"^{path}: "):
            rows(path, RAW)
    for change in (lambda: path.write_bytes(whole * 2), path.unlink):
        change()
        with pytest.raises(RecordError, match=f"^{path}: "):
            list(read(then))
