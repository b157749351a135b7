"""Spark sessions: start and end, with the JVM's output in a log and errors in one line.

pyspark is imported inside functions, so that its absence causes an error with instructions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, NSQError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

OLDEST_PYSPARK = (4, 2)
"""The first with admission control for Python sources (SPARK-55304)."""
OLDEST_JAVA = 17

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

_LOCAL = re.compile(r"local(?:\[([^],]+)(?:,[^]]+)?\])?")
_TASK_TRIES = 4
"""As on a cluster; Spark's own default for a local master is 1."""

_EXIT_TIMEOUT = 20.0
_NOISY = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def require_spark() -> None:
    """Raise ConfigError, with the command to run, if pyspark, pyarrow or Java is missing."""
    wanted = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    install = f"{sys.executable} -m pip install 'pyspark>=4.2' 'pyarrow>=18'"
    if wanted:
        verb = "are" if len(wanted) > 1 else "is"
        raise ConfigError(f"{' and '.join(wanted)} {verb} not installed: run {install}")
    version = metadata.version("pyspark")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_PYSPARK:
        raise ConfigError(f"pyspark {version} is too old: run {install}")
    _require_java()
    _require_same_spark(version)


def _require_java() -> None:
    """As ``spark-class`` looks for it: in JAVA_HOME if that is set, else on PATH."""
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which(Path(home, "bin", "java") if home else "java")
    package = f"openjdk-{OLDEST_JAVA}-jre-headless"
    install = (
        f"brew install openjdk@{OLDEST_JAVA}"
        if sys.platform == "darwin"
        else f"sudo apt-get install {package}"
    )
    if not found:
        where = f"JAVA_HOME {home} has no bin/java" if home else "PATH has no java"
        raise ConfigError(f"Spark needs Java {OLDEST_JAVA} or later, but {where}: run {install}")
    # A file beside it tells in no time what `java -version` would.
    with contextlib.suppress(OSError):
        release = Path(found).resolve().parents[1].joinpath("release").read_text()
        version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
        if version and int(version[1]) < OLDEST_JAVA:
            raise ConfigError(
                f"Spark needs Java {OLDEST_JAVA} or later, but {found} is Java {version[1]}: run "
                f"{install}, or set JAVA_HOME"
            )


def _require_same_spark(version: str) -> None:
    """SPARK_HOME replaces the JVM part of pyspark, and they speak to nobody but each other."""
    home = os.environ.get("SPARK_HOME", "")
    for jar in Path(home, "jars").glob("spark-core_*.jar") if home else ():
        other = jar.stem.partition("-core_")[2].partition("-")[2]
        if other != version:
            raise ConfigError(
                f"SPARK_HOME {home} is Spark {other}, but pyspark is {version}: unset SPARK_HOME, "
                f"or install pyspark=={other}"
            )


def use_own_python(spark: SparkSession) -> None:
    """Let workers of a local master run this Python, unless PYSPARK_PYTHON is set.

    By default Spark runs ``python3`` of PATH, which lacks this package if its virtual environment
    is not activated.
    """
    context: SparkContext | None = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context and is_local(context.master or "") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def refuse_speculation(spark: SparkSession) -> None:
    """Raise ConfigError if the session starts second copies of slow tasks.

    A copy takes over what the first task has staged, as a retry does, which fails the first task,
    whose retry fails the copy in turn, until the query fails. In the sink both would publish their
    rows.
    """
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise ConfigError(
            "spark.speculation is true, so two copies of a task would take over each other's "
            "messages until both fail: set it to false"
        )


@contextlib.contextmanager
def open_session(
    master: str,
    conf: Mapping[str, str],
    *,
    log_file: str | None = None,
    app_name: str = "nsqtools",
) -> Iterator[SparkSession]:
    """Start a JVM and a session; both end with the context.

    The stderr of the JVM and its Python workers is appended to ``log_file``, or discarded. Entries
    of ``conf`` override the defaults: UTC, timestamps in microseconds, no web interface, no
    progress bars and, with a local master or one on loopback, no ports on other interfaces. A local
    master retries a failed task as often as a cluster does. Raises ConfigError if Spark or Java is
    missing, the log cannot be written, or the session cannot start.
    """
    require_spark()
    with _quiet_loggers(), contextlib.ExitStack() as stack:
        with _environment(master, conf), _own_signals():
            spark = _start(master, conf, app_name, log_file, stack)
        try:
            yield spark
        except JavaEndedError as error:
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
    if _on_loopback(master):
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
    master: str,
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

        loopback = _LOOPBACK if _on_loopback(master) else {}
        settings = SparkConf().setAll(list({**_DEFAULTS, **loopback, **conf}.items()))
        settings = settings.setMaster(_with_tries(master)).setAppName(app_name)
        log = _open_log(log_file)
        try:
            if SparkContext._active_spark_context:
                raise ConfigError("this process already has a Spark session: stop it first")
            launch: Any = java_gateway.launch_gateway
            # A signal to the group of this process, as of a terminal or systemd, is not for Java.
            gateway = launch(settings, {"stderr": log, "start_new_session": True})
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


def _on_loopback(master: str) -> bool:
    return is_local(master) or re.match(r"spark://(127\.|localhost\b|\[::1\])", master) is not None


def _with_tries(master: str) -> str:
    """``local[2]`` as ``local[2,4]``; what names its tries itself stays, and so do clusters."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1] or 1},{_TASK_TRIES}]" if found and "," not in master else master


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """SparkContext takes SIGINT for itself; whoever opened the session wants it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    from pyspark.sql import SparkSession

    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_jvm(gateway: Any) -> None:
    """pyspark keeps its JVM for another session; here the log ends and no child is left."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    if process is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # which tells it to end
    try:
        process.wait(_EXIT_TIMEOUT)
    except Exception:
        process.kill()
        process.wait()


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
    if text == _ENDED:
        return JavaEndedError(f"{_ENDED}: run again with --spark-log FILE to see why")
    if found := list(_OURS.finditer(text)):
        module, name, said = found[-1].groups()
        return _again(getattr(sys.modules.get(module), name, None), said.strip())
    if _DIED.search(f"{text}\n{getattr(error, '_stackTrace', '')}"):
        return NSQError(
            "a Python worker of Spark was killed or ran out of memory: run the command again"
        )
    if found := list(_PYTHON.finditer(text)):
        return NSQError(found[-1][1].strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and _CALLING.match(lines[0]):  # what pyspark does not convert comes with its stack
        lines = _CAUSE.findall(text)[-1:] or lines[1:]
    line = lines[0] if lines else type(error).__name__
    return NSQError(_NOISE.sub(_in_line, _STAGE.sub("", _TERMINATED.sub("", line))))


def _in_line(noise: re.Match[str]) -> str:
    """Of a state and a place what helps: the line, where there are several."""
    return f" (line {noise[1]})" if noise[1] not in (None, "1") else ""


def _again(kind: object, text: str) -> NSQError:
    try:
        return (
            kind(text) if isinstance(kind, type) and issubclass(kind, NSQError) else NSQError(text)
        )
    except TypeError:  # it wants more than a text
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
