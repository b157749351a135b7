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
from tests.support.servers import drained, empty
from tests.support.spark import needs_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

MESSAGES = 40_000
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs_spark("clusters of Spark")
    with Cluster(tmp_path_factory.mktemp("cluster") / "spark") as running:
        yield running


class Driver:
    """A process of ``cluster_driver``; a context manager."""

    def __init__(self, folder: Path, cluster: Cluster, **given: Any) -> None:
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


def bodies_of(cli: Cli, nsqd: Nsqd, topic: str) -> Counter[bytes]:
    tailed = cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
    return Counter(tailed.stdout.split())


def newest_staged(staging: Path) -> int:
    """The number of the last batch of which something was received."""
    return max((int(path.parts[-4][1:]) for path in staging.glob("*/b*/p*/*/seg-*")), default=-1)


@pytest.mark.nsqd_only("one run will do, and Spark is slow to start")
def test_archive_sql_and_replay_run_on_a_cluster_and_lose_nothing_with_its_executors(
    cluster: Cluster, make_nsqd: MakeNsqd, nsqtools_cli: Cli, topic: str, tmp_path: Path
) -> None:
    import pyarrow.dataset as ds

    nsqd = make_nsqd("-msg-timeout=2s")
    bodies = Counter(b"%d" % number for number in range(MESSAGES))
    nsqd.create(topic, "lake")
    nsqd.publish(topic, bodies)
    staging = tmp_path / "staging"
    source = {
        "nsqd.tcp.addresses": f"{nsqd.tcp}/{nsqd.http.port}",
        "subscribe": topic,
        "channel": "lake",
        "stagingLocation": str(staging),
        "maxMessagesPerTrigger": "10000",
        "connectionsPerNsqd": "2",
    }
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with Driver(
        folder,
        cluster,
        source=source,
        nsqd=str(nsqd.tcp),
        output=str(tmp_path / "output"),
        checkpoint=str(tmp_path / "checkpoint"),
        staging=str(tmp_path / "replay"),
        sql_to=f"{topic}.sql",
        replay_to=f"{topic}.replay",
    ) as driver:
        assert driver.do("imports") == ["No module named 'nsqtools'"]
        assert driver.do("shipping") is None
        for path in driver.do("imports"):
            assert Path(path).is_relative_to(cluster.folder)
            assert ".zip/nsqtools/" in path
        assert "lacks snappy: run " in driver.do("lacking")["error"]

        driver.tell("archiving")
        for _ in range(2):
            done = driver.hear("batch")
            eventually(lambda: newest_staged(staging) > done, PATIENCE)  # noqa: B023 - called here
            cluster.kill_executor()
        received = driver.hear("archiving")
        while not drained(nsqd, topic, "lake"):
            eventually(lambda: nsqd.channel(topic, "lake")["in_flight_count"] == 0)
            received += driver.do("archiving")
        assert received == MESSAGES
        table = ds.dataset(tmp_path / "output", partitioning="hive").to_table(["body"])
        assert Counter(table["body"].to_pylist()) == bodies

        driver.tell("publishing")
        eventually(lambda: nsqd.topic(f"{topic}.sql")["message_count"], PATIENCE)
        cluster.kill_executor()
        assert driver.hear("publishing") is None
        assert driver.do("replaying") == MESSAGES
    at_least_once = bodies_of(nsqtools_cli, nsqd, f"{topic}.sql")
    assert set(at_least_once) == set(bodies)
    assert bodies_of(nsqtools_cli, nsqd, f"{topic}.replay") == bodies
