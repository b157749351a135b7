"""``pipeline replay``: archives back into a topic.

A plan in the staging directory names the Parquet files to publish. They are those of the archive,
if all of it is published in any order; otherwise Spark writes the chosen rows once, in their order,
to files in the staging directory. If a run ends early for any reason, the next run with the same
settings continues it. Messages that were being sent may then be published again, so each message
arrives at least once. Messages get new ids and timestamps.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.errors import ConfigError, PublishError
from nsqtools.spark.interrupts import interruptible
from nsqtools.spark.jobs.guard import only_one
from nsqtools.spark.jobs.portions import (
    STOP,
    BodyFile,
    PublishTask,
    divided,
    positions,
)
from nsqtools.spark.lake.dataframes import view
from nsqtools.spark.lake.inputs import check_unchanged, find, real
from nsqtools.spark.lake.write import write_files
from nsqtools.spark.sparksession import first_line
from nsqtools.stores import in_threads, open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.records.layout import Layout
    from nsqtools.spark.jobs.portions import Portion, Position
    from nsqtools.spark.lake.inputs import Input, ProgressReport
    from nsqtools.stores.interface import Store

_PLAN, _PARTS, _POSITIONS = "replay.json", "parts", "positions"
_FORMAT = "nsqtools replay 2"
_LOOK = 1.0
_GRACE = 10.0
"""Seconds that tasks get to end after ``stop`` is set, before they are killed."""

_TERM = re.compile(r"\s*(\S.*?)(?:\s+(asc|desc))?\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """``inputs`` and ``layout`` are parameters of ``inputs.find``; ``staging`` is a directory, on
    any store. ``sink`` has options of the sink ``nsq``, with a topic.

    ``where`` is an SQL condition on the columns of ``dataframe.view``. ``order_by`` has one or more
    of these columns, separated by commas, each optionally followed by ``desc``. Both may be empty.
    ``rate`` is in messages per second, 0 for no limit.
    """

    inputs: tuple[str, ...]
    sink: Mapping[str, str]
    staging: str
    layout: Layout | None = None
    where: str = ""
    order_by: str = ""
    rate: float = 0.0

    @property
    def is_sequential(self) -> bool:
        """Whether one process has to publish everything."""
        return bool(self.order_by or self.rate)

    @property
    def identity(self) -> dict[str, Any]:
        """What chooses the messages and their order: a run with the same continues with them."""
        layout = self.layout
        return {
            "inputs": sorted(map(real, self.inputs)),
            "topic": self.sink["topic"],
            "where": self.where,
            "order_by": self.order_by,
            "layout": [layout.format, layout.delimiter.hex()] if layout else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result for the chosen ``rows``, of this run and the runs that it continued.

    nsqd has answered OK for ``published`` messages, ``before`` of them in earlier runs, and at most
    ``again`` were published twice. It has permanently rejected ``refused`` messages, the first for
    this ``reason``. ``empty`` rows have no body to publish. If ``stopped``, the next run continues.
    """

    rows: int = 0
    published: int = 0
    before: int = 0
    again: int = 0
    refused: int = 0
    reason: str = ""
    empty: int = 0
    stopped: bool = False

    @property
    def left(self) -> int:
        """Rows that the next run has to publish."""
        return self.rows - self.published - self.refused - self.empty


def is_planned(settings: ReplaySettings) -> bool:
    """Whether an earlier run has left a plan.

    Raises ConfigError if it is a plan of other settings.
    """
    return _load(settings) is not None


def plan(settings: ReplaySettings) -> bool:
    """Plan to publish the archive as it is, if possible; returns whether there is a plan now.

    Without one, ``stage`` has to choose or convert rows. Raises errors of ``is_planned``,
    ``inputs.find`` and ``BodyFile.open``.
    """
    root = real(settings.staging)
    if is_planned(settings):
        return True
    if settings.where or settings.order_by or settings.layout:
        return False
    found = find(settings.inputs, None, exclude=[root])
    if any(each.kind != "parquet" for each in found):
        return False
    with only_one(root, "--staging"), as_output_error(root):
        _save(settings, [(each.path, each.size, each.mtime_ns) for each in found])
    return True


