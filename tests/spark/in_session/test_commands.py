"""The commands of ``pipeline`` from their options to their files: help's examples, round trips."""

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from nsqtools.cli import cli
from nsqtools.cli.exits import run
from tests.support.decoding import order, protobuf_file
from tests.support.eventually import eventually
from tests.support.examples import BODIES, LINES, Stage
from tests.support.lakes import Sent, to_parquet
from tests.support.servers import drained
from tests.support.spark import START
from tests.support.streaming import publish, rows

MORE = pytest.mark.full("more of what jobs make of rows in Spark")


class Example:
    """An example on a stage, within this process, with the session that tests share.

    All but the start of Spark is as in a process of its own; nothing is registered in the session
    but what commands register themselves.
    """

    def __init__(
        self,
        spark: SparkSession,
        stage: Stage,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        self.stage = stage
        self.args: list[str] = []
        self._captured = capfd

        @contextmanager
        def opened(*_: object, **__: object) -> Iterator[SparkSession]:
            session = spark.newSession()
            session.createDataFrame([], "n INT")  # which makes it the one of this thread
            yield session

        monkeypatch.setattr("nsqtools.cli.commands.pipeline.run.open_session", opened)
        for name in [name for name in os.environ if name.startswith("NSQTOOLS_")]:
            monkeypatch.delenv(name)
        given = {name: stage.environment[name] for name in stage.environment if "NSQTOOLS" in name}
        for command in ("ARCHIVE", "SQL"):
            given[f"NSQTOOLS_PIPELINE_{command}_NSQD_HTTP_ADDRESS"] = str(stage.nsqd.http)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            given[name] = str(stage.folder / "no-such")
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(stage.folder)

    def run(self, until: Callable[[], object] = lambda: False) -> str:
        """What it prints; it succeeds and says nothing else. SIGTERM ends it once ``until``."""
        ended = threading.Event()

        def stop() -> None:
            with suppress(AssertionError):
                eventually(lambda: ended.is_set() or until(), START)
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            code = run(cli, ("pipeline", *self.args))
        finally:
            ended.set()
            stopper.join()
        printed, said = self._captured.readouterr()
        assert (code, said) == (0, ""), (code, said, self.args)
        return printed

    def publish(self, channel: str) -> None:
        publish(self.stage.nsqd, "events", BODIES, channel=channel)

    def rows(self, column: str, folder: str = "lake") -> list[object]:
        return sorted(row[column] for row in rows(self.stage.folder / folder))

    def write_lake(self, bodies: Sequence[bytes] = BODIES) -> None:
        """An archive of bodies, of two batches."""
        noon = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) * 10**9
        hour = self.stage.folder / "lake/date=2026-11-21/hour=12"
        for n, body in enumerate(bodies):
            path = hour / f"batch=00000000-{n % 2:08}/part-{n}.parquet"
            to_parquet(path, [Sent(body, noon, f"{n:016x}")])


def archive(example: Example) -> None:
    example.publish("lake")
    assert example.run() == ""
    assert example.rows("body") == BODIES


def archive_until_stopped(example: Example) -> None:
    example.publish("lake")
    assert example.run(until=lambda: len(example.rows("user")) == len(BODIES)) == ""
    assert example.rows("user") == [1, 2, 3, 4, 5]


def sum_up_until_stopped(example: Example) -> None:
    example.publish("sums")
    commits = example.stage.folder / "sums/_nsqtools/checkpoint/commits"
    assert example.run(until=(commits / "0").exists) == ""
    assert drained(example.stage.nsqd, "events", "sums")


def compact(example: Example) -> None:
    example.write_lake()
    assert example.run() == ""
    assert example.rows("body", "compacted") == BODIES
    assert len(list(example.stage.folder.glob("compacted/date=*/hour=*/*.parquet"))) == 1


def compact_what_is_old(example: Example) -> None:
    example.write_lake()
    new, *old = sorted(example.stage.folder.glob("lake/**/*.parquet"), key=lambda path: path.name)
    for path in old:
        os.utime(path, (0, time.time() - 3 * 3600))
    assert example.run() == ""
    assert example.rows("body", "compacted") == BODIES[1:]
    assert list(example.stage.folder.glob("lake/**/*.parquet")) == [new]


def plan_to_compact(example: Example) -> None:
    example.write_lake()
    assert f"{len(BODIES)} records" in example.run()
    assert not (example.stage.folder / "compacted").exists()


