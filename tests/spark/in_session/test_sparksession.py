"""A session of Spark: what it needs, what it says where, and its errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import AuthError, ConfigError, NSQError
from nsqtools.spark import sparksession
from nsqtools.spark.sparksession import explain, first_line, is_local, open_session, require_spark
from tests.support.spark import java_options, needs_spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


def refused_with(culprit: str) -> str:
    """What is said of this culprit."""
    with pytest.raises(ConfigError, match=culprit) as caught:
        require_spark()
    return str(caught.value)


@pytest.mark.parametrize("absent", [("pyspark",), ("pyspark", "pyarrow")])
def test_a_missing_package_names_the_command_that_installs_it(
    absent: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sparksession, "find_spec", lambda name: None if name in absent else object()
    )
    assert f"{sys.executable} -m pip install" in refused_with(" and ".join(absent))


def test_a_missing_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused_with("Java 17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    refused_with(f"JAVA_HOME {tmp_path}/java")


@pytest.fixture
def install_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a Java of this version that of JAVA_HOME."""

    def install(version: str) -> None:
        (tmp_path / "java/bin").mkdir(parents=True)
        (tmp_path / "java/bin/java").touch(0o755)
        (tmp_path / "java/release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return install


@pytest.mark.parametrize(("version", "number"), [("11.0.2", "11"), ("1.8.0_392", "8")])
def test_a_java_that_is_too_old_is_named(
    install_java: Callable[[str], None], version: str, number: str
) -> None:
    install_java(version)
    refused_with(rf"bin/java is Java {number}: ")


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_new_enough_will_do(
    install_java: Callable[[str], None], version: str
) -> None:
    install_java(version)
    require_spark()


def test_a_spark_home_of_another_version_is_named(
    install_java: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java("17")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    refused_with(r"SPARK_HOME .* 3\.5\.1")


def test_a_local_master_is_told_from_a_cluster() -> None:
    assert all(map(is_local, ("local", "local[*]", "local[2,4]")))
    assert not any(map(is_local, ("local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn")))


WORKER_ERROR = """
[STREAM_FAILED] Query [id = 5d1e, runId = 77a0] terminated with exception: Job aborted due to \
stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage \
0.0 (TID 3) (10.0.0.1 executor 1): org.apache.spark.api.python.PythonException: Traceback (most \
recent call last):
  File "/opt/pyspark/worker.py", line 2000, in main
    process()
nsqtools.errors.ConnectError: 10.0.0.1:4150: refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/nsqtools/spark/source.py", line 100, in read
    raise AuthError(text)
{error}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        ("nsqtools.errors.ConfigError: channel 'a b'", ConfigError, "channel 'a b'"),
        ("nsqtools.errors.AuthError: h:1: E_AUTH", AuthError, "h:1: E_AUTH"),
        ("nsqtools.errors.PublishError: not taken", NSQError, "not taken"),
        ("nsqtools.errors.LaterError: of another version", NSQError, "of another version"),
        ("nsqtools.spark.sparksession.re: no error at all", NSQError, "no error at all"),
    ],
)
def test_an_error_of_ours_comes_back_from_a_worker_as_it_was(
    error: str, kind: type[NSQError], line: str
) -> None:
    found = explain(RuntimeError(WORKER_ERROR.strip().format(error=error)))
    assert (type(found), str(found)) == (kind, line)
    assert explain(found) is found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: disk is full", "disk is full"),
        (
            "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent "
            "failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): "
            "java.io.IOException: gone\n\tat x.y",
            "java.io.IOException: gone",
        ),
        (
            "Failed when Python streaming data source perform planPartitions: Traceback (most "
            'recent call last):\n  File "x.py", line 1, in f\n    g()\nOSError: disk is full\n',
            "OSError: disk is full",
        ),
        ("[A] A column `usr`. SQLSTATE: 42703; line 1 pos 0;\n'Filter", "[A] A column `usr`."),
        ("[B] Syntax at 'x'. SQLSTATE: 42601 (line 3, pos 6)", "[B] Syntax at 'x'. (line 3)"),
        ("[C] Division by zero. SQLSTATE: 22012", "[C] Division by zero."),
        (
            "An error occurred while calling o92.save.\n: java.io.IOException: No space left\n"
            "\tat java.base/java.io.FileOutputStream.writeBytes(FileOutputStream.java:352)\n"
            "\tat org.apache.hadoop.fs.RawLocalFileSystem.write(RawLocalFileSystem.java:1)",
            "No space left",
        ),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_is_its_first_line(text: str, line: str) -> None:
    assert first_line(RuntimeError(text)) == line


PLANNER_DIED = """
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = 5d1e, runId = \
77a0] terminated with exception:  SQLSTATE: XXKST (no cause message)
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.run(StreamExecution.scala:236)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.latestOffset(P.s:2)
"""

DAEMON_DIED = """
An error occurred while calling o92.load.
: java.io.IOException: Stream closed
\tat java.base/java.lang.ProcessBuilder$NullOutputStream.write(ProcessBuilder.java:445)
\tat org.apache.spark.api.python.PythonWorkerFactory.stopWorker(PythonWorkerFactory.scala:523)
"""

WORKER_DIED = """
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost \
task 0.3 in stage 0.0 (TID 3) (10.0.0.1 executor 1): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed)
"""


class CapturedError(Exception):
    """As pyspark's: what it says is the first line of what Java has."""

    _stackTrace = PLANNER_DIED  # noqa: N815 - as pyspark calls it

    def __str__(self) -> str:
        return "[STREAM_FAILED] Query [id = 5d1e] terminated with exception:  SQLSTATE: X"


@pytest.mark.parametrize(
    "error", [CapturedError(), RuntimeError(DAEMON_DIED), RuntimeError(WORKER_DIED)]
)
def test_python_workers_that_died_are_told_as_such(error: Exception) -> None:
    assert "Python worker" in first_line(error)


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
import json, os, signal, sys
from nsqtools.spark.sparksession import explain, open_session, first_line
signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        found["ignores"] = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        found["master"] = context.master
        found["jvm"] = context._gateway.proc.pid
        found["leads"] = os.getpgid(found["jvm"]) == os.getsid(found["jvm"]) == found["jvm"]
        found["python"] = context.parallelize([0], 1).map(lambda _: sys.executable).first()
        try:
            spark.sql("select * from nowhere")
        except Exception as error:
            found["error"] = first_line(error)
        os.kill(found["jvm"], signal.SIGKILL)
        try:
            spark.range(1).count()
        except Exception as error:
            found["dead"] = first_line(error)
            raise explain(error)
except Exception as error:
    found["named"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.full("sessions that are refused, end, and whose Java process dies")
def test_a_session_keeps_its_noise_in_its_log_and_leaves_nothing_behind(tmp_path: Path) -> None:
    needs_spark("sessions of Spark")
    log = tmp_path / "spark.log"
    command = [sys.executable, "-c", SESSION, str(log), java_options()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(found.pop("jvm"), 0)
    assert found.pop("error").startswith("[TABLE_OR_VIEW_NOT_FOUND]")
    refused = found.pop("refused")
    assert refused.startswith("ConfigError: ")
    assert str(log) in refused
    assert "--spark-log" in found.pop("dead")
    assert str(log) in found.pop("named")
    assert found == {
        "restored": True,
        "ignores": True,
        "leads": True,
        "master": "local[2,4]",
        "python": sys.executable,
    }
    assert "WARN" in log.read_text()
