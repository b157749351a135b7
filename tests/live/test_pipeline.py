"""The commands of ``pipeline`` as processes, with a Spark of their own.

With NSQTOOLS_TEST_FULL=1 the archive that is killed has 600,000 messages to take, and is killed
8 times with all its processes, and about 20 Python workers of it are, which takes some minutes.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.support.chance import seeded, shares
from tests.support.eventually import eventually
from tests.support.metrics import scrape
from tests.support.servers import at, drained
from tests.support.sockets import connected
from tests.support.spark import java_options, needs_spark
from tests.support.trees import descendants, is_alive, kill_tree, signal_process

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd

pytestmark = pytest.mark.nsqd_only("a process of Spark takes seconds, and Spark cannot tell them")

START = 120.0  # seconds that Spark may take to begin on a busy machine
FULL = os.environ.get("NSQTOOLS_TEST_FULL") == "1"
MESSAGES, TREE_KILLS, WORKER_KILLS = (600_000, 8, 20) if FULL else (60_000, 2, 5)
STEPS = ("--max-per-trigger", "5000", "--max-in-flight", "1000")


class Lake:
    """``pipeline archive`` of a topic."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str, folder: Path) -> None:
        needs_spark("pipelines as processes")
        self.env = {"JDK_JAVA_OPTIONS": java_options()}
        self.cli = cli
        self.nsqd = nsqd
        self.topic = topic
        self.output = folder / "lake"
        self.log = folder / "log"
        self.spark_log = folder / "spark.log"
        self.config = folder / "c.toml"
        self.config.write_text(
            f'[pipeline]\nmaster = "local[2]"\nspark-log = "{self.spark_log}"\n'
            f'[profile.lake.pipeline.archive]\nchannel = "lake"\noutput = "{self.output}"\n'
        )
        nsqd.create(topic, "lake")

    @property
    def options(self) -> tuple[str, ...]:
        """Of the archive; the ports of nsqd's two APIs have nothing to do with each other here."""
        http = ("--nsqd-http-address", str(self.nsqd.http))
        return (
            *("--config", str(self.config), "--profile", "lake", "--topic", self.topic),
            *(*at(self.nsqd), *http),
        )

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = ("pipeline", "archive", *self.options, *options)
        with self.log.open("ab") as log:
            return self.cli.start(*command, env=self.env, stderr=log)

    def run(self, *options: str) -> Result:
        """A run that drains and ends; what it says, without -v, is nothing."""
        command = ("pipeline", "archive", *self.options, *options)
        return self.cli(*command, env=self.env, timeout=START)

    def publish(self, numbers: range) -> None:
        """Publish, and wait until the channel has it all."""
        count = self.nsqd.channel(self.topic, "lake")["message_count"] + len(numbers)
        self.nsqd.publish(self.topic, (b"%d" % each for each in numbers))
        eventually(lambda: self.nsqd.channel(self.topic, "lake")["message_count"] == count)

    @property
    def depth(self) -> int:
        depth: int = self.nsqd.channel(self.topic, "lake")["depth"]
        return depth

    @property
    def numbers(self) -> Counter[int]:
        return numbers_in(self.output)


def numbers_in(folder: Path) -> Counter[int]:
    """What is in the files, as a reader sees it who knows nothing of Spark."""
    table = ds.dataset(folder, partitioning="hive").to_table(["body"])
    return Counter(map(int, table["body"].to_pylist()))