def stage(
    spark: SparkSession, settings: ReplaySettings, stop: threading.Event, report: ProgressReport
) -> None:
    """Write the chosen rows to the staging directory, unless there is a plan.

    Raises StoppedError after ``stop``, ConfigError for invalid settings and inputs, RecordError for
    a damaged file, LockedError if another run uses the staging directory, OutputError, and NSQError
    for other errors of Spark.
    """
    root = real(settings.staging)
    with only_one(root, "--staging") as guard, as_output_error(root):
        guard.stops(stop)
        if is_planned(settings):
            return
        found = find(settings.inputs, settings.layout, exclude=[root])
        store = open_store(root)
        store.delete(_PARTS)
        report("staging", 0, 0)
        with interruptible(spark, stop):
            chosen = _chosen(spark, settings, found)
            # A name of this run's own: tasks of a killed one may still write.
            written = write_files(chosen, below(root, _PARTS), "parquet", name=uuid4().hex)
        check_unchanged(found)
        guard.check()
        parts = sorted(
            (store.stat(below(_PARTS, each.path)) for each in written),
            key=lambda part: _number(part.path),
        )
        rows = _save(settings, [(store.url(each.path), *each[1:]) for each in parts])
        report("staging", rows, rows)


def publish(
    settings: ReplaySettings,
    stop: threading.Event,
    report: ProgressReport,
    spark: SparkSession | None = None,
) -> Replayed:
    """Publish from the positions of the last run; remove the plan once everything is published.

    With ``spark``, its executors publish. A message that nsqd permanently rejects is counted and
    skipped. Raises PublishError if no nsqd accepts messages, UnreachableError, LockedError,
    RecordError, OutputError, and ConfigError if there is no plan.
    """
    root = real(settings.staging)
    with only_one(root, "--staging") as guard, as_output_error(root):
        guard.stops(stop)
        chosen = _load(settings)
        if chosen is None:
            raise ConfigError(f"{root}: no replay to continue: stage it first")
        store = open_store(root)
        store.delete(STOP)
        run = _Replaying(settings, store, chosen, report)
        try:
            if spark:
                run.in_tasks(spark, stop)
            else:
                run.here(stop)
        except PublishError as error:
            done = run.result()
            raise PublishError(
                f"{error}; {done.rows - done.left} of {done.rows} rows are done: run replay again "
                "to continue",
                error.refused,
                permanent=error.permanent,
            ) from error
        done = run.result()
        guard.check()
        if not done.stopped:
            for each in (_PLAN, _POSITIONS, _PARTS, STOP):
                store.delete(each)
    return done


def publish_there(
    spark: SparkSession, settings: ReplaySettings, stop: threading.Event, report: ProgressReport
) -> Replayed:
    """Plan or stage, and publish from executors."""
    if not plan(settings):
        stage(spark, settings, stop, report)
    return publish(settings, stop, report, spark)


class _Plan(NamedTuple):
    """What to publish; the positions of the portions are in ``folder``."""

    folder: str
    portions: list[Portion]


