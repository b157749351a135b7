"""What ``replay`` chooses with Spark and how that gets into a topic."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nsqtools.errors import ConfigError
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs import replay as job
from nsqtools.spark.jobs.replay import (
    Replayed,
    ReplaySettings,
    is_planned,
    plan,
    publish,
    publish_there,
    stage,
)
from tests.support.faults import KilledError, killed
from tests.support.lakes import HOUR, sent, to_parquet
from tests.support.replays import Taken, nothing
from tests.support.streaming import numbered


def replay(spark: SparkSession, settings: ReplaySettings) -> Replayed:
    """All of it, with the Spark there is."""
    if not plan(settings):
        stage(spark, settings, threading.Event(), nothing)
    return publish(settings, threading.Event(), nothing)


@pytest.mark.full("more of what jobs make of rows in Spark")
def test_rows_are_chosen_and_ordered_by_sql_and_then_need_no_archive(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path, taken: Taken
) -> None:
    hours, lake = sent(*numbered(40), step=HOUR // 10), tmp_path / "lake"
    to_parquet(lake / "part-1.parquet", hours[::2], price=pa.array(range(20)))
    to_parquet(lake / "part-2.parquet", hours[1::2])
    where = "date = '2026-11-21' and hour in (10, 11) and (price is null or price <> 7)"
    chosen = replace(replaying, where=where, order_by="timestamp desc, price")
    stage(spark, chosen, threading.Event(), nothing)
    shutil.rmtree(lake)
    no_spark: Any = None
    assert replay(no_spark, chosen).rows == 19
    assert taken() == [each.body for each in reversed(hours[10:30]) if each is not hours[14]]


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
    assert replay(spark, replaying).published == 2


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


def test_settings_that_cannot_be_are_named(
    spark: SparkSession, replaying: ReplaySettings, tmp_path: Path
) -> None:
    to_parquet(tmp_path / "lake" / "part-1.parquet", sent(b"a"))
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"where": "hour ="}, "^--where 'hour =': "),
        ({"where": "price > 1"}, "^--where 'price > 1': .*price"),
        ({"order_by": "price"}, "^--order-by 'price': .*price"),
        ({"order_by": "timestamp,"}, "^--order-by 'timestamp,': "),
    ]
    for wrong, culprit in wrongs:
        with pytest.raises(ConfigError, match=f"{culprit}[^\n]*$"):
            replay(spark, replace(replaying, **wrong))