def compact_a_table(example: Example) -> None:
    place = str(example.stage.folder / "table")
    for body in BODIES:
        write_deltalake(place, pa.table({"body": [body]}), mode="append")
    assert example.run() == ""
    [file] = DeltaTable(place).file_uris()
    assert sorted(pq.ParquetFile(file).read()["body"].to_pylist()) == BODIES


def replay(example: Example, goal: str) -> None:
    example.write_lake()
    assert example.run() == ""
    example.stage.published(goal, len(BODIES))


def copy(example: Example) -> None:
    example.publish("bodies")
    assert example.run() == ""
    assert example.rows("body", "bodies") == BODIES


def join(example: Example) -> None:
    times = {"orders": (10, 11, 12), "clicks": (15, 59, 13)}
    for topic, minutes in times.items():
        bodies = [b'{"id": %d, "at": "2026-11-21T10:%d:00Z"}' % each for each in enumerate(minutes)]
        publish(example.stage.nsqd, topic, bodies, channel="join")
    assert example.run() == ""
    assert example.rows("id", "joined") == [0, 2]


def query(example: Example) -> None:
    example.write_lake()
    assert example.run() == "2026-11-21\t5\n"


def decode(example: Example) -> None:
    protobuf_file(example.stage.folder)
    example.write_lake([order(id=n).SerializeToString() for n in (1, 30, 200)])
    assert example.run() == "200\n"


EXPECTED: dict[str, Callable[[Example], None]] = {
    "nsqtools pipeline archive --topic events --channel lake --output lake "
    "--lock events.lock -q": archive,
    "nsqtools pipeline archive --topic events --channel lake --output lake --continuous "
    "--schema 'user INT, action STRING' --where 'user IS NOT NULL'": archive_until_stopped,
    "nsqtools pipeline compact --input lake --output compacted": compact,
    "nsqtools pipeline compact --input lake --output compacted --older-than 2h "
    "--delete-inputs -q": compact_what_is_old,
    "nsqtools pipeline compact --input lake --output compacted --since 2026-11-21 "
    "--dry-run": plan_to_compact,
    "nsqtools pipeline compact --input table": compact_a_table,
    "nsqtools pipeline replay --input lake --topic orders --order-by timestamp --rate 100 "
    "--where \"date = '2026-11-21'\"": partial(replay, goal="orders"),
    "nsqtools pipeline replay --input lake --topic again": partial(replay, goal="again"),
    "nsqtools pipeline sql --input lake "
    "--query 'SELECT date, count(*) FROM nsq GROUP BY date ORDER BY date'": query,
    "nsqtools pipeline sql --input lake --decode protobuf:shop.pb#shop.Order "
    "--schema 'id BIGINT' --query 'SELECT max(id) FROM nsq'": decode,
    "nsqtools pipeline sql --topic events --channel bodies --output bodies "
    "--query 'SELECT timestamp, body FROM nsq'": copy,
    "nsqtools pipeline sql --topic events --channel sums --continuous --watermark 5m "
    "--schema 'user INT, amount DOUBLE' --output sums --query "
    "'SELECT window.start, user, sum(amount) AS total FROM nsq "
    'GROUP BY window(timestamp, "1 minute"), user\'': sum_up_until_stopped,
    "nsqtools pipeline sql --topic orders --topic clicks --channel join "
    "--schema 'id INT, at TIMESTAMP' --timestamp at --watermark 10m --output joined "
    "--query 'SELECT o.id, o.at FROM orders o JOIN clicks c ON o.id = c.id "
    "AND c.at BETWEEN o.at AND o.at + INTERVAL 10 MINUTES'": join,
}
"""What is expected of each example, by its line."""


def shown(line: str) -> Any:
    """The plain run tries one of each command."""
    marks = [] if EXPECTED[line] in (archive, compact, query) or "again" in line else [MORE]
    return pytest.param(line, marks=marks)


@pytest.mark.parametrize(
    "line", [shown(line) for line in LINES if line.startswith("nsqtools pipeline ")]
)
def test_an_example_does_what_it_says(
    spark: SparkSession,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: str,
) -> None:
    example = Example(spark, stage, monkeypatch, capfd)
    example.args = shlex.split(line)[2:]
    EXPECTED[line](example)


def test_every_example_is_one_that_help_gives() -> None:
    assert set(EXPECTED) <= set(LINES)
