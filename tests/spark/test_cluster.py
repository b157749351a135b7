"""The pipeline on a real cluster: the package comes with the driver, and executors get killed."""

import os
import signal
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq
import pytest

import nsqtools
from nsqtools.cli.docs import sections
from tests.support.eventually import eventually
from tests.support.examples import shown
from tests.support.process import Cli
from tests.support.replays import Taken
from tests.support.servers import MakeNsqd, at, drained, free_port
from tests.support.spark import QUICK_JVM, START, needs_spark, submit, with_plugin
from tests.support.streaming import numbered, publish, rows
from tests.support.trees import descendants, signal_process

WORKERS = 2

_PYTHON = """#!/bin/sh
[ -n "$OF_A_WORKER" ] && exec {isolated} "$@"
exec {own} "$@"
"""


class Cluster:
    """One master and two workers of a core each; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.python = folder / "python"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self._make_python()
        try:
            port = self.master.rpartition(":")[2]
            self._start("master", "master.Master", "--port", port)
            self._wait_for("master", "I have been elected leader")
            for number in range(WORKERS):
                work = str(self.folder / f"work-{number}")
                options = ("--cores", "1", "--memory", "1g", "--work-dir", work, self.master)
                self._start(f"worker-{number}", "worker.Worker", *options)
            for number in range(WORKERS):
                self._wait_for(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def options(self, python: str = "") -> Iterator[str]:
        """Of a command, or of spark-submit, whose executors fit on the workers and start quickly.

        They run the isolated Python, or ``python``.
        """
        yield from ("--master", self.master)
        for given in (
            f"spark.pyspark.python={python or self.python}",
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={QUICK_JVM}",
            f"spark.driver.extraJavaOptions={QUICK_JVM}",
            "spark.sql.shuffle.partitions=4",
            "spark.task.maxFailures=8",
        ):
            yield from ("--conf", given)

    def kill_executor(self) -> None:
        """SIGKILL an executor, once there is one, and the Python processes that it has."""

        def executors() -> list[int]:
            below = [pid for worker in self._processes[1:] for pid in descendants(worker.pid)]
            return [pid for pid in below if b"ExecutorBackend" in _command(pid)]

        victim, *_ = eventually(executors, START)
        for pid in (victim, *descendants(victim)):
            signal_process(pid, signal.SIGKILL)

    def _make_python(self) -> None:
        """An interpreter that is the driver's there and an isolated one under a worker."""
        isolated = self.folder / "isolated"
        venv.create(isolated, symlinks=True)
        (site,) = isolated.glob("lib/python*/site-packages")
        (site / "pyarrow").symlink_to(_home_of("pyarrow"))
        own = _PYTHON.format(isolated=isolated / "bin" / "python", own=sys.executable)
        self.python.write_text(own)
        self.python.chmod(0o755)

    def _start(self, name: str, main: str, *options: str) -> None:
        home = _home_of("pyspark")
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME") if key in os.environ}
        where = ("--host", "127.0.0.1", "--webui-port", str(free_port()))
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [home / "bin/spark-class", f"org.apache.spark.deploy.{main}", *where, *options],
                env={
                    **kept,
                    "OF_A_WORKER": "1",
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": str(self.folder / "local"),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} -Dspark.master.rest.enabled=false",
                },
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def _wait_for(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        eventually(lambda: words in log.read_text(), START)


def _home_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


MESSAGES = 12_000


@pytest.mark.full("a cluster whose executors are killed")
@pytest.mark.timeout(900)
def test_archive_sql_and_replay_run_on_a_cluster_and_lose_nothing_with_its_executors(
    make_nsqd: MakeNsqd, nsqtools_cli: Cli, topic: str, tmp_path: Path
) -> None:
    # size: one cluster, which takes long to start, serves all
    needs_spark("clusters of Spark")
    nsqd = make_nsqd("-msg-timeout=2s")
    bodies = Counter(numbered(MESSAGES))
    publish(nsqd, topic, bodies)
    log, lake = tmp_path / "log", tmp_path / "lake"

    def start(*command: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as stderr:
            given = ("pipeline", *command, *at(nsqd), *cluster.options())
            return nsqtools_cli.start(*given, stderr=stderr)

    def end(process: subprocess.Popen[bytes], code: int = 0) -> str:
        assert process.wait(START) == code, log.read_text()
        return log.read_text()

    def newest_staged() -> int:
        """The number of the last batch of which something was received."""
        found = lake.glob("_nsqtools/staging/*/b*/p*/[0-9]*")
        claimed = {path.parts[-3] for path in found if int(path.name)}
        return max((int(name[1:]) for name in claimed), default=-1)

    with Cluster(tmp_path / "spark") as cluster:
        subscribed = ("--topic", topic, "--channel", "c", "--nsqd-http-address", str(nsqd.http))
        service = ("--continuous", "--trigger", "0s", "--max-per-trigger", "3000")
        archive = start("archive", *subscribed, *service, "--output", str(lake))
        for batch in (1, 3):
            eventually(lambda: newest_staged() >= batch, START)  # noqa: B023 - called here
            cluster.kill_executor()
        eventually(lambda: drained(nsqd, topic, "c"), START)
        os.kill(archive.pid, signal.SIGTERM)
        assert "Traceback" not in end(archive)
        assert Counter(row["body"] for row in rows(lake)) == bodies

        query = "select body from nsq distribute by message_id"
        sql = ("sql", "--input", str(lake), "--query", query, "--destination-topic", f"{topic}.sql")
        assert "lacks snappy" in end(start(*sql, "--snappy"), code=2)
        publishing = start(*sql)
        eventually(lambda: nsqd.topic(f"{topic}.sql")["message_count"], START)
        cluster.kill_executor()
        end(publishing)
        assert set(Taken(nsqtools_cli, nsqd, f"{topic}.sql")()) == set(bodies)  # at least once

        chosen = ("--where", "attempts > 0")
        replay = ("replay", "--input", str(lake), "--topic", f"{topic}.replay", *chosen)
        program = Path(nsqtools.__file__).with_name("__main__.py")
        submitted = [*submit(), *cluster.options(), program, "pipeline", *replay, *at(nsqd)]
        assert run(submitted, tmp_path, os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}) == 0
        assert Counter(Taken(nsqtools_cli, nsqd, f"{topic}.replay")()) == bodies

        nsqd.create(topic, "program")
        nsqd.publish(topic, [b"one", b"two"])
        blocks = shown(sections("spark", "guides")["PySpark"])
        (text,) = [block for block in blocks if "readStream" in block]
        source = f'"nsqd.tcp.addresses", "{nsqd.tcp}/{nsqd.http.port}"'
        for written, real in (
            ('"nsqlookupd.http.addresses", "lookup1:4161"', source),
            ('"lake")', '"program")'),
            ('"events")', f'"{topic}")'),
            ("/nfs/lake", str(tmp_path)),
        ):
            assert written in text
            text = text.replace(written, real)
        (tmp_path / "program.py").write_text(text)
        submitted = [*submit(), *cluster.options(sys.executable), "program.py"]
        assert run(submitted, tmp_path, with_plugin(tmp_path / "site")) == 0
        found = pq.read_table(tmp_path / "events", columns=["body"])["body"].to_pylist()
        assert sorted(found) == ["one", "two"]


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> int:
    """Its exit code."""
    with (folder / "submitted").open("ab") as log:
        done = subprocess.run(
            command, cwd=folder, env=env, stdout=log, stderr=log, timeout=START, check=False
        )
    return done.returncode