class _Replaying:
    """The portions that are not done yet, on their way."""

    def __init__(
        self, settings: ReplaySettings, store: Store, chosen: _Plan, report: ProgressReport
    ) -> None:
        self._store = store
        self._chosen = chosen
        self._report = report
        sizes = [sum(file.rows for file in each) for each in chosen.portions]
        self._rows = sum(sizes)
        before = self.positions()
        self._passed = sum(each.done for each in before)
        self._before = sum(each.published for each in before)
        self._left = [
            (number, portion)
            for number, portion in enumerate(chosen.portions)
            if before[number].done < sizes[number]
        ]
        self._task = PublishTask(
            store.place, chosen.folder, settings.sink, settings.is_sequential, settings.rate
        )

    def positions(self) -> list[Position]:
        """The current positions of all portions."""
        return positions(self._store, self._chosen.folder, len(self._chosen.portions))

    def result(self) -> Replayed:
        """What is done so far."""
        found = self.positions()
        done = sum(each.done for each in found)
        published = sum(each.published for each in found)
        refused = sum(each.refused for each in found)
        return Replayed(
            rows=self._rows,
            published=published,
            before=self._before,
            again=sum(each.again for each in found),
            refused=refused,
            reason=next((each.reason for each in found if each.reason), ""),
            empty=done - published - refused,
            stopped=done < self._rows,
        )

    def here(self, stop: threading.Event) -> None:
        """Publish in this process."""

        def passed(count: int) -> None:
            self._passed += count
            self._report("publishing", self._passed, self._rows)

        if not stop.is_set():
            self._task.run(self._left, stop, passed)

    def in_tasks(self, spark: SparkSession, stop: threading.Event) -> None:
        """Publish in tasks of Spark, one for each portion."""
        over, kill = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK):
                with contextlib.suppress(OSError):
                    if stop.is_set():
                        self._store.put(STOP, b"")
                        if not over.wait(_GRACE):
                            kill.set()
                    done = sum(each.done for each in self.positions())
                    self._report("publishing", done, self._rows)

        watcher = threading.Thread(target=watch, name="nsqtools-replay", daemon=True)
        errors: list[str] = []
        if self._left and not stop.is_set():
            watcher.start()
            try:
                with interruptible(spark, kill):
                    tasks = spark.sparkContext.parallelize(self._left, len(self._left))
                    errors = tasks.mapPartitions(self._task).collect()
            finally:
                over.set()
                watcher.join()
        if errors:
            raise PublishError(errors[0], [], permanent=False)


def _save(settings: ReplaySettings, files: Sequence[tuple[str, int, int]]) -> int:
    """Make the plan to publish these files, by path, size and time; returns their rows."""
    found = in_threads(lambda each: BodyFile.open(*each), files)
    portions = divided(found, whole=bool(settings.order_by))
    store = open_store(real(settings.staging), "--staging")
    store.delete(_POSITIONS)
    # The positions have a name of this plan's own: tasks of a killed run may still write theirs.
    folder = f"{_POSITIONS}/{uuid4().hex}"
    content = {
        "format": _FORMAT,
        "settings": settings.identity,
        **_Plan(folder, portions)._asdict(),
    }
    store.put(_PLAN, json.dumps(content).encode())
    return sum(each.rows for each in found)


def _load(settings: ReplaySettings) -> _Plan | None:
    """The plan; None if there is none. Raises ConfigError if it has other settings."""
    store = open_store(real(settings.staging), "--staging")
    try:
        with as_output_error(store.place):
            found = json.loads(store.get(_PLAN))
        if found["format"] != _FORMAT:
            raise ValueError
        portions = [tuple(BodyFile(*each) for each in portion) for portion in found["portions"]]
        chosen = _Plan(found["folder"], portions)
    except FileNotFoundError:
        return None
    except (LookupError, TypeError, ValueError):
        raise ConfigError(
            f"{store.url(_PLAN)}: is not a readable plan: remove it to replay from the beginning"
        ) from None
    if found["settings"] != settings.identity:
        raise ConfigError(
            f"{store.place}: has an unfinished replay with other inputs or options: run that replay"
            " again, or remove the directory"
        )
    return chosen


def _chosen(spark: SparkSession, settings: ReplaySettings, found: Sequence[Input]) -> DataFrame:
    """The bodies to publish, in their order."""
    data = view(spark, found, required="body")
    flag = ""
    try:
        if settings.where:
            flag = f"--where {settings.where!r}"
            data = data.where(settings.where)
        if settings.order_by:
            flag = f"--order-by {settings.order_by!r}"
            ties = ("timestamp", "timestamp_ns", "source_file", "source_record")
            data = data.orderBy(*_terms(settings.order_by), *ties)
        return data.select("body")
    except PySparkException as error:
        raise ConfigError(f"{flag}: {first_line(error)}") from error


def _terms(order_by: str) -> Iterator[Column]:
    for term in order_by.split(","):
        found = _TERM.fullmatch(term)
        if not found:
            raise ConfigError(f"--order-by {order_by!r}: expected columns separated by commas")
        column = F.expr(found[1])
        yield column.desc() if (found[2] or "").lower() == "desc" else column.asc()


def _number(part: str) -> list[int]:
    """The order of a part: tasks write theirs in the order of their rows."""
    return [int(each) for each in re.findall(r"\d+", posixpath.basename(part))]
