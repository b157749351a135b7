"""Cancellation of Spark jobs, and their errors in one line."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from nsqtools.errors import NSQError, RecordError
from nsqtools.spark.sparksession import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

_POLL = 0.2
_UNREADABLE = re.compile(
    r"\[FAILED_READ_FILE[^]]*\].*? (?:file:/*)?((?:\w+:/)?/\S.*?)\.?\s+"
    r"(?:SQLSTATE|Could not read|Data type)"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.*\S)", re.MULTILINE)


class StoppedError(Exception):
    """The jobs were cancelled, as requested."""


@contextlib.contextmanager
def interruptible(
    spark: SparkSession,
    stop: threading.Event,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Iterator[None]:
    """Cancel the jobs of this thread and raise StoppedError once ``stop`` is set.

    Until then ``progress`` is called every 0.2 seconds with the number of completed tasks and the
    total number of tasks.

    Errors of Spark, and of the connection to a dead Java process, become an NSQError with one line;
    RecordError for an unreadable file.
    """
    if stop.is_set():
        raise StoppedError
    context = spark.sparkContext
    group, over = uuid4().hex, threading.Event()

    def watch() -> None:
        while not over.wait(_POLL):
            with contextlib.suppress(Exception):  # the Java process may have ended
                if stop.is_set():
                    context.cancelJobGroup(group)  # repeatedly: new jobs may start
                else:
                    progress(*_tasks(context.statusTracker(), group))

    watcher = threading.Thread(target=watch, name="nsqtools-interrupts", daemon=True)
    watcher.start()
    try:
        context.setJobGroup(group, "nsqtools", interruptOnCancel=True)
        yield
    except Exception as error:
        if stop.is_set():
            raise StoppedError from error
        # ConnectionError and EOFError come from the sockets between this process and Java.
        if isinstance(error, (PySparkException, Py4JError, ConnectionError, EOFError)):
            raise _explained(error) from error
        raise
    finally:
        over.set()
        watcher.join()
        with contextlib.suppress(Exception):  # keep the original error
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return the numbers of completed tasks and of all tasks in the stages of a job group."""
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    numbers = {number for job in jobs if job for number in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage]
    return sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages)


def _explained(error: Exception) -> NSQError:
    try:
        text = str(error)
    except Exception:  # ``str`` of some errors calls Java
        text = ""
    found = _UNREADABLE.search(text)
    if not found:
        return explain(error)
    reasons = _CAUSE.findall(text)
    return RecordError(f"{found[1]}: {reasons[-1] if reasons else 'cannot be read'}")
