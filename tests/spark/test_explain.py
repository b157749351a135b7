"""What is said of an error of Spark, in one line."""

import re

import pytest

from nsqtools.errors import AuthError, ConfigError, NSQError
from nsqtools.spark.sparksession import explain, first_line

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


LOST = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 1.0 (TID 9) "
)
EXITED = (
    f"{LOST}(n7 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the running "
    "tasks) Reason: "
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("calling o1.x.\n: java.lang.OutOfMemoryError: Java heap space", {"driver.memory"}),
        (
            f"{LOST}(h executor driver): java.lang.OutOfMemoryError: Java heap space\n\tat x.y",
            {"driver.memory"},
        ),
        (
            f"{LOST}(10.0.0.1 executor 1): java.lang.OutOfMemoryError: GC overhead limit\n",
            {"executor.memory"},
        ),
        (f"{EXITED}Command exited with code 52\nDriver stacktrace:", {"executor.memory"}),
        (f"{EXITED}Command exited with code 137\nDriver stacktrace:", {"executor.memoryOverhead"}),
        (
            f"{EXITED}Container killed by YARN for exceeding physical memory limits. 1.5 GB of 1.5 "
            "GB physical memory used.",
            {"executor.memoryOverhead"},
        ),
        (
            f"{EXITED}\nThe executor with id 3 exited with exit code 137(SIGKILL, possible "
            "container OOM).",
            {"executor.memoryOverhead"},
        ),
        ("java.lang.OutOfMemoryError: unable to create native thread", set()),
    ],
)
def test_a_lack_of_memory_names_the_property_that_gives_more(text: str, wanted: set[str]) -> None:
    line = first_line(RuntimeError(text))
    assert {name.removeprefix("spark.") for name in re.findall(r"spark\.[\w.]*\w", line)} == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "An error occurred while calling o42.parquet.\n: java.lang.RuntimeException: "
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not "
            "found",
            r"org\.apache\.hadoop:hadoop-aws:\d+\.\d+\.\d+,",
        ),
        ('No FileSystem for scheme "oss"', r"\boss\b.*spark\.jars\.packages"),
    ],
)
def test_a_file_system_that_spark_lacks_names_the_property_that_brings_it(
    text: str, wanted: str
) -> None:
    found = explain(RuntimeError(text))
    assert isinstance(found, ConfigError)
    assert re.search(wanted, str(found))


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
