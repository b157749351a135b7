"""The pipeline on a real cluster: the package comes with the driver, and executors get killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import cluster_driver
from tests.support.cluster import Cluster
from tests.support.eventually import eventually
from tests.support.replays import Taken
from tests.support.servers import drained
from tests.support.spark import START, needs_spark
from tests.support.streaming import numbered, publish, rows, source

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

MESSAGES = 40_000


class Driver:
    """A process of ``cluster_driver``; a context manager."""

    def __init__(self, folder: Path, cluster: Cluster, given: dict[str, Any]) -> None:
        given |= {"master": cluster.master, "conf": cluster.conf(), "log": str(folder / "log")}
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", cluster_driver.__file__, json.dumps(given)],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, step: str) -> None:
        assert self._process.stdin
        print(step, file=self._process.stdin, flush=True)

    def hear(self, fact: str) -> Any:
        """Wait for this fact; others before it are skipped."""
        assert self._process.stdout
        for line in self._process.stdout:
            said = json.loads(line)
            if fact in said:
                return said[fact]
        raise AssertionError(f"ended without {fact}: {self._errors.read_text()}")

    def do(self, step: str) -> Any:
        self.tell(step)
        return self.hear(step)


def newest_staged(staging: Path) -> int:
    """The number of the last batch of which something was received."""
    return max((int(path.parts[-4][1:]) for path in staging.glob("*/b*/p*/*/seg-*")), default=-1)


@pytest.mark.nsqd_only("one run will do, and Spark is slow to start")
@pytest.mark.full("a cluster whose executors are killed")
def test_archive_sql_and_replay_run_on_a_cluster_and_lose_nothing_with_its_executors(
    make_nsqd: MakeNsqd, nsqtools_cli: Cli, topic: str, tmp_path: Path
) -> None:
    needs_spark("clusters of Spark")
    nsqd = make_nsqd("-msg-timeout=2s")
    bodies = Counter(numbered(MESSAGES))
    publish(nsqd, topic, bodies)
    staging = tmp_path / "staging"
    size = {"maxMessagesPerTrigger": "10000", "connectionsPerNsqd": "2"}
    (folder := tmp_path / "elsewhere").mkdir()
    given = {
        "source": source(nsqd, topic, staging) | size,
        "nsqd": str(nsqd.tcp),
        **{name: str(tmp_path / name) for name in ("output", "checkpoint")},
        "staging": str(tmp_path / "replay"),
        **{f"{job}_to": f"{topic}.{job}" for job in ("sql", "replay")},
    }
    with Cluster(tmp_path / "spark") as cluster, Driver(folder, cluster, given) as driver:
        assert driver.do("imports") == ["No module named 'nsqtools'"]
        assert driver.do("shipping") is None
        for path in driver.do("imports"):
            assert Path(path).is_relative_to(cluster.folder)
            assert ".zip/nsqtools/" in path
        assert "lacks snappy" in driver.do("lacking")["error"]

        driver.tell("archiving")
        for _ in range(2):
            done = driver.hear("batch")
            eventually(lambda: newest_staged(staging) > done, START)  # noqa: B023 - called here
            cluster.kill_executor()
        received = driver.hear("archiving")
        while not drained(nsqd, topic, "c"):
            eventually(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)
            received += driver.do("archiving")
        assert received == MESSAGES
        assert Counter(row["body"] for row in rows(tmp_path / "output")) == bodies

        driver.tell("publishing")
        eventually(lambda: nsqd.topic(f"{topic}.sql")["message_count"], START)
        cluster.kill_executor()
        assert driver.hear("publishing") is None
        assert driver.do("replaying") == MESSAGES
    assert set(Taken(nsqtools_cli, nsqd, f"{topic}.sql")()) == set(bodies)  # at least once
    assert Counter(Taken(nsqtools_cli, nsqd, f"{topic}.replay")()) == bodies
