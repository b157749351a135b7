"""Spark sessions: start and end, with the JVM's output in a log and errors in one line.

pyspark is imported inside functions, so that its absence causes an error with instructions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, NSQError
from nsqtools.spark.properties import is_local, on_loopback, properties
from nsqtools.spark.requirements import require_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_EXIT_TIMEOUT = 20.0
_NOISY = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextlib.contextmanager
def open_session(
    master: str,
    conf: Mapping[str, str],
    *,
    log_file: str | None = None,
    app_name: str = "nsqtools",
) -> Iterator[SparkSession]:
    """Start a JVM and a session; both end with the context.

    The stderr of the JVM and its Python workers is appended to ``log_file``, or discarded. ``conf``
    and what spark-submit gives override the defaults: UTC, timestamps in microseconds, Parquet in
    zstd, no web interface, no progress bars and, with a local master or one on loopback, no ports
    on other interfaces. A local master retries a failed task as often as a cluster does. Raises
    ConfigError if Spark or Java is missing, the log cannot be written, or the session cannot start.
    """
    require_spark()
    with _quiet_loggers(), contextlib.ExitStack() as stack:
        with _environment(master, conf):
            spark = _start(properties(master, conf), app_name, log_file, stack)
        gateway: Any = spark.sparkContext._gateway
        try:
            yield spark
        except JavaEndedError as error:
            if _exit_code(gateway) == _OUT_OF_MEMORY:
                raise NSQError(_NO_HEAP) from error
            if not log_file:
                raise
            raise NSQError(f"{_ENDED}: see {log_file}") from error


@contextlib.contextmanager
def _environment(master: str, conf: Mapping[str, str]) -> Iterator[None]:
    """The variables that the JVM takes from the process that starts it."""
    wanted = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if python := conf.get("spark.pyspark.python"):
        wanted["PYSPARK_PYTHON"] = python
    elif is_local(master) or "PYSPARK_PYTHON" not in os.environ:
        wanted["PYSPARK_PYTHON"] = sys.executable
    if on_loopback(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(
    conf: Mapping[str, str],
    app_name: str,
    log_file: str | None,
    stack: contextlib.ExitStack,
) -> SparkSession:
    """The session, which the stack ends; raises ConfigError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, which is not used
        from pyspark import SparkConf, SparkContext, java_gateway
        from pyspark.sql import SparkSession

        settings = SparkConf().setAll(list(conf.items())).setAppName(app_name)
        log = _open_log(log_file)
        try:
            if SparkContext._active_spark_context:
                raise ConfigError("this process already has a Spark session: stop it first")
            launch: Any = java_gateway.launch_gateway
            # A signal to the group of this process, as of a terminal or systemd, is not for Java.
            own = {"stderr": log, "start_new_session": True}
            gateway = SparkContext._gateway or launch(settings, own)  # the former of spark-submit
            stack.callback(_end_jvm, gateway)
            context = SparkContext(conf=settings, gateway=gateway)
            stack.callback(_stop, context)
            # A server of pyspark's own would print a traceback when the JVM is killed.
            server: Any = context._accumulatorServer
            server.handle_error = lambda *_: None
            return SparkSession.builder.config(conf=settings).getOrCreate()
        except ConfigError:
            raise
        except Exception as error:
            see = f"see {log_file}" if log_file else "run again with --spark-log FILE for details"
            raise ConfigError(f"Spark did not start: {first_line(error)} ({see})") from error
        finally:
            os.close(log)


def _open_log(path: str | None) -> int:
    """A descriptor; raises ConfigError."""
    try:
        return os.open(path or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"--spark-log {path}: {error.strerror}") from error


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Loggers that repeat on stderr what an exception says already."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_not_of_py4j)  # which also writes to the root itself
    try:
        yield
    finally:
        logging.root.removeFilter(_not_of_py4j)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def _stop(context: SparkContext) -> None:
    """End it, even if its JVM is dead."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        context.stop()
    SparkContext._active_spark_context = None  # also if Java is out of memory
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_jvm(gateway: Any) -> None:
    """pyspark keeps its JVM for another session; here the log ends and no child is left."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    if process is None:  # spark-submit's own
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # which tells it to end
    try:
        process.wait(_EXIT_TIMEOUT)
    except Exception:
        process.kill()
        process.wait()


def _exit_code(gateway: Any) -> int | None:
    """That of a JVM that is about to end; None if it goes on, or is not a child of ours."""
    process: subprocess.Popen[bytes] | None = gateway.proc
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_EXIT_TIMEOUT) if process else None
    return None


