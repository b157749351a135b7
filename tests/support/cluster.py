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
from tests.support.spark import QUICK_JVM

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2
START_TIMEOUT = 60.0

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

    def conf(self) -> dict[str, str]:
        """What a driver sets for executors that fit on the workers and start quickly."""
        return {
            "spark.pyspark.python": str(self.python),
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.sql.shuffle.partitions": "4",
            "spark.task.maxFailures": "8",
        }

    def executors(self) -> list[int]:
        """The processes of the executors that run now."""
        return [
            pid
            for worker in self._processes[1:]
            for pid in _children(worker.pid)
            if b"CoarseGrainedExecutorBackend" in _command(pid)
        ]

    def kill_executor(self) -> None:
        """SIGKILL an executor, once there is one, and the Python processes that it has."""
        victim, *_ = eventually(self.executors, START_TIMEOUT)
        for pid in (victim, *_descendants(victim)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{main}",
                    *("--host", "127.0.0.1", "--webui-port", str(free_port())),
                    *options,
                ],
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
        eventually(lambda: words in log.read_text(), START_TIMEOUT)


def _home_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _children(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(each.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(each.parent.name))
    return found


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
