"""``pipeline compact``: archives to few sorted files per hour, each message once.

A message is identified by (topic, message_id, timestamp_ns), a record without them by its place.

A run reads its inputs twice. At first it only measures how many bytes each minute has. From this
follow tasks of equal size, however a burst is distributed, and which files of the output may have
the same messages: those of the same minutes. Only these, and small ones, are merged with what is
new. Then each task sorts its rows, drops duplicates and writes a file for each hour that it has.
The new files are read back and compared before they replace anything; ``compacted`` describes
recovery after a crash.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.clock import wall_ns
from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.interrupts import StoppedError, interruptible
from nsqtools.spark.jobs.compacted import (
    ALL,
    CompactOutput,
    FileFacts,
    HourFile,
    days_of,
    prefix,
)
from nsqtools.spark.jobs.guard import only_one
from nsqtools.spark.lake.dataframes import FILE, STRICT, dated, frame, is_keyed, united
from nsqtools.spark.lake.inputs import Input, check_unchanged, checked, list_files, real
from nsqtools.spark.lake.write import write_files
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import OURS, below, literal

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.records.layout import Layout
    from nsqtools.spark.lake.inputs import ProgressReport

_MINUTE, _START, _SPAN = "_nsqtools_minute", "_nsqtools_start", "_nsqtools_span"
_TASK, _NTH, _TIME = "_nsqtools_task", "_nsqtools_nth", "_nsqtools_time"
_KEY = ("timestamp", "timestamp_ns", "topic", "message_id", "source_file", "source_record")
_CHOICE = ("attempts", "channel", "nsqd", "body")
"""Of rows that are one message the least by these is kept, so that every run keeps the same."""

_MINUTE_OF = "(unix_micros(timestamp) - pmod(unix_micros(timestamp), 60000000)) div 60000000"
"""SQL for the minute of a row, since the epoch."""
_LEAST = 100
"""Bytes that a body counts at least: the rest of its row needs about as much memory."""
_SHARES = 1 << 20
"""Rows of a minute are divided among its tasks in so many shares."""

_IN_PATH = re.compile(r"/date=(\d{4}-\d\d-\d\d)/hour=(\d\d?)/")
_UNHASHABLE = ("map<", "variant")


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """``inputs`` and ``layout`` are parameters of ``inputs.find``.

    Files are left for another run that changed within the last ``older_than`` seconds, or that are
    from before ``since`` or from ``until`` on, in seconds since the epoch. ``file_size`` is the
    number of bytes of bodies that a task and a file should have, before compression. A ``dry_run``
    reads the inputs and changes nothing.
    """

    inputs: tuple[str, ...]
    output: str
    layout: Layout | None = None
    since: float = -inf
    until: float = inf
    older_than: float = 0.0
    delete_inputs: bool = False
    file_size: int = 256 << 20
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a run.

    ``inputs`` files with ``read`` records were read; an earlier run had read ``known`` others. The
    run wrote ``files`` with ``rows``, which replace ``replaced`` files, and dropped ``duplicates``.
    ``kept`` inputs could not be deleted. After a dry run these are what a run would do at most.
    """

    inputs: int = 0
    known: int = 0
    read: int = 0
    files: int = 0
    replaced: int = 0
    rows: int = 0
    duplicates: int = 0
    deleted: int = 0
    kept: int = 0


def check_apart(settings: CompactSettings) -> None:
    """Raise ConfigError if an input contains the output, or the output an input, by any path.

    Readers of such an input would see each message twice; and files in the output are not inputs.
    """
    root = Path(real(settings.output))
    for place in settings.inputs:
        path = Path(real(place))
        if root.is_relative_to(path) or path.is_relative_to(root):
            raise ConfigError(
                f"--input {place}: contains --output {settings.output}, or is within it: choose an "
                "output apart from all inputs"
            )


def compact(
    spark: SparkSession, settings: CompactSettings, stop: threading.Event, report: ProgressReport
) -> Compacted:
    """Merge new inputs into the output.

    ``stop`` ends the run soon with StoppedError, unless files are about to be replaced. Raises
    ConfigError for invalid settings, inputs and outputs; RecordError for a file that is damaged or
    still written; LockedError if another run uses the output; OutputError if the output cannot be
    written; and NSQError for other errors of Spark. After an error the output is unchanged, apart
    from outstanding work of a killed run, which is completed.
    """
    check_apart(settings)
    root = real(settings.output)
    if settings.dry_run:
        with as_output_error(root):
            return _Compaction(spark, settings, stop, report, CompactOutput(root)).run()
    with only_one(below(root, OURS), "--output") as guard, as_output_error(root):
        guard.stops(stop)
        output = CompactOutput(root)
        output.recover()
        try:
            return _Compaction(spark, settings, stop, report, output).run()
        except StoppedError:
            guard.check()
            raise


