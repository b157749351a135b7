"""``compact``: which rows come of which inputs, where they are, and what becomes of the inputs.

When something goes wrong, the output is as it was, and the inputs are there.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nsqtools.errors import ConfigError, LockedError, OutputError, RecordError
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs import compact as job
from nsqtools.spark.jobs.compact import Compacted, CompactSettings, compact
from tests.support.lakes import (
    HOUR,
    JSON,
    NINE,
    PREFIXED,
    RAW,
    Sent,
    at,
    sent,
    to_file,
    to_parquet,
)
from tests.support.streaming import numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from nsqtools.records.layout import Layout
    from nsqtools.spark.lake.inputs import ProgressReport


MORE = pytest.mark.full("more of what jobs make of rows in Spark")

MINUTE = HOUR // 60
HOSTILE = [bytes(range(256)), b"a\nb\n", b"\0" * 9, "schön".encode(), b'{"body":"x"}', b" "]


class Compacting:
    """Compacts places, or ``lake``, into ``out``, both in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder, self.lake, self.out = folder, folder / "lake", folder / "out"

    def __call__(
        self,
        *places: Path,
        layout: Layout | None = None,
        stop: threading.Event | None = None,
        report: ProgressReport = lambda *_: None,
        **settings: Any,
    ) -> Compacted:
        inputs = tuple(map(str, places or [self.lake]))
        chosen = CompactSettings(inputs, str(self.out), layout=layout, **settings)
        return compact(self._spark, chosen, stop or threading.Event(), report)


def again(messages: Iterable[Sent], **facts: Any) -> list[Sent]:
    """The same messages, delivered once more."""
    return [replace(each, **{"attempts": 2, **facts}) for each in messages]


def files(output: Path) -> list[Path]:
    """The files of the hours of an output, by name."""
    return sorted(output.glob("date=*/hour=*/*.parquet"))


def table(output: Path) -> pa.Table:
    """All rows as pyarrow reads the directory, which must agree with duckdb in their bodies."""
    found = ds.dataset(output, format="parquet", partitioning="hive").to_table()
    pattern = f"{output}/date=*/hour=*/*.parquet"
    query = "select body from read_parquet(?, hive_partitioning = true)"
    by_duckdb = Counter(body for (body,) in duckdb.execute(query, [pattern]).fetchall())
    assert by_duckdb == Counter(found["body"].to_pylist())
    return found


def bodies(output: Path) -> Counter[bytes]:
    return Counter(table(output)["body"].to_pylist())


def keys(output: Path) -> Counter[tuple[str, str, int]]:
    found = table(output)
    names = ("topic", "message_id", "timestamp_ns")
    return Counter(zip(*(found[name].to_pylist() for name in names), strict=True))


