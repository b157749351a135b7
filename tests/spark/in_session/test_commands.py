"""The commands of ``pipeline`` from their options to their files: help's examples, round trips."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import eventually
from tests.support.examples import BODIES, LINES, Stage
from tests.support.lakes import Sent, to_parquet
from tests.support.pipelines import Pipelines
from tests.support.raw import prefixed
from tests.support.replays import Taken
from tests.support.servers import at, drained, empty
from tests.support.spark import START
from tests.support.streaming import publish, rows

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqlookupd


MORE = pytest.mark.full("more of what jobs make of rows in Spark")


@pytest.fixture
def pipeline(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Pipelines:
    return Pipelines(spark, tmp_path, monkeypatch, capfd)


class Example:
    """An example on a stage."""

    def __init__(
        self, pipeline: Pipelines, stage: Stage, line: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.pipeline, self.stage = pipeline, stage
        self.args = shlex.split(line)[2:]
        for name, value in stage.environment.items():
            if name.startswith("NSQTOOLS_"):
                monkeypatch.setenv(name, value)
        for command in ("ARCHIVE", "SQL"):
            http = f"NSQTOOLS_PIPELINE_{command}_NSQD_HTTP_ADDRESS"
            monkeypatch.setenv(http, str(stage.nsqd.http))
        monkeypatch.chdir(stage.folder)

    def run(self, until: Callable[[], object] | None = None) -> str:
        return self.pipeline(*self.args, until=until)

    def publish(self, channel: str) -> None:
        publish(self.stage.nsqd, "events", BODIES, channel=channel)

    def rows(self, column: str, folder: str = "lake") -> list[object]:
        return sorted(row[column] for row in rows(self.stage.folder / folder))

    def write_lake(self) -> None:
        """An archive of the bodies, of two batches."""
        noon = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) * 10**9
        hour = self.stage.folder / "lake/date=2026-11-21/hour=12"
        for n, body in enumerate(BODIES):
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
    "nsqtools pipeline replay --input lake --topic orders --order-by timestamp --rate 100 "
    "--where \"date = '2026-11-21'\"": partial(replay, goal="orders"),
    "nsqtools pipeline replay --input lake --topic again": partial(replay, goal="again"),
    "nsqtools pipeline sql --input lake "
    "--query 'SELECT date, count(*) FROM nsq GROUP BY date ORDER BY date'": query,
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
    pipeline: Pipelines,
    make_nsqd: MakeNsqd,
    nsqlookupd: Nsqlookupd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
) -> None:
    (folder := tmp_path / "stage").mkdir()
    stage = Stage(folder, make_nsqd(lookupds=[nsqlookupd]), nsqlookupd)
    EXPECTED[line](Example(pipeline, stage, line, monkeypatch))


def test_every_example_is_one_that_help_gives() -> None:
    assert set(EXPECTED) <= set(LINES)


HOSTILE = [b"\0", b"\n", b"\r\n", b" ", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\0\n" * 150]
"""What formats, codecs and shells like to lose: delimiters, halves of characters, surrogates."""


def random_bodies(rng: random.Random, count: int) -> list[bytes]:
    """Of 1 to 300 bytes; those of one byte, and some of two, are there many times."""
    sizes = [*range(1, 3)] * (count // 20)
    sizes += [rng.randint(1, 300) for _ in range(count - len(sizes))]
    bodies = [*map(rng.randbytes, sizes), *HOSTILE * 20]
    rng.shuffle(bodies)
    return bodies


@MORE
@pytest.mark.nsqd_only("most of what it takes comes from nsqd's disk")
def test_binary_bodies_come_back_the_same_by_archive_and_by_to_file(
    pipeline: Pipelines,
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    topic: str,
    tmp_path: Path,
    rng: random.Random,
) -> None:
    """``pub``, ``pipeline archive`` or ``to-file``, ``pipeline compact`` and ``replay``, ``tail``.

    One run of ``compact`` takes both in: rows that ``to-file`` wrote have no metadata.
    """

    def shell(*args: str, stdin: bytes = b"") -> None:
        ended = nsqtools_cli(*args, stdin=stdin, timeout=START)
        assert (ended.code, ended.stderr) == (0, ""), args

    nsqd = make_nsqd("-mem-queue-size=1000")
    bodies = random_bodies(rng, 200_000)
    sent = Counter(bodies)
    for channel in ("lake", "files"):
        nsqd.create(topic, channel)
    shell("pub", "--topic", topic, "--length-prefix", "-q", *at(nsqd), stdin=prefixed(bodies))
    for channel in ("lake", "files"):
        eventually(lambda c=channel: nsqd.channel(topic, c)["message_count"] == sent.total())  # type: ignore[misc]

    pipeline(
        *("archive", "--topic", topic, "--channel", "lake", "--output", "lake"),
        *(*at(nsqd), "--nsqd-http-address", str(nsqd.http)),
    )
    shell(
        *("to-file", "--topic", topic, "--channel", "files", "--output-dir", "files", "-q"),
        *("--format", "length-prefixed", "--compress", "zstd", "--rotate-size", "400KiB"),
        *empty(nsqd),
    )
    assert drained(nsqd, topic, "lake")
    assert drained(nsqd, topic, "files")
    pipeline(
        *("compact", "--input", "lake", "--input", "files", "--input-format", "length-prefixed"),
        *("--output", "few"),
    )
    for way, condition in (("archive", "IS NOT NULL"), ("to-file", "IS NULL")):
        goal = f"{topic}.{way}"
        nsqd.create(goal, "c")
        where = f"message_id {condition}"
        pipeline("replay", "--input", "few", "--topic", goal, "--where", where, *at(nsqd))
        found = Counter(Taken(nsqtools_cli, nsqd, goal)())
        assert ((sent - found).total(), (found - sent).total()) == (0, 0), way
