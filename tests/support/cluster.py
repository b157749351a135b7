"""A standalone cluster of Spark on loopback, from nothing but the pip package.

Its executors have a Python of their own in which pyarrow is installed and nsqtools is not, so that
what runs there has come from the driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.eventually import eventually
from tests.support.servers import free_port
from tests.support.spark import QUICK_JVM, START
from tests.support.trees import descendants, signal_process

if TYPE_CHECKING:
    from collections.abc import Iterator

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