def walk(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a directory with what it holds."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Compacting:
    return Compacting(spark, tmp_path)


def rows_of(messages: Iterable[Sent]) -> Counter[tuple[str, str, int]]:
    return Counter((each.topic, each.id, each.ns) for each in messages)


def is_sorted(path: Path) -> bool:
    found = pq.ParquetFile(path).read()
    names = ("timestamp", "timestamp_ns", "topic", "message_id", "source_file", "source_record")
    columns = [found[name].to_pylist() for name in names]
    rows = [
        tuple((value is not None, value) for value in row) for row in zip(*columns, strict=True)
    ]
    return rows == sorted(rows)


def test_archives_of_all_kinds_become_few_sorted_files_without_doubles(run: Compacting) -> None:
    """An odd directory, messages in several files, hours in several files, ids that repeat.

    A second run changes nothing, and a third one only the hours of what is new.
    """
    messages = sent(*HOSTILE, *numbered(3000), step=3 * 10**9)
    others = [replace(each, topic="other") for each in messages[:500]]
    lake, logs, out = run.folder / "odd +%41 [x]{y}", run.folder / "logs", run.out
    shuffled = random.Random(7).sample(messages, len(messages))
    for number in range(5):
        folder = lake / f"date=2026-11-21/hour=09/batch=0a-{number:08}"
        part = shuffled[number * 600 : (number + 1) * 600] + again(shuffled[:7])
        to_parquet(folder / f"part-{number}.parquet", part)
    to_file(logs / "a.json.gz", shuffled[2900:] + again(shuffled[2000:2100]), JSON)
    to_file(logs / "b.json.zst", others, JSON)
    done = run(lake, logs, layout=JSON)
    assert keys(out) == rows_of([*messages, *others])
    assert bodies(out) == Counter(each.body for each in [*messages, *others])
    hours = [f"date=2026-11-21/hour={hour:02}" for hour in (9, 10, 11)]
    assert [str(path.parent.relative_to(out)) for path in files(out)] == hours
    assert all(map(is_sorted, files(out)))
    assert set(table(out)["attempts"].to_pylist()) == {1}
    assert set(table(out)["source_file"].to_pylist()) == {None}
    assert done == Compacted(inputs=7, read=3741, files=3, rows=3506, duplicates=235)

    before = dict(walk(out))
    assert run(lake, logs, layout=JSON) == Compacted(known=7)
    assert dict(walk(out)) == before
    late = Sent(b"late", NINE + HOUR + 1, "f" * 16)
    to_parquet(lake / "part-late.parquet", [late, *again(messages[1300:1305])])
    assert run(lake, logs, layout=JSON) == Compacted(
        inputs=1, known=7, read=6, files=1, replaced=1, rows=1201, duplicates=5
    )
    assert keys(out) == rows_of([*messages, *others, late])
    changed = {name for name, data in walk(out) if before.get(name) != data}
    assert {name.rpartition("/")[0] for name in changed} == {
        *(hours[1], "_nsqtools/compact", "_nsqtools/compact/files/2026-11-21"),
        "_nsqtools/compact/inputs/d2",
    }

    shutil.rmtree(out / hours[2])
    done = run(lake, logs, layout=JSON, delete_inputs=True)
    assert done == Compacted(known=8, kept=8), "messages of the hour are in the inputs alone"


@MORE
def test_records_without_metadata_are_told_apart_by_their_place(run: Compacting) -> None:
    """Equal bodies are as many messages; the same file is one however it is given."""
    for folder, layout in (("raw", RAW), ("prefixed", PREFIXED)):
        for number in range(2):
            path = to_file(run.folder / folder / f"{number}.log.gz", sent(*[b"tick"] * 100), layout)
            at(path, NINE + number)
        (run.folder / folder / "latest").symlink_to("0.log.gz")
    raw, backup = run.folder / "raw", run.folder / "backup"
    shutil.copytree(raw, backup, symlinks=True)
    first = run(raw, backup, raw / "0.log.gz", layout=RAW)
    assert (first.inputs, first.rows) == (2, 200)
    assert run(run.folder / "prefixed", layout=PREFIXED).rows == 400
    assert bodies(run.out) == {b"tick": 400}
    found = table(run.out)
    places = found.select(["source_file", "source_record"]).to_pylist()
    assert len({tuple(place.values()) for place in places}) == 400
    assert set(found["message_id"].to_pylist()) == {None}
    assert run(backup, raw, layout=RAW) == Compacted(known=4)
    run.out.rename(run.folder / "old")
    run(run.folder / "old", run.folder / "prefixed", layout=PREFIXED)
    assert bodies(run.out) == {b"tick": 400}, "what compact wrote is an input, too"


@MORE
def test_of_a_file_that_was_continued_the_new_records_are_added(run: Compacting) -> None:
    path = to_file(run.folder / "events.log", sent(b"tick", b"tick"), RAW)
    run(path, layout=RAW)
    with path.open("ab") as file:
        file.write(b"tick\nlast\n")
    assert run(path, layout=RAW).read == 2
    assert bodies(run.out) == {b"tick": 3, b"last": 1}
    to_file(path, sent(b"tick", b"another file"), RAW)
    assert run(path, layout=RAW).read == 2
    assert bodies(run.out) == {b"tick": 4, b"last": 1, b"another file": 1}


def test_inputs_without_rows_are_remembered_too(run: Compacting) -> None:
    (run.folder / "none").mkdir()
    assert run(run.folder / "none") == Compacted()
    to_parquet(run.lake / "part-1.parquet", [])
    to_file(run.lake / "empty.log", [], RAW)
    to_file(run.lake / "empty.log.gz", [], RAW)
    assert run(layout=RAW) == Compacted(inputs=3)
    assert run(layout=RAW, delete_inputs=True) == Compacted(known=3, deleted=3)
    assert files(run.out) == []


@MORE
def test_columns_of_parsed_bodies_are_kept(run: Compacting) -> None:
    messages = sent(b"a", b"b", b"c")
    to_parquet(run.lake / "part-1.parquet", messages[:2], price=pa.array([1.5, 2.5]))
    run()
    tags = pa.array([[{"k": "v"}]])
    to_parquet(run.lake / "part-2.parquet", messages[2:], tags=tags)
    run()
    found = pq.ParquetFile(files(run.out)[0]).read().sort_by("body")
    assert found["price"].to_pylist() == [1.5, 2.5, None]
    assert found["tags"].to_pylist() == [None, None, [{"k": "v"}]]
    to_parquet(run.lake / "part-3.parquet", messages, price=pa.array(["1", "2", "3"]))
    with pytest.raises(ConfigError, match="column price"):
        run()


@MORE
def test_json_of_the_pipeline_is_read_with_its_columns(
    run: Compacting, spark: SparkSession
) -> None:
    """Bodies that are no UTF-8 stand in body_b64, and null columns are left out."""
    folder = run.lake / "date=2026-11-21" / "hour=09" / "batch=0a0a0a0a-00000001"
    messages = sent(*HOSTILE, b"\xff\xfe", b"last")
    to_parquet(run.folder / "source.parquet", messages, price=pa.array([None, *range(7)]))
    text = "nullif(try_validate_utf8(cast(body as string)), null)"
    (
        spark.read.parquet(str(run.folder / "source.parquet"))
        .selectExpr(
            "* except (body)",
            f"{text} as body",
            f"if({text} is null, base64(body), null) as body_b64",
        )
        .coalesce(1)
        .write.json(str(folder), compression="gzip")
    )
    run()
    assert keys(run.out) == rows_of(messages)
    assert bodies(run.out) == Counter(each.body for each in messages)
    found = pq.ParquetFile(files(run.out)[0]).read().sort_by("timestamp_ns")
    assert found["price"].to_pylist() == [None, *range(7)]
    (path,) = folder.glob("part-*.json.gz")
    path.unlink()
    path.with_suffix("").write_text('{"topic":"t"}\n{"topic":\n')
    shutil.rmtree(run.out)
    with pytest.raises(RecordError, match=r"^/.*/part-[^/]*\.json: ") as caught:
        run()
    assert "\n" not in str(caught.value)


@MORE
def test_a_big_hour_is_several_files_of_which_late_messages_change_those_of_their_minutes(
    run: Compacting,
) -> None:
    messages = sent(*(b"%d" % n * 50 for n in range(2000)), step=HOUR // 2001)
    to_parquet(run.lake / "part-1.parquet", messages)
    assert run(file_size=100_000).files == 4
    assert keys(run.out) == rows_of(messages)
    spans = []
    for path in files(run.out):
        assert is_sorted(path)
        stamps = pq.ParquetFile(path).read()["timestamp_ns"].to_pylist()
        spans.append((min(stamps), max(stamps)))
    spans.sort()
    assert all(before[1] - MINUTE < after[0] for before, after in pairwise(spans))

    before = set(files(run.out))
    late = [Sent(b"late", NINE + 1, "f" * 16), Sent(b"late", NINE + 2 * HOUR, "f" * 16)]
    to_parquet(run.lake / "part-2.parquet", [*late, *again(messages[:10])])
    plan = run(file_size=100_000, dry_run=True)
    assert set(files(run.out)) == before
    done = run(file_size=100_000)
    assert done == Compacted(
        inputs=1, known=1, read=12, files=2, replaced=1, rows=done.rows, duplicates=10
    )
    assert plan == replace(done, rows=done.rows + 10, duplicates=0)
    assert len(before - set(files(run.out))) == 1
    assert keys(run.out) == rows_of([*messages, *late])


@MORE
def test_hours_are_chosen_by_directory_or_by_the_time_of_the_file(run: Compacting) -> None:
    for hour in (8, 9, 10):
        folder = run.folder / f"lake/date=2026-11-21/hour={hour:02}/batch=0a-1"
        to_parquet(folder / "part-1.parquet", sent(b"%d" % hour))
    for hour in (8, 9, 10):
        path = to_file(run.lake / f"{hour}.log", sent(b"log %d" % hour), RAW)
        at(path, NINE + (hour - 9) * HOUR)
    span: dict[str, Any] = {"since": NINE / 1e9, "until": (NINE + HOUR) / 1e9}
    assert run(layout=RAW, delete_inputs=True, **span).deleted == 2
    assert bodies(run.out) == {b"9": 1, b"log 9": 1}
    assert run(layout=RAW).inputs == 4


@MORE
def test_extreme_times_are_exact(run: Compacting) -> None:
    stamps = [0, 999, 2**53 + 1, NINE + 999_999_999, NINE + HOUR - 1, NINE + HOUR, 2**63 - 1]
    messages = [Sent(b"%d" % ns, ns, f"{n:016x}") for n, ns in enumerate(stamps)]
    to_file(run.folder / "x.json", messages, JSON)
    run(run.folder / "x.json", layout=JSON)
    assert keys(run.out) == rows_of(messages)
    there = {str(path.parent.relative_to(run.out)) for path in files(run.out)}
    assert there == {
        "date=1970-01-01/hour=00",
        "date=1970-04-15/hour=05",
        "date=2026-11-21/hour=09",
        "date=2026-11-21/hour=10",
        "date=2262-04-11/hour=23",
    }


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output that a run has made of two messages."""
    folder = tmp_path_factory.mktemp("made")
    to_parquet(folder / "lake" / "part-1.parquet", sent(b"a", b"b"))
    Compacting(spark, folder)(folder / "lake")
    return folder / "out"


@pytest.fixture
def before(made: Path, tmp_path: Path) -> dict[str, bytes]:
    """What is in the output of this test."""
    shutil.copytree(made, tmp_path / "out")
    return dict(walk(tmp_path / "out"))


def cut(path: Path) -> Path:
    to_file(path.with_name("good.json.gz"), sent(b"c"), JSON)
    bad = to_file(path.with_name("bad.json.gz"), sent(*[b"c" * 500] * 100), JSON)
    os.truncate(bad, bad.stat().st_size - 9)
    return bad


def torn(path: Path) -> Path:
    return spoilt(path, lambda data: data[:100])


def spoilt(
    path: Path, spoil: Callable[[bytes], bytes] = lambda data: data[:20] + bytes(180) + data[200:]
) -> Path:
    bad = to_parquet(path, sent(*[b"c" * 500] * 1000))
    bad.write_bytes(spoil(bad.read_bytes()))
    return bad


@pytest.mark.parametrize("damaged", [cut, torn, spoilt])
def test_a_damaged_file_is_named_and_changes_nothing(
    run: Compacting, before: dict[str, bytes], damaged: Callable[[Path], Path]
) -> None:
    bad = damaged(run.lake / "part-2.parquet")
    there = dict(walk(run.lake))
    with pytest.raises(RecordError, match=f"^{bad}: [^\n]*$"):
        run(layout=JSON, delete_inputs=True)
    assert dict(walk(run.out)) == before
    assert dict(walk(run.lake)) == there


@MORE
def test_a_file_that_is_written_to_meanwhile_changes_nothing(
    run: Compacting, before: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = to_file(run.folder / "logs" / "x.log", sent(b"c"), RAW)
    read_back = job._read_back

    def disturbed(*args: Any) -> Any:
        with path.open("ab") as file:
            file.write(b"d\n")
        return read_back(*args)

    monkeypatch.setattr(job, "_read_back", disturbed)
    with pytest.raises(RecordError, match=r"x\.log: "):
        run(path, layout=RAW, delete_inputs=True)
    assert dict(walk(run.out)) == before
    monkeypatch.undo()
    assert run(path, layout=RAW).read == 2


@MORE
def test_what_is_not_on_disk_as_it_should_be_replaces_nothing(
    run: Compacting, before: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = to_parquet(run.lake / "part-2.parquet", sent(b"c", start=NINE + 1))
    read_back = job._read_back

    def damaged(spark: SparkSession, paths: Sequence[str]) -> Any:
        [part] = map(Path, paths)
        found = pq.ParquetFile(part).read()
        bodies = pa.array([b"x", b"y", b"z"], pa.binary())
        pq.write_table(found.set_column(found.schema.get_field_index("body"), "body", bodies), part)
        return read_back(spark, paths)

    monkeypatch.setattr(job, "_read_back", damaged)
    with pytest.raises(OutputError, match="3 rows"):
        run(delete_inputs=True)
    assert dict(walk(run.out)) == before
    assert path.exists()


def test_a_second_run_at_once_is_refused(run: Compacting, before: dict[str, bytes]) -> None:
    path = run.out / "_nsqtools" / "lock"
    with Lock(str(path)), pytest.raises(LockedError, match=str(path)):
        run()
    assert dict(walk(run.out)) == before


@pytest.mark.parametrize(
    "step", [pytest.param("reading", marks=MORE), pytest.param("writing", marks=MORE), "verifying"]
)
def test_a_run_that_is_told_to_end_changes_nothing(
    run: Compacting, before: dict[str, bytes], step: str
) -> None:
    to_parquet(run.lake / "part-2.parquet", sent(b"c"))
    stop = threading.Event()

    def report(said: str, done: int, total: int) -> None:
        if said == step:
            stop.set()

    with pytest.raises(StoppedError):
        run(stop=stop, report=report)
    assert dict(walk(run.out)) == before