@pytest.fixture
def lake(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Lake:
    return Lake(nsqtools_cli, make_nsqd("-msg-timeout=5s"), topic, tmp_path)


def test_a_service_tells_how_it_fares_and_ends_with_the_batch_when_all_of_it_is_told_to(
    lake: Lake, nsqtools_cli: Cli
) -> None:
    process = lake.start("--continuous", "--trigger", "100ms", "--metrics-address", ":0", "-v")
    url = eventually(
        lambda: re.findall("metrics are at (.*)\n", lake.log.read_text()), timeout=START
    )[0]

    def written(count: int) -> bool:
        return scrape(url)[("nsqtools_pipeline_written_total",)] == count

    lake.publish(range(1000))
    eventually(lambda: written(1000), timeout=START)
    known = scrape(url)
    assert known[("nsqtools_pipeline_backlog",)] == 0
    assert 0 < known[("nsqtools_pipeline_lag_seconds",)] < START
    assert known[("nsqtools_pipeline_batch_seconds",)] > 0

    second = lake.run()
    assert second.code == 75
    assert f"is locked by process {process.pid}" in second.stderr

    lake.nsqd.kill()
    lake.nsqd.start()
    lake.publish(range(1000, 2000))
    eventually(lambda: written(2000), timeout=START)

    os.killpg(process.pid, signal.SIGTERM)  # as timeout(1) does, or a shell that ends
    assert process.wait(START) == 0
    assert lake.numbers == Counter(range(2000))
    planned, done = (
        {each.name for each in (lake.output / "_nsqtools/checkpoint" / name).iterdir()}
        for name in ("offsets", "commits")
    )
    assert planned == done
    said = lake.log.read_text()
    assert "2,000 messages archived" in said
    assert "Traceback" not in said
    assert len(said.splitlines()) == said.count("nsqtools: ")

    size = lake.spark_log.stat().st_size
    idle = lake.run("-v")
    assert (idle.code, idle.stderr) == (0, "nsqtools: info: no message waits\n")
    assert lake.spark_log.stat().st_size == size  # Spark was not even started
    other = lake.run("--channel", "other")
    assert other.code == 2
    assert "it is of --channel lake, not of other" in other.stderr


class Kills:
    """SIGKILL at random moments: of an archive with all below it, and of Python workers."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.rng = seeded()
        self.workers = 0

    def worker(self, process: subprocess.Popen[bytes]) -> None:
        """Kill one that is receiving, when it is seen first or a few looks later."""
        looks = self.rng.randrange(8)

        def receiving() -> list[int]:
            nonlocal looks
            found = connected(descendants(process.pid), self.lake.nsqd.tcp)
            looks -= bool(found)
            return found if looks < 0 else []

        try:
            victims = eventually(receiving, timeout=5)
        except AssertionError:  # all was received meanwhile
            return
        signal_process(self.rng.choice(victims), signal.SIGKILL)
        self.workers += 1

    def tree(self, process: subprocess.Popen[bytes], *, alone: bool) -> None:
        """Kill them all at once, or the driver ``alone``: the others have nothing to live for."""
        below = descendants(process.pid)
        assert len(below) > 1
        assert process.poll() is None
        if alone:
            process.kill()
        else:
            kill_tree(process.pid)
        process.wait()
        eventually(lambda: not any(map(is_alive, below)), timeout=30)


def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(lake: Lake) -> None:
    kills = Kills(lake)
    began = time.monotonic()
    for number, share in enumerate(shares(MESSAGES, TREE_KILLS + 1)):
        process = lake.start("--continuous", "--trigger", "0s", *STEPS)
        lake.publish(share)
        rounds_left = TREE_KILLS + 1 - number
        workers = -(-(WORKER_KILLS - kills.workers) // rounds_left)
        moments = kills.rng.sample(range(len(share) // 4, len(share)), workers)
        for left in sorted(moments, reverse=True):
            eventually(lambda left=left: lake.depth <= left, timeout=START)  # type: ignore[misc]
            kills.worker(process)
        if number < TREE_KILLS:
            left = kills.rng.randrange(len(share) // 4)
            eventually(lambda left=left: lake.depth <= left, timeout=START)  # type: ignore[misc]
            kills.tree(process, alone=not number)
    published = MESSAGES
    while kills.workers < WORKER_KILLS // 2 and published < 2 * MESSAGES:
        # Some moments were over before they were seen.
        more = range(published, published + MESSAGES // 6)
        lake.publish(more)
        published = more.stop
        kills.worker(process)
    os.killpg(process.pid, signal.SIGTERM)  # as timeout(1) and systemd do
    assert process.wait(START) == 0

    def all_taken() -> bool:
        done = lake.run("-q")
        assert (done.code, done.stderr) == (0, "")
        return drained(lake.nsqd, lake.topic, "lake")

    eventually(all_taken, timeout=START)  # what was in flight comes again
    found = lake.numbers
    print(f"{found.total()} messages, {kills.workers} workers, {time.monotonic() - began:.0f} s")
    lost = sorted(set(range(published)) - set(found))
    twice = sorted(each for each, count in found.items() if count > 1)
    assert (len(lost), len(twice), found.total()) == (0, 0, published), (lost[:9], twice[:9])
    assert kills.workers >= WORKER_KILLS // 2