_OURS = re.compile(r"^(?:\S*: )?(nsqtools(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE
)
_TERMINATED = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_CALLING = re.compile(r"An error occurred while calling \S+$")
_CAUSE = re.compile(r"^(?:Caused by: |: )(?:[\w.$]+(?:Exception|Error): )?(\S.*)$", re.MULTILINE)
_STAGE = re.compile(r"^Job aborted due to stage failure: .*?\): (?=\S)")
_DIED = re.compile(
    r"Python worker exited unexpectedly"
    r"|^(?:Caused by: |: )?java\.(?:io|net)\.\w+Exception.*\n"
    r"(?:\s+at java.*\n)*\s+at org\.apache\.spark\.[\w.]*\bpython\.",
    re.MULTILINE,
)
"""What Spark says of it in words, or shows by where it read or wrote when a connection ended."""
_NOISE = re.compile(r"\s*SQLSTATE: \w{5}[;\s]*(?:\(?line (\d+),? pos \d+\)?[;\s]*)?$")
_ENDED = "Spark's Java process has ended"
_SHUT_DOWN = "because SparkContext was shut down"
_OUT_OF_MEMORY = 52  # org.apache.spark.util.SparkExitCode
_MEMORY = re.compile(
    r"OutOfMemoryError(?!: unable to create)|Java heap space|GC overhead limit exceeded"
    rf"|[Ee]xit(?:ed with(?: exit)?)? (?:code|status):? (?:{_OUT_OF_MEMORY}|(137))\b"
    r"|(exceeding (?:physical |virtual )?memory limits|OOMKilled|possible container OOM)"
)
"""With a group if what ended the executor was its container, or its machine, and not Java."""
_EXECUTOR = re.compile(r"\(\S+ executor (\w+)\)|\(executor (\w+) exited")
_NO_HEAP = (
    "Java is out of memory: raise the heap of Spark's driver, 1g by default, such as with --conf "
    "spark.driver.memory=4g"
)
_NO_CLASS = re.compile(
    r"Class org\.apache\.hadoop\.fs\.(s3a|azurebfs|gs)\.\w+ not found"
    r"|No (?:Abstract)?FileSystem (?:configured )?for scheme:? \"?(\w+)"
)
_MODULES = {"s3a": "hadoop-aws", "azurebfs": "hadoop-azure", "gs": "hadoop-gcp"}
"""The artifacts of Hadoop with file systems that Spark does not bring."""


class JavaEndedError(NSQError):
    """The cause is unknown; the log of the session may have it."""


def first_line(error: BaseException) -> str:
    """Return one line for an error of Spark, or the text of an NSQError that a worker raised."""
    return str(explain(error))


def explain(error: BaseException) -> NSQError:
    """Return an NSQError with one line of text for an error of Spark.

    An NSQError that a Python worker raised keeps its class, such as ConfigError.
    """
    if isinstance(error, NSQError):
        return error
    text = _text(error)
    if text == _ENDED or _SHUT_DOWN in text:
        return JavaEndedError(f"{_ENDED}: run again with --spark-log FILE to see why")
    if ours := list(_OURS.finditer(text)):
        module, name, said = ours[-1].groups()
        return _again(getattr(sys.modules.get(module), name, None), said.strip())
    whole = f"{text}\n{getattr(error, '_stackTrace', '')}"
    if found := _NO_CLASS.search(whole):
        return ConfigError(_without(found[1] or found[2]))
    if found := _MEMORY.search(whole):
        return NSQError(_out_of_memory(whole, killed=any(found.groups())))
    if _DIED.search(whole):
        return NSQError(
            "a Python worker of Spark was killed or ran out of memory: run the command again"
        )
    if raised := list(_PYTHON.finditer(text)):
        return NSQError(raised[-1][1].strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and _CALLING.match(lines[0]):  # what pyspark does not convert comes with its stack
        lines = _CAUSE.findall(text)[-1:] or lines[1:]
    line = lines[0] if lines else type(error).__name__
    return NSQError(_NOISE.sub(_in_line, _STAGE.sub("", _TERMINATED.sub("", line))))


def _out_of_memory(text: str, *, killed: bool) -> str:
    """A job on a local master names its executor ``driver``."""
    found = _EXECUTOR.search(text)
    executor = (found[1] or found[2]) if found else "driver"
    if executor == "driver":
        return _NO_HEAP
    if killed:
        return (
            f"executor {executor} was killed, probably because its container or machine is out of "
            "memory: raise spark.executor.memoryOverhead, such as with --conf "
            "spark.executor.memoryOverhead=1g"
        )
    return (
        f"executor {executor} is out of memory: raise its heap, 1g by default, such as with --conf "
        "spark.executor.memory=4g"
    )


def _without(name: str) -> str:
    """What to do about a file system whose classes are missing."""
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home(), "jars").glob("hadoop-client-api-*.jar")
    version = next((jar.stem.rpartition("-")[2] for jar in jars), "VERSION")
    if name not in _MODULES:
        return (
            f"Spark has no file system for {name}:// URLs: add it with --conf spark.jars.packages"
        )
    return (
        f"Spark needs {_MODULES[name]} for this URL: add --conf "
        f"spark.jars.packages=org.apache.hadoop:{_MODULES[name]}:{version}, or less of it as "
        "'nsqtools help clusters' says"
    )


def _in_line(noise: re.Match[str]) -> str:
    """Of a state and a place what helps: the line, where there are several."""
    return f" (line {noise[1]})" if noise[1] not in (None, "1") else ""


def _again(kind: object, text: str) -> NSQError:
    with contextlib.suppress(TypeError):  # it wants more than a text
        if isinstance(kind, type) and issubclass(kind, NSQError):
            return kind(text)
    return NSQError(text)


def _text(error: BaseException) -> str:
    """All that an exception says, however pyspark wrapped it; its ``str`` may ask the JVM."""
    try:
        text = str(error) or type(error).__name__
    except Exception as again:
        text, error = str(again), again
    kind = type(error)
    # py4j has this bare error, without a trace, for a call that got no answer.
    lost = kind.__name__ == "Py4JError" and "Trace:" not in text
    lost |= kind.__name__ == "Py4JNetworkError" or isinstance(error, (ConnectionError, EOFError))
    if lost:
        return _ENDED
    return text
