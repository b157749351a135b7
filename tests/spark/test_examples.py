"""Every example that the help of ``nsqtools pipeline`` gives is run as it stands, by a shell."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.eventually import eventually
from tests.support.examples import BODIES, LINES, TIMEOUT, Stage
from tests.support.servers import drained as is_drained
from tests.support.spark import java_options, needs_spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import MakeNsqd, Nsqlookupd

    Scenario = Callable[[Stage, str], None]

EXAMPLES = [line for line in LINES if line.startswith("nsqtools pipeline ")]


@pytest.fixture
def stage(tmp_path: Path, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd) -> Stage:
    folder = tmp_path / "stage"
    folder.mkdir()
    return Stage(folder, make_nsqd(lookupds=[nsqlookupd]), nsqlookupd)


def pipelined(scenario: Scenario) -> Scenario:
    """A scenario that runs Spark, with a JVM that starts quickly."""

    def run(stage: Stage, line: str) -> None:
        needs_spark("the examples of pipelines")
        stage.environment["JDK_JAVA_OPTIONS"] = java_options()
        for command in ("ARCHIVE", "SQL"):
            http = f"NSQTOOLS_PIPELINE_{command}_NSQD_HTTP_ADDRESS"
            stage.environment[http] = str(stage.nsqd.http)
        scenario(stage, line)

    return run


def archive_in_parquet(stage: Stage, line: str) -> None:
    stage.nsqd.create("events", "lake")
    stage.nsqd.publish("events", BODIES)
    taken_by_channel(stage, "events")
    assert stage.run(line) == b""
    assert sorted(parquet(stage, "lake")["body"].to_pylist()) == BODIES


def taken_by_channel(stage: Stage, topic: str) -> None:
    """Wait until the channels of the topic have got all that was published."""
    stage.published(topic, len(BODIES))
    eventually(
        lambda: all(c["message_count"] == len(BODIES) for c in stage.nsqd.topic(topic)["channels"])
    )


def archive_in_parquet_until_stopped(stage: Stage, line: str) -> None:
    stage.nsqd.create("events", "lake")
    stage.nsqd.publish("events", BODIES)
    running = stage.start(line.replace("--trigger 30s", "--trigger 200ms"))
    eventually(lambda: len(parquet(stage, "lake")) == len(BODIES), timeout=TIMEOUT)
    assert running.end(stop="pipeline") == b""
    assert sorted(parquet(stage, "lake")["user"].to_pylist()) == [1, 2, 3, 4, 5]


def sum_up_until_stopped(stage: Stage, line: str) -> None:
    stage.nsqd.create("events", "sums")
    stage.nsqd.publish("events", BODIES)
    running = stage.start(line)
    commits = stage.folder / "sums/_nsqtools/checkpoint/commits"
    eventually(lambda: (commits / "0").exists(), timeout=TIMEOUT)
    assert running.end(stop="pipeline") == b""
    assert is_drained(stage.nsqd, "events", "sums")


def parquet(stage: Stage, folder: str) -> pa.Table:
    return ds.dataset(stage.folder / folder, partitioning="hive").to_table()


def write_lake(stage: Stage) -> None:
    """An archive of the bodies, of two batches."""
    when = datetime(2026, 11, 21, 12, tzinfo=UTC)
    stamp = int(when.timestamp()) * 10**9
    for batch, (number, body) in enumerate(enumerate(BODIES)):
        table = pa.table(
            {
                "topic": ["events"],
                "message_id": [f"{number:016}"],
                "timestamp": pa.array([when], pa.timestamp("us", "UTC")),
                "timestamp_ns": [stamp],
                "body": pa.array([body], pa.binary()),
            }
        )
        leaf = stage.folder / f"lake/date=2026-11-21/hour=12/batch=00000000-{batch % 2:08}"
        leaf.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, leaf / f"part-{number}.parquet")


def compact_a_lake(stage: Stage, line: str) -> None:
    write_lake(stage)
    assert stage.run(line) == b""
    assert sorted(parquet(stage, "compacted")["body"].to_pylist()) == BODIES
    assert len(list(stage.folder.glob("compacted/date=*/hour=*/*.parquet"))) == 1


def compact_what_is_old(stage: Stage, line: str) -> None:
    write_lake(stage)
    new, *old = sorted(stage.folder.glob("lake/**/*.parquet"), key=lambda path: path.name)
    for path in old:
        os.utime(path, (0, time.time() - 3 * 3600))
    assert stage.run(line) == b""
    assert sorted(parquet(stage, "compacted")["body"].to_pylist()) == BODIES[1:]
    assert list(stage.folder.glob("lake/**/*.parquet")) == [new]


def replay_a_lake(stage: Stage, line: str) -> None:
    write_lake(stage)
    assert stage.run(line) == b""
    stage.published("orders", len(BODIES))


def query_a_lake(stage: Stage, line: str) -> None:
    write_lake(stage)
    assert stage.run(line) == b"2026-11-21\t5\n"


EXPECTED: dict[str, Scenario] = {
    "nsqtools pipeline archive --topic events --channel lake --output lake "
    "--lock events.lock -q": pipelined(archive_in_parquet),
    "nsqtools pipeline archive --topic events --channel lake --output lake --continuous "
    "--trigger 30s --schema 'user INT, action STRING' --where 'user IS NOT NULL'": pipelined(
        archive_in_parquet_until_stopped
    ),
    "nsqtools pipeline compact --input lake --output compacted": pipelined(compact_a_lake),
    "nsqtools pipeline compact --input lake --output compacted --older-than 2h "
    "--delete-inputs -q": pipelined(compact_what_is_old),
    "nsqtools pipeline replay --input lake --topic orders --order-by timestamp --rate 100 "
    "--where \"date = '2026-11-21'\"": pipelined(replay_a_lake),
    "nsqtools pipeline sql --input lake "
    "--query 'SELECT date, count(*) FROM nsq GROUP BY date ORDER BY date'": pipelined(query_a_lake),
    "nsqtools pipeline sql --topic events --channel sums --continuous --watermark 5m "
    "--schema 'user INT, amount DOUBLE' --output sums --query "
    "'SELECT window.start, user, sum(amount) AS total FROM nsq "
    'GROUP BY window(timestamp, "1 minute"), user\'': pipelined(sum_up_until_stopped),
}
"""What is expected of each example, by its line."""


def test_every_example_is_expected_to_do_something_and_nothing_else_is() -> None:
    assert set(EXPECTED) == set(EXAMPLES)


@pytest.mark.nsqd_only("a process of Spark takes seconds, and Spark cannot tell them")
@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_does_what_it_says(stage: Stage, line: str) -> None:
    EXPECTED[line](stage, line)
