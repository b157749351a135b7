"""What tests of Spark need besides Spark itself, and what becomes of them where it is missing."""

import fcntl
import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

import nsqtools
from tests.support import binaries

PACKAGES = ("pyspark", "pyarrow")

PLUGIN = Path(nsqtools.__file__).with_name("spark") / "pyspark_nsq.py"
"""What the wheel has at its top level."""

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of Java for JVMs that live for seconds: they start in three quarters of the time."""

START = 400.0
"""Seconds that Spark may take to begin on a busy machine."""

SHARED = "NSQTOOLS_TEST_JAVA"
"""The variable with a directory that all processes of a run share that starts many JVMs."""

_RECORD = """
import sys
from pathlib import Path
from nsqtools.spark.sparksession import open_session
folder, options = Path(sys.argv[1]), sys.argv[2]
def write(frame, number):
    frame.write.partitionBy("value").mode("overwrite").parquet(f"{folder}/out")
with open_session("local[2]", {"spark.driver.extraJavaOptions": options}) as spark:
    spark.range(9).selectExpr("string(id) AS value").write.text(f"{folder}/in")
    lines = spark.readStream.schema("value string").text(f"{folder}/in")
    lines.writeStream.trigger(availableNow=True).foreachBatch(write).start().awaitTermination()
"""


@functools.cache
def java_options() -> str:
    """Java options for quick starts; under --full also a class archive shared by all JVMs."""
    if SHARED not in os.environ:
        return QUICK_JVM
    folder = Path(os.environ[SHARED])
    archive = folder / "spark.jsa"
    quiet = f"{QUICK_JVM} -Xshare:auto -Xlog:disable"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            record = f"{quiet} -XX:ArchiveClassesAtExit={archive}"
            command = [sys.executable, "-c", _RECORD, str(folder), record]
            subprocess.run(command, cwd=folder, capture_output=True, check=False)
        return f"{quiet} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK_JVM


def needs_spark(tests: str) -> None:
    """Return where pyspark, pyarrow and Java are, or else the test ends here."""
    for package in PACKAGES:
        if find_spec(package) is None:
            binaries.give_up(package, tests, f"no package {package}", "TOOLS")
    binaries.needs("java", tests)


def needs_artifact(artifact: str, tests: str) -> None:
    """Return where Spark has GROUP:NAME:VERSION or can download it, or else the test ends here.

    It downloads artifacts from Maven Central, and keeps them.
    """
    group, name, version = artifact.split(":")
    if not any(Path.home().glob(f".ivy2*/jars/{group}_{name}-{version}.jar")):
        try:
            httpx.head("https://repo1.maven.org/maven2/", timeout=20)
        except httpx.HTTPError:
            binaries.give_up(name, tests, "Maven Central cannot be reached", "TOOLS")


def submit() -> list[str | Path]:
    """The command spark-submit of the pip package, which wants to know where that is."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    return ["env", f"SPARK_HOME={home}", home / "bin" / "spark-submit"]


def with_plugin(folder: Path) -> dict[str, str]:
    """The environment of a Python in which nsqtools is installed from its wheel."""
    folder.mkdir()
    (folder / PLUGIN.name).symlink_to(PLUGIN)
    own = {"PYTHONPATH": str(folder), "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **own, "SPARK_LOCAL_IP": "127.0.0.1"}


class SparkModule(pytest.Module):
    """A file of tests that is skipped, or fails, whole where a package of Spark is missing."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error.__cause__
            package = ((getattr(cause, "name", None) or "").split("."))[0]
            if isinstance(cause, ModuleNotFoundError) and package in PACKAGES:
                binaries.give_up(package, self.path.name, f"no package {package}", "TOOLS")
            raise
