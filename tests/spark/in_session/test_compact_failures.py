"""``compact`` when something goes wrong: the output is as it was, and the inputs are there."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsqtools.errors import LockedError, OutputError, RecordError
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs import compact as job
from tests.support.lakes import (
    JSON,
    NINE,
    RAW,
    Compacting,
    sent,
    to_file,
    to_parquet,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


MORE = pytest.mark.full("more of what jobs make of rows in Spark")


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Compacting:
    return Compacting(spark, tmp_path)


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
