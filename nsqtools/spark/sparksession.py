"""Start and end of Spark sessions, with the JVM's output in a log and errors in one line.

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
from nsqtools.spark.properties import JAVA_PID, is_local, on_loopback, properties
from nsqtools.spark.requirements import require_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    Java = subprocess.Popen[bytes] | None
    """The process of a JVM; None for spark-submit's, which is no child."""

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
    and the values from spark-submit override the defaults: UTC, timestamps in microseconds, Parquet
    in zstd, no web interface, no progress bars and, with a local master or a master on loopback, no
    ports on other interfaces. A local master retries a failed task as often as a cluster. Raises
    ConfigError if Spark or Java is missing, the log cannot be written, or the session cannot start.
    """
    require_spark()
    with _quiet_loggers(), contextlib.ExitStack() as stack:
        with _environment(master, conf):
            spark, java = _start(properties(master, conf), app_name, log_file, stack)
        try:
            yield spark
        except JavaEndedError as error:
            if _exit_code(java) == _OUT_OF_MEMORY:
                raise NSQError(_NO_HEAP) from error
            if not log_file:
                raise
            raise NSQError(f"{_ENDED}: see {log_file}") from error


@contextlib.contextmanager
def _environment(master: str, conf: Mapping[str, str]) -> Iterator[None]:
    """Set the JVM's environment variables in this process while the JVM starts."""
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
) -> tuple[SparkSession, Java]:
    """Return a new session, to be ended by the stack, and its process; raises ConfigError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pandas, not used here
        from pyspark import SparkConf, SparkContext, java_gateway
        from pyspark.sql import SparkSession

        settings = SparkConf().setAll(list(conf.items())).setAppName(app_name)
        log = _open_log(log_file)
        try:
            if SparkContext._active_spark_context:
                raise ConfigError("this process already has a Spark session: stop it first")
            launch: Any = java_gateway.launch_gateway
            # Signals from a terminal or systemd to this process group must not reach Java.
            own = {"stderr": log, "start_new_session": True}
            gateway = SparkContext._gateway or launch(settings, own)  # spark-submit's, or a new one
            java: Java = gateway.proc
            stack.callback(_end_jvm, gateway)
            context = SparkContext(conf=settings, gateway=gateway)
            stack.callback(_stop, context)
            # pyspark's accumulator server would print a traceback when the JVM is killed.
            server: Any = context._accumulatorServer
            server.handle_error = lambda *_: None
            spark = SparkSession.builder.config(conf=settings).getOrCreate()
            if java:
                spark.conf.set(JAVA_PID, java.pid)
            return spark, java
        except ConfigError:
            raise
        except Exception as error:
            see = f"see {log_file}" if log_file else "run again with --spark-log FILE for details"
            raise ConfigError(f"Spark did not start: {first_line(error)} ({see})") from error
        finally:
            os.close(log)


def _open_log(path: str | None) -> int:
    """Return a descriptor of the log, or of /dev/null; raises ConfigError."""
    try:
        return os.open(path or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"--spark-log {path}: {error.strerror}") from error


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence loggers that would repeat the text of exceptions on stderr."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_not_of_py4j)  # py4j logs to the root logger too
    try:
        yield
    finally:
        logging.root.removeFilter(_not_of_py4j)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def _stop(context: SparkContext) -> None:
    """Stop the context, even if its JVM is dead."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        context.stop()
    SparkContext._active_spark_context = None  # even if Java is out of memory
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_jvm(gateway: Any) -> None:
    """End the JVM, which pyspark would keep for another session, so that no child is left."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    if process is None:  # spark-submit's own
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # the JVM exits at the end of its stdin
    try:
        process.wait(_EXIT_TIMEOUT)
    except Exception:
        process.kill()
        process.wait()


def _exit_code(java: Java) -> int | None:
    """Return the exit code of a JVM about to end; None if it keeps running or is no child."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return java.wait(_EXIT_TIMEOUT) if java else None
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
"""The death of a Python worker, in Spark's words or in the stack trace of a lost connection."""
_NOISE = re.compile(r"\s*SQLSTATE: \w{5}[;\s]*(?:\(?line (\d+),? pos \d+\)?[;\s]*)?$")
_ENDED = "Spark's Java process has ended"
_SHUT_DOWN = "because SparkContext was shut down"
_OUT_OF_MEMORY = 52  # org.apache.spark.util.SparkExitCode
_MEMORY = re.compile(
    r"OutOfMemoryError(?!: unable to create)|Java heap space|GC overhead limit exceeded"
    rf"|[Ee]xit(?:ed with(?: exit)?)? (?:code|status):? (?:{_OUT_OF_MEMORY}|(137))\b"
    r"|(exceeding (?:physical |virtual )?memory limits|OOMKilled|possible container OOM)"
)
"""A group matches if the container or the machine, rather than Java, ended the executor."""
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
"""Hadoop's artifacts with file systems, by scheme or package; Spark ships without them."""


class JavaEndedError(NSQError):
    """Spark's Java process ended for an unknown cause; the session's log may show it."""


def first_line(error: BaseException) -> str:
    """Return one line for an error of Spark, or the text of an NSQError raised by a worker."""
    return str(explain(error))


def explain(error: BaseException) -> NSQError:
    """Return an NSQError with one line of text for an error of Spark.

    An NSQError raised by a Python worker keeps its class, such as ConfigError.
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
    if lines and _CALLING.match(lines[0]):  # not converted by pyspark: a stack follows
        lines = _CAUSE.findall(text)[-1:] or lines[1:]
    line = lines[0] if lines else type(error).__name__
    return NSQError(_NOISE.sub(_in_line, _STAGE.sub("", _TERMINATED.sub("", line))))


def _out_of_memory(text: str, *, killed: bool) -> str:
    """Return the error text for an executor, or for the driver, which runs local jobs itself."""
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
    """Return the error text, with instructions, for a file system with missing classes."""
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home(), "jars").glob("hadoop-client-api-*.jar")
    version = next((jar.stem.rpartition("-")[2] for jar in jars), "VERSION")
    if name not in _MODULES:
        return (
            f"Spark has no file system for {name}:// URLs: add it with --conf spark.jars.packages"
        )
    return (
        f"Spark needs {_MODULES[name]} for this URL: add --conf "
        f"spark.jars.packages=org.apache.hadoop:{_MODULES[name]}:{version}, or see "
        "'nsqtools help clusters' for a smaller download"
    )


def _in_line(noise: re.Match[str]) -> str:
    """Return the line number in an SQLSTATE suffix; empty if it has no line, or line 1."""
    return f" (line {noise[1]})" if noise[1] not in (None, "1") else ""


def _again(kind: object, text: str) -> NSQError:
    with contextlib.suppress(TypeError):  # the class needs more arguments than a text
        if isinstance(kind, type) and issubclass(kind, NSQError):
            return kind(text)
    return NSQError(text)


def _text(error: BaseException) -> str:
    """Return an exception's whole text, however pyspark wrapped it; ``str`` may call the JVM."""
    try:
        text = str(error) or type(error).__name__
    except Exception as again:
        text, error = str(again), again
    kind = type(error)
    # py4j raises a bare Py4JError, without a trace, for a call without an answer.
    lost = kind.__name__ == "Py4JError" and "Trace:" not in text
    lost |= kind.__name__ == "Py4JNetworkError" or isinstance(error, (ConnectionError, EOFError))
    if lost:
        return _ENDED
    return text