@dataclass(frozen=True, slots=True)
class _Compaction:
    """One run."""

    spark: SparkSession
    settings: CompactSettings
    stop: threading.Event
    report: ProgressReport
    output: CompactOutput

    def run(self) -> Compacted:
        chosen = self.settings
        limit = self.limit()
        listed = list_files(chosen.inputs, exclude=[self.output.place])
        found = [
            each
            for each in listed
            if each.mtime_ns <= limit and chosen.since <= _time(each) < chosen.until
        ]
        new, known = self.output.divide(found)
        new = checked(new, chosen.layout)
        done = self._merge(new, self.output.gone(listed)) if new else Compacted()
        if chosen.delete_inputs and chosen.dry_run:
            done = replace(done, deleted=len(found))
        elif chosen.delete_inputs:
            deleted, kept = self.output.delete(found, partial(self.report, "deleting"))
            done = replace(done, deleted=deleted, kept=kept)
        return replace(done, known=len(known))

    def limit(self) -> float:
        """Return the time of the last change, in ns, after which a file is left for another run.

        One of the clocks of this host and of the store may be ahead.
        """
        if not self.settings.older_than:
            return inf
        now = wall_ns()
        if not self.settings.dry_run:
            now = min(now, self.output.now())
        return now - round(self.settings.older_than * 1e9)

    def _merge(self, new: Sequence[Input], forgotten: Sequence[str]) -> Compacted:
        output, file_size = self.output, self.settings.file_size
        with self._step("reading"):
            data = dated(frame(self.spark, new))
            found, minutes = _measured(data, output.starts(new))
        if strange := found.keys() - {each.path for each in new}:
            raise ConfigError(
                f"{min(strange)}: --input spells this path differently: write it as shown here"
            )
        known, starts = output.recognised(new, found)
        rows = {
            path: facts.rows - starts.get(path, 0)
            for path, facts in known.items()
            if starts.get(path) != ALL
        }
        old = output.meeting(minutes, file_size) if rows else {}
        parts = [data.where(_is_new(starts))]
        if old:
            place = output.place
            files = [
                Input(below(place, path), part.size, 0, "parquet", place)
                for path, part in old.items()
            ]
            with self._step("reading the output"):
                parts.append(dated(frame(self.spark, files)))
                minutes.update(_measured(parts[1], {})[1])
        plan = slices(minutes if rows else {}, file_size)
        read, there = sum(rows.values()), sum(part.rows for part in old.values())
        done = Compacted(inputs=len(rows), read=read, replaced=len(old))
        if self.settings.dry_run:
            return replace(done, files=plan.files, rows=read + there)
        run = output.begin(days_of(minutes))
        try:
            made = self._write(united(parts), plan, run) if plan.table else {}
            check_unchanged(new)
            if self.stop.is_set():
                raise StoppedError
        except BaseException:
            output.discard()
            raise
        output.commit(run, made, old, known, forgotten)
        written = sum(part.rows for part in made.values())
        return replace(done, files=len(made), rows=written, duplicates=read + there - written)

    def _write(self, rows: DataFrame, plan: Slices, run: str) -> dict[str, HourFile]:
        """Write the files of all tasks, and read them back."""
        place = self.output.work(run)
        table = self.spark.createDataFrame(
            plan.table, f"{_MINUTE} bigint, {_START} double, {_SPAN} double"
        )
        with self._step("writing"):
            written, files = _written(_merged(rows, table, plan.tasks), place, run)
        with self._step("verifying"):
            again = _read_back(self.spark, [below(place, path) for path in files])
        if again != written:
            raise OutputError(
                f"{place}: {written['rows']} rows were written, but {again['rows']} or different "
                "rows were read back: check the disk and run compact again"
            )
        return files

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self.report(name, 0, 0)
        with interruptible(self.spark, self.stop, partial(self.report, name)):
            yield


def _time(each: Input) -> float:
    """The hour in the path of a file of ``archive``, else when it was written."""
    if found := _IN_PATH.search(each.path):
        return datetime.fromisoformat(f"{found[1]}T{found[2]:>02}:00Z").timestamp()
    return each.mtime_ns / 1e9


def _measured(
    data: DataFrame, starts: Mapping[str, int]
) -> tuple[dict[str, FileFacts], Counter[int]]:
    """Read all rows: what is in each file, and the bytes of bodies of each minute.

    ``starts`` has the number of records of files that an earlier run has read.
    """
    mark = F.when(~is_keyed(), F.xxhash64("source_record", "body").cast("decimal(20,0)"))
    found = data.select(
        F.col(FILE).alias("file"),
        F.expr(_MINUTE_OF).alias("minute"),
        F.expr(_MINUTE_OF).alias("at"),
        F.greatest(F.octet_length("body"), F.lit(_LEAST)).alias("size"),
        mark.alias("mark"),
        F.when(~_is_new(starts), mark).alias("start"),
    )
    sums = found.groupingSets([["file"], ["minute"]], "file", "minute").agg(
        *(F.count("*"), F.count("mark"), F.sum("mark"), F.sum("start"), F.sum("size")),
        *(F.min("at"), F.max("at")),
    )
    files: dict[str, FileFacts] = {}
    minutes: Counter[int] = Counter()
    for file, minute, rows, unkeyed, checksum, start, size, first, last in sums.collect():
        if file is None:
            minutes[minute] = size
        else:
            marks = int(checksum or 0), int(start or 0)
            files[file] = FileFacts(rows, unkeyed, *marks, first, last)
    return files, minutes


