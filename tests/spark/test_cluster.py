"""The pipeline on a cluster: the package comes with the driver, and executors get killed."""

from __future__ import annotations

import os
import signal
import sys
import venv
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.replays import Taken
from tests.support.servers import at, drained
from tests.support.spark import QUICK_JVM, START, needs_spark
from tests.support.streaming import numbered, publish, rows
from tests.support.trees import descendants, signal_process

if TYPE_CHECKING:
    import subprocess

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

MESSAGES = 40_000

_PYTHON = """#!/bin/sh
[ -n "$OF_AN_EXECUTOR" ] && exec {isolated} "$@"
exec {own} "$@"
"""


class Cluster:
    """Commands with two executors of their own, as processes with a Python of their own.

    In that pyarrow is installed and nsqtools is not, so what runs there comes from the driver.
    """

    def __init__(self, cli: Cli, folder: Path) -> None:
        needs_spark("clusters of Spark")
        self._cli, self._folder = cli, folder
        self.log = folder / "log"
        isolated = folder / "isolated"
        venv.create(isolated, symlinks=True)
        (site,) = isolated.glob("lib/python*/site-packages")
        pyarrow = find_spec("pyarrow")
        assert pyarrow
        assert pyarrow.origin
        (site / "pyarrow").symlink_to(Path(pyarrow.origin).parent)
        python = folder / "python"
        python.write_text(_PYTHON.format(isolated=isolated / "bin/python", own=sys.executable))
        python.chmod(0o755)
        self._conf = {
            "spark.pyspark.python": str(python),
            "spark.executorEnv.OF_AN_EXECUTOR": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.sql.shuffle.partitions": "4",
            "spark.task.maxFailures": "8",
        }

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        given = [f"{name}={text}" for name, text in self._conf.items()]
        with self.log.open("wb") as log:
            return self._cli.start(
                *("pipeline", *command, "--master", "local-cluster[2,1,512]"),
                *(part for each in given for part in ("--conf", each)),
                env={"SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=self._folder,
                stderr=log,
            )

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        """What it says before it ends so."""
        assert process.wait(START) == code, self.log.read_text()
        return self.log.read_text()


def kill_executor(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL an executor, once there is one, and the Python processes that it has."""

    def executors() -> list[int]:
        found = [each for each in descendants(process.pid) if b"ExecutorBackend" in command(each)]
        return found[:1]

    (victim,) = eventually(executors, START)
    for pid in (victim, *descendants(victim)):
        signal_process(pid, signal.SIGKILL)


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.nsqd_only("one run will do, and Spark is slow to start")
@pytest.mark.full("a cluster whose executors are killed")
def test_archive_sql_and_replay_run_on_a_cluster_and_lose_nothing_with_its_executors(
    make_nsqd: MakeNsqd, nsqtools_cli: Cli, topic: str, tmp_path: Path
) -> None:
    nsqd = make_nsqd("-msg-timeout=2s")
    bodies = Counter(numbered(MESSAGES))
    publish(nsqd, topic, bodies)
    (folder := tmp_path / "elsewhere").mkdir()
    cluster = Cluster(nsqtools_cli, folder)
    subscribed = ("--topic", topic, "--channel", "c", "--nsqd-http-address", str(nsqd.http))

    service = ("--continuous", "--trigger", "0s", "--max-per-trigger", "10000")
    archive = cluster.start("archive", *subscribed, *at(nsqd), *service, "--output", "lake")

    def newest_staged() -> int:
        found = folder.glob("lake/_nsqtools/staging/*/b*/p*/*/seg-*")
        return max((int(path.parts[-4][1:]) for path in found), default=-1)

    for batch in (1, 3):
        eventually(lambda: newest_staged() >= batch, START)  # noqa: B023 - called here
        kill_executor(archive)
    eventually(lambda: drained(nsqd, topic, "c"), START)
    os.kill(archive.pid, signal.SIGTERM)
    assert "Traceback" not in cluster.end(archive)
    assert Counter(row["body"] for row in rows(folder / "lake")) == bodies

    query = ("sql", "--input", "lake", "--query", "select body from nsq distribute by message_id")
    into = ("--destination-topic", f"{topic}.sql", *at(nsqd))
    assert "snappy" in cluster.end(cluster.start(*query, *into, "--snappy"), code=2)
    sql = cluster.start(*query, *into)
    eventually(lambda: nsqd.topic(f"{topic}.sql")["message_count"], START)
    kill_executor(sql)
    cluster.end(sql)
    assert set(Taken(nsqtools_cli, nsqd, f"{topic}.sql")()) == set(bodies)  # at least once

    ordered = ("--where", "attempts > 0", "--order-by", "timestamp")
    replay = ("replay", "--input", "lake", "--topic", f"{topic}.replay", *at(nsqd), *ordered)
    cluster.end(cluster.start(*replay))
    assert Counter(Taken(nsqtools_cli, nsqd, f"{topic}.replay")()) == bodies
