"""A session of Spark: what it needs, what it says where, and its errors in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsqtools.errors import ConfigError
from nsqtools.spark import requirements
from nsqtools.spark.requirements import require_spark
from nsqtools.spark.sparksession import first_line, open_session
from tests.support.spark import java_options, needs_spark


def test_what_is_missing_or_of_a_wrong_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused_with(culprit: str) -> str:
        with pytest.raises(ConfigError, match=culprit) as caught:
            require_spark()
        return str(caught.value)

    for absent in (("pyspark",), ("pyspark", "pyarrow")):
        with monkeypatch.context() as patch:
            there = dict.fromkeys({"pyspark", "pyarrow"}.difference(absent), "a spec")
            patch.setattr(requirements, "find_spec", there.get)
            assert f"{sys.executable} -m pip install" in refused_with(" and ".join(absent))
    for name in ("JAVA_HOME", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        refused_with("Java 17")
    java = tmp_path / "java"
    monkeypatch.setenv("JAVA_HOME", str(java))
    refused_with(f"JAVA_HOME {java}")
    (java / "bin").mkdir(parents=True)
    (java / "bin/java").touch(0o755)
    versions = {"11.0.2": "11", "1.8.0_392": "8", "17.0.15": "", "21": "", "25-ea": ""}
    for version, too_old in versions.items():
        (java / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        if too_old:
            refused_with(rf"bin/java is Java {too_old}: ")
        else:
            require_spark()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    refused_with(r"SPARK_HOME .* 3\.5\.1")


def test_errors_of_a_real_session_are_one_line(spark: SparkSession) -> None:
    def fail(number: int) -> int:
        raise ValueError("no such thing")

    def told(work: Callable[[], object]) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the kind is Spark's affair
            work()
        return first_line(caught.value)

    for query, kind in (
        ("select * from nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
        ("selec 1", "PARSE_SYNTAX_ERROR"),
        ("select 1 / (id - 1) from range(3)", "DIVIDE_BY_ZERO"),
    ):
        assert told(lambda query=query: spark.sql(query).collect()).startswith(f"[{kind}] ")  # type: ignore[misc]
    task = spark.sparkContext.parallelize([1], 1).map(fail)
    assert told(task.collect) == "ValueError: no such thing"


def test_a_second_session_in_a_process_is_refused_and_harms_the_first_one_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = str(tmp_path / "absent" / "spark.log")
    for culprit, file in (("session", None), (log, log)):
        with pytest.raises(ConfigError, match=culprit), open_session("local", {}, log_file=file):
            pass
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


SESSION = """
import json, os, signal, sys, threading
from nsqtools.spark.interrupts import interruptible
from nsqtools.spark.sparksession import explain, open_session, first_line
names = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"
before = [os.environ.get(name) for name in names]
found = {}
conf = {"spark.driver.extraJavaOptions": sys.argv[2]}
try:
    with open_session("local[2]", {**conf, "spark.driver.memory": "1x"}, log_file=sys.argv[1]):
        pass
except Exception as error:
    found["refused"] = f"{type(error).__name__}: {error}"
try:
    with open_session("local[2]", conf, log_file=sys.argv[1]) as spark:
        context = spark.sparkContext
        found["restored"] = [os.environ.get(name) for name in names] == before
        found["jvm"] = context._gateway.proc.pid
        found["leads"] = os.getpgid(found["jvm"]) == os.getsid(found["jvm"]) == found["jvm"]
        os.kill(found["jvm"], signal.SIGKILL)
        try:
            spark.range(1).count()
        except Exception as error:
            found["dead"] = first_line(error)
            raise explain(error)
except Exception as error:
    found["named"] = str(error)
small = {**conf, "spark.driver.memory": "480m"}  # Spark refuses less than 472 MB
repeated = "length(concat(repeat('x', 300000000 + id), repeat('y', 300000000)))"
for name, work in (
    ("heap", lambda spark: spark.range(2).selectExpr(repeated).collect()),
    ("exit", lambda spark: spark._jvm.java.lang.System.exit(52)),  # as Spark does
):
    try:
        with open_session("local[1]", small, log_file=sys.argv[1]) as spark:
            with interruptible(spark, threading.Event()):
                work(spark)
    except Exception as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.full("sessions that are refused, end, and whose Java process dies or is out of memory")
def test_a_session_keeps_its_noise_in_its_log_and_leaves_nothing_behind(tmp_path: Path) -> None:
    needs_spark("sessions of Spark")
    log = tmp_path / "spark.log"
    command = [sys.executable, "-c", SESSION, str(log), java_options()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(found.pop("jvm"), 0)
    assert found["refused"].startswith("ConfigError: ")
    assert "--spark-log" in found.pop("dead")
    for name in ("refused", "named"):
        assert str(log) in found.pop(name)
    for name in ("heap", "exit"):
        assert "spark.driver.memory" in found.pop(name)
    assert found == {"restored": True, "leads": True}
    assert "WARN" in log.read_text()
