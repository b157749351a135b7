"""What ``replay`` chooses with Spark and how that gets into a topic."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from nsqtools.errors import ConfigError, RecordError
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs import replay as job
from nsqtools.spark.jobs.replay import (
    Replayed,
    ReplaySettings,
    is_planned,
    publish_there,
    stage,
)
from tests.support.faults import KilledError, killed
from tests.support.lakes import HOUR, JSON, PREFIXED, sent, to_file, to_parquet
from tests.support.replays import HOSTILE, Taken, nothing, replay
from tests.support.streaming import numbered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_rows_are_chosen_and_ordered_by_sql(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, taken: Taken
) -> None:
    hours = sent(*numbered(40), step=HOUR // 10)
    to_parquet(tmp_path / "lake" / "part-1.parquet", hours[::2], price=pa.array(range(20)))
    to_parquet(tmp_path / "lake" / "part-2.parquet", hours[1::2])
    where = "date = '2026-11-21' and hour in (10, 11) and (price is null or price <> 7)"
    chosen = replace(replaying, where=where, order_by="timestamp desc, price")
    assert replay(spark, chosen, threading.Event(), nothing).rows == 19
    assert taken() == [each.body for each in reversed(hours[10:30]) if each is not hours[14]]


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_bare_records_go_back_too(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, taken: Taken
) -> None:
    to_file(tmp_path / "lake" / "x.bin.zst", sent(b"", *HOSTILE, *HOSTILE), PREFIXED)
    chosen = replace(replaying, layout=PREFIXED, order_by="timestamp")
    done = replay(spark, chosen, threading.Event(), nothing)
    assert done == Replayed(rows=11, published=10, empty=1)
    assert taken() == [*HOSTILE, *HOSTILE]


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_what_is_planned_is_not_chosen_again_and_needs_no_archive(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, taken: Taken
) -> None:
    replaying = replace(replaying, where="body is not null")
    to_parquet(tmp_path / "lake" / "part-1.parquet", sent(b"a", b"b"))
    stage(spark, replaying, threading.Event(), nothing)
    (tmp_path / "lake" / "part-1.parquet").unlink()
    to_parquet(tmp_path / "lake" / "part-2.parquet", sent(b"c"))
    no_spark: Any = None
    assert replay(no_spark, replaying, threading.Event(), nothing).published == 2
    assert sorted(taken()) == [b"a", b"b"]


def test_a_staging_that_was_killed_or_told_to_end_is_done_by_the_next_run(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaying = replace(replaying, where="true")
    to_parquet(tmp_path / "lake" / "part-1.parquet", sent(b"a", b"b"))
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        stage(spark, replaying, stop, nothing)
    with monkeypatch.context() as patch:
        patch.setattr(job, "_save", killed)
        with pytest.raises(KilledError):
            stage(spark, replaying, threading.Event(), nothing)
    assert not is_planned(replaying)
    assert replay(spark, replaying, threading.Event(), nothing).published == 2


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_a_damaged_file_is_named_and_nothing_published(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, taken: Taken
) -> None:
    to_file(tmp_path / "lake" / "a.json", sent(b"a"), JSON)
    bad = to_file(tmp_path / "lake" / "b.json", sent(b"b"), JSON)
    with bad.open("ab") as file:
        file.write(b"{")
    with pytest.raises(RecordError, match=rf"^{bad}: line 2\b"):
        replay(spark, replace(replaying, layout=JSON), threading.Event(), nothing)
    assert not is_planned(replace(replaying, layout=JSON))
    assert taken() == []


@pytest.mark.parametrize("where", ["", "body is not null"], ids=["archive", "staged"])
def test_executors_publish_portions(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, taken: Taken, where: str
) -> None:
    chosen, bodies = replace(replaying, where=where), numbered(4000)
    for number in range(2):
        to_parquet(tmp_path / "lake" / f"{number}.parquet", sent(*bodies[number::2]))
    stop = threading.Event()
    stop.set()
    if not where:
        assert publish_there(spark, chosen, stop, nothing) == Replayed(rows=4000, stopped=True)
    done = publish_there(spark, chosen, threading.Event(), nothing)
    assert done == Replayed(rows=4000, published=4000)
    assert sorted(taken()) == sorted(bodies)
    assert list((tmp_path / "staging").iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "culprit"),
    [
        ({"where": "hour ="}, "^--where 'hour =': "),
        ({"where": "price > 1"}, "^--where 'price > 1': .*price"),
        ({"order_by": "price"}, "^--order-by 'price': .*price"),
        ({"order_by": "timestamp,"}, "^--order-by 'timestamp,': "),
        ({"staging": "ftp://host/x"}, "ftp://host/x: "),
        ({"inputs": ("/nowhere",)}, "^/nowhere: "),
    ],
)
def test_settings_that_cannot_be_are_named(
    spark: SparkSession,
    replaying: ReplaySettings,
    tmp_path: Path,
    wrong: dict[str, Any],
    culprit: str,
) -> None:
    to_parquet(tmp_path / "lake" / "part-1.parquet", sent(b"a"))
    with pytest.raises(ConfigError, match=culprit) as caught:
        replay(spark, replace(replaying, **wrong), threading.Event(), nothing)
    assert "\n" not in str(caught.value)
