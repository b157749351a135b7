"""What goes to executors and registers in a session, and what is said when something is amiss.

That it works on a cluster is shown on a real one, in ``test_cluster``.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from nsqtools import __version__
from nsqtools.errors import ConfigError
from nsqtools.spark import register
from nsqtools.spark.executors import check_executors, make_zip, packages_of, readers_of, ship
from nsqtools.spark.lake.dataframes import frame
from nsqtools.spark.lake.inputs import find
from tests.support.lakes import RAW, sent, to_file
from tests.support.spark import PLUGIN, needs_spark

PYTHON = "/opt/python/bin/python"


def cluster(answer: Callable[[], list[Any]]) -> Any:
    """A session whose executors answer as they are told."""
    job = SimpleNamespace(mapPartitions=lambda _: SimpleNamespace(collect=answer))
    context = SimpleNamespace(
        master="spark://h:7077",
        defaultParallelism=2,
        pythonExec=PYTHON,
        parallelize=lambda _, count: job,
    )
    return SimpleNamespace(sparkContext=context)


def test_the_zip_has_what_executors_import_and_not_the_command_line(tmp_path: Path) -> None:
    made = make_zip(tmp_path / "nsqtools.zip")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    assert all(name.startswith("nsqtools/") and name.endswith(".py") for name in names)
    assert not [name for name in names if name.split("/")[1] in ("cli", "sandbox")]
    script = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules.update(httpx=None, click=None, rich=None)
import nsqtools.spark.source.sink, nsqtools.spark.source.source
print(nsqtools.spark.source.source.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(made)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{made}/nsqtools/spark/source/source.py\n", "")


def test_a_local_master_needs_no_zip_and_no_check(spark: SparkSession) -> None:
    files = spark.sparkContext.listFiles
    ship(spark)
    check_executors(spark, ["a_package_that_there_is_not"])
    assert spark.sparkContext.listFiles == files


@pytest.mark.parametrize(
    ("packages", "version", "culprit"),
    [
        (["pyarrow"], __version__, f"h2 .*pyarrow.*{PYTHON} -m pip install pyarrow"),
        (["pyarrow", "snappy"], __version__, f"h2 .*{PYTHON} .*install pyarrow python-snappy"),
        ([], "0.0.1", r"h2 .*0\.0\.1"),
    ],
)
def test_an_executor_that_lacks_something_is_named(
    tmp_path: Path, packages: list[str], version: str, culprit: str
) -> None:
    """Also before archives are read."""
    well: tuple[Any, ...] = ("h1", PYTHON, [], __version__)
    check_executors(cluster(lambda: [well, ("h2", PYTHON, [], __version__)]))
    lacking = cluster(lambda: [well, ("h2", PYTHON, packages, version)])
    to_file(tmp_path / "x.log.zst", sent(b"a"), RAW)
    for use in (check_executors, lambda given: frame(given, find([str(tmp_path)], RAW))):
        with pytest.raises(ConfigError, match=culprit):
            use(lacking)


def test_executors_need_clients_of_object_stores_and_what_unpacks_archives() -> None:
    for place in ("s3a://bucket/lake", "S3://bucket", "gs://b/x", "abfss://c@a.windows.net/x"):
        assert packages_of(places=["/data/lake", place]) == ["pyarrow", "opendal"]
        assert readers_of(["/data/x.log", f"{place}/x.log"]) == ["opendal"]
    others = ["", "lake", "/data/lake", "file:///data/lake", "hdfs://name/lake", "viewfs://c/lake"]
    assert packages_of({"nsq.snappy": "true"}, places=others) == ["pyarrow", "snappy"]
    assert readers_of([*others, "/a/x.log.gz", "/b.zst/y"]) == []
    zstd = "backports.zstd" if sys.version_info < (3, 14) else "compression.zstd"
    assert readers_of(["/a/x.log.gz", "/a/x.log.zst", "/b/z.zst"]) == [zstd]


FAILURE = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.2 executor 0): "
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n    check_python_version(infile)\n'
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python "
            "in worker has different version: 3.9 than that in driver: 3.11, PySpark cannot run\n",
            "3.9",
        ),
        (
            f'java.io.IOException: Cannot run program "{PYTHON}": Exec failed, error: 2 (No such '
            "file or directory)\n\tat java.base/java.lang.ProcessBuilder.start(Unknown Source)",
            PYTHON,
        ),
        ("java.io.IOException: disk is full\n\tat x.y", "disk is full"),
    ],
)
def test_an_interpreter_that_cannot_run_is_one_clear_line(text: str, told: str) -> None:
    def fail() -> list[Any]:
        raise RuntimeError(FAILURE + text)

    with pytest.raises(ConfigError) as caught:
        check_executors(cluster(fail))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_session_that_starts_tasks_twice_is_refused() -> None:
    needs_spark("which sessions are refused")  # Java is asked for first
    conf: Any = {"spark.speculation": "TRUE"}
    twice: Any = SimpleNamespace(conf=conf, sparkContext=None)
    with pytest.raises(ConfigError, match=r"spark\.speculation"):
        register(twice)


def test_workers_of_this_machine_run_in_the_python_that_registers_unless_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "/no/such/python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "/asked/for")
    register(spark)
    assert context.pythonExec == "/no/such/python3"
    monkeypatch.delenv("PYSPARK_PYTHON")
    register(spark)
    assert context.pythonExec == sys.executable


def test_the_format_is_known_without_what_it_needs(tmp_path: Path) -> None:
    """Spark imports the module in every session, also of somebody who has no use for it."""
    script = """
import importlib.util, sys, time
for name in ("pyarrow", "opendal"):
    sys.modules[name] = None
import pyspark.sql.datasource, pyspark.sql.types
before = set(sys.modules)
spec = importlib.util.spec_from_file_location("pyspark_nsq", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.DefaultSource.name() == "nsq"
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, PLUGIN], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    loaded = set(done.stdout.split())
    assert "nsqtools.spark.source.datasource" in loaded
    assert not {"asyncio", "nsqtools.config", "nsqtools.engine", "nsqtools.net"} & loaded