def _is_new(starts: Mapping[str, int]) -> Column:
    """Whether a row is not among the first so many of its file."""
    if not starts:
        return F.lit(True)
    read = F.from_json(F.lit(json.dumps(starts)), "map<string,bigint>")
    return F.col("source_record") >= F.coalesce(F.try_element_at(read, FILE), F.lit(0))


class Slices(NamedTuple):
    """Where rows go: those of a ``minute`` evenly to tasks from ``start`` to ``start + span``.

    ``table`` has these three. The ``tasks`` write ``files``.
    """

    table: list[tuple[int, float, float]]
    tasks: int
    files: int


def slices(minutes: Mapping[int, int], size: int) -> Slices:
    """Divide bytes by minute into tasks of at most about ``size`` bytes.

    The tasks of an hour are of equal size and follow one another in time; a minute is divided where
    a task ends, or into several tasks. Small hours share a task.
    """
    table = []
    end = files = room = 0
    for _, group in groupby(sorted(minutes), lambda minute: minute // 60):
        mine = list(group)
        total = sum(minutes[each] for each in mine)
        tasks = max(-(-total // size), 1)
        first = end
        if tasks == 1 and total <= room:
            first, room = end - 1, room - total
        else:
            room = size - total
        end = first + tasks
        files += tasks
        done = 0
        for each in mine:
            table.append((each, first + done * tasks / total, minutes[each] * tasks / total))
            done += minutes[each]
    return Slices(table, end, files)


def _merged(data: DataFrame, tasks: DataFrame, count: int) -> DataFrame:
    """Each message once, and the rows of a task in the order to write them.

    ``tasks`` is the table of ``Slices``. Rows of one message meet in one task.
    """
    for name in ("source_file", "source_record"):
        data = data.withColumn(name, F.when(~is_keyed(), F.col(name)))
    share = F.pmod(F.xxhash64(*_KEY[1:]), F.lit(_SHARES)) / F.lit(_SHARES)
    task = F.floor(F.col(_START) + share * F.col(_SPAN))
    same = Window.partitionBy(_TASK, "date", "hour", *_KEY).orderBy(*_CHOICE)
    return (
        data.withColumn(_MINUTE, F.expr(_MINUTE_OF))
        .join(F.broadcast(tasks), _MINUTE, "left")
        .withColumn(_TASK, F.least(F.coalesce(task, F.lit(0)), F.lit(count - 1)).cast("int"))
        .drop(*tasks.columns)
        .repartitionById(count, _TASK)
        .withColumn(_NTH, F.row_number().over(same))
        .where(F.col(_NTH) == 1)
        .drop(_NTH, FILE)
    )


def _written(data: DataFrame, place: str, run: str) -> tuple[dict[str, Any], dict[str, HourFile]]:
    """Write a file for each task and hour."""
    observed = Observation()
    names = [name for name in data.columns if name != _TASK]
    rows = (
        data.observe(observed, *_content(data.select(names)))
        .sortWithinPartitions(_TASK, "date", "hour", *_KEY)
        .select(*names, F.col("timestamp").alias(_TIME))
    )
    written = write_files(
        *(rows, place, "parquet"),
        prefix=prefix(run),
        partitions=("date", "hour"),
        times=_TIME,
        size=sys.maxsize,
    )
    files = {}
    for each in written:
        minutes = [(us or 0) // 60_000_000 for us in (each.oldest, each.newest)]
        files[each.path] = HourFile(each.length, each.rows, each.size, *minutes)
    return observed.get, files


def _read_back(spark: SparkSession, paths: Sequence[str]) -> dict[str, Any]:
    data = spark.read.options(**STRICT).parquet(*map(literal, paths))
    row = data.agg(*_content(data)).first()
    assert row
    return row.asDict()


def _content(data: DataFrame) -> list[Column]:
    """What two frames of the same rows have in common, whatever their order is."""
    names = sorted(
        field.name
        for field in data.schema
        if field.name not in ("date", "hour")
        and not any(kind in field.dataType.simpleString() for kind in _UNHASHABLE)
    )
    hashed = F.xxhash64(*names).cast("decimal(20,0)")
    return [F.count(F.lit(1)).alias("rows"), F.sum(hashed).alias("checksum")]
