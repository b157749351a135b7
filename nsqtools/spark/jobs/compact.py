"""``pipeline compact``: archives to few sorted files per hour, each message once.

A message is identified by (topic, message_id, timestamp_ns), a record without them by its place.
Only hours with new inputs are rewritten, from their previous files and the new inputs. The new
files are read back and compared before they replace anything; ``compacted`` describes recovery
after a crash.
"""

from __future__ import annotations

import posixpath
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.interrupts import StoppedError, interruptible
from nsqtools.spark.jobs.compacted import CompactOutput, HourFile, Known
from nsqtools.spark.jobs.guard import only_one
from nsqtools.spark.lake.dataframes import FILE, STRICT, dated, frame, is_keyed, united
from nsqtools.spark.lake.inputs import Input, check_unchanged, digests, find, real
from nsqtools.spark.lake.write import write_files
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import OURS, below, literal

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.records.layout import Layout
    from nsqtools.spark.lake.inputs import ProgressReport

__all__ = ["CompactSettings", "Compacted", "check_apart", "compact"]

_NAME, _FIRST, _SLICES = "_nsqtools_hour", "_nsqtools_first", "_nsqtools_slices"
_TASK, _NTH = "_nsqtools_task", "_nsqtools_nth"
_HOUR = "date=%s/hour=%02d"
_KEY = ("timestamp", "timestamp_ns", "topic", "message_id", "source_file", "source_record")
_CHOICE = ("attempts", "channel", "nsqd", "body")
"""Of rows that are one message the least by these is kept, so that every run keeps the same."""

_HOUR_US = 3_600_000_000
_UNHASHABLE = ("map<", "variant")


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """``inputs`` and ``layout`` are parameters of ``inputs.find``.

    Files that changed within the last ``older_than`` seconds are left for a later run.
    ``file_size`` is the maximum of bytes of bodies in a file, before compression.
    """

    inputs: tuple[str, ...]
    output: str
    layout: Layout | None = None
    older_than: float = 0.0
    delete_inputs: bool = False
    file_size: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a run.

    ``inputs`` files with ``read`` records were read; an earlier run had read ``known`` others. The
    run wrote ``hours`` with ``files`` and ``rows``, and dropped ``duplicates``. ``kept`` inputs
    could not be deleted.
    """

    inputs: int = 0
    known: int = 0
    read: int = 0
    hours: int = 0
    files: int = 0
    rows: int = 0
    duplicates: int = 0
    deleted: int = 0
    kept: int = 0


class _Content(NamedTuple):
    """Rows, and the sum of their hashes."""

    rows: int
    checksum: Any


def check_apart(settings: CompactSettings) -> None:
    """Raise ConfigError if an input contains the output, or the output an input, by any path.

    Readers of such an input would see each message twice; and files in the output are not inputs.
    """
    root = real(settings.output)
    for place in settings.inputs:
        path = real(place)
        if Path(root).is_relative_to(path):
            raise ConfigError(
                f"--output {settings.output}: is within --input {place}, whose readers would see "
                "messages twice: choose a directory outside it"
            )
        if Path(path).is_relative_to(root):
            raise ConfigError(
                f"--input {place}: is within --output {settings.output}, where the result goes: "
                "omit it"
            )


def compact(
    spark: SparkSession, settings: CompactSettings, stop: threading.Event, report: ProgressReport
) -> Compacted:
    """Merge new inputs into the output.

    ``stop`` ends the run soon with StoppedError, unless the hours are about to be replaced. Raises
    ConfigError for invalid settings, inputs and outputs; RecordError for a file that is damaged or
    still written; LockedError if another run uses the output; OutputError if the output cannot be
    written; and NSQError for other errors of Spark. After an error the output is unchanged, apart
    from outstanding work of a killed run, which is completed.
    """
    check_apart(settings)
    root = real(settings.output)
    with only_one(below(root, OURS), "--output") as guard, as_output_error(root):
        guard.stops(stop)
        try:
            return _Compaction(spark, settings, stop, report, CompactOutput(root)).run()
        except StoppedError:
            guard.check()
            raise


class _Compaction:
    """One run, under the lock of its output."""

    def __init__(
        self,
        spark: SparkSession,
        settings: CompactSettings,
        stop: threading.Event,
        report: ProgressReport,
        output: CompactOutput,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._stop = stop
        self._report = report
        self._output = output

    def run(self) -> Compacted:
        settings, output = self._settings, self._output
        until = time.time_ns() - round(settings.older_than * 1e9)
        limit = until if settings.older_than else None
        found = find(settings.inputs, settings.layout, exclude=[output.place], until=limit)
        new, known = output.divide(found)
        done = self._merge(new) if new else Compacted()
        deleted = kept = 0
        if settings.delete_inputs:
            self._report("deleting", 0, len(found))
            deleted, kept = output.delete(found)
        return replace(done, known=len(known), deleted=deleted, kept=kept)

    def _merge(self, new: Sequence[Input]) -> Compacted:
        made = self._output.begin()
        before = self._output.hours.copy()
        try:
            with interruptible(self._spark, self._stop):
                facts = _InputTotals(new)
                hours = self._make(new, facts, *made)
            inputs = facts.known()
            if self._stop.is_set():
                raise StoppedError
        except BaseException:
            self._output.discard()
            raise
        self._output.commit(made, hours, inputs)
        rows = sum(part.rows for parts in hours.values() for part in parts.values())
        there = sum(part.rows for hour in hours for part in before.get(hour, {}).values())
        return Compacted(
            inputs=len(new),
            read=facts.rows,
            hours=len(hours),
            files=sum(map(len, hours.values())),
            rows=rows,
            duplicates=facts.rows + there - rows,
        )

    def _make(
        self, new: Sequence[Input], facts: _InputTotals, place: str, name: str
    ) -> dict[str, dict[str, HourFile]]:
        """Write all hours of new inputs to a place, with what these have; their files.

        The inputs are read twice, because what they need in memory or on disk has no bound.
        """
        self._report("reading", 0, len(new))
        data = dated(frame(self._spark, new))
        facts.gather(data)
        self._report("reading", len(new), len(new))
        sizes = facts.sizes()
        if not sizes:
            return {}
        old = []
        rows = facts.rows
        for hour in sizes:
            for file, part in self._output.hours.get(hour, {}).items():
                path = below(self._output.place, hour, file)
                old.append(Input(path, part.size, 0, "parquet", self._output.place))
                sizes[hour] += part.raw or part.size
                rows += part.rows
        self._report("writing", 0, rows)
        parts = [data, dated(frame(self._spark, old))] if old else [data]
        tasks, count = self._tasks(sizes)
        merged = _merged(united(parts), tasks, count)
        written, hours = _write(merged, place, name, self._settings.file_size)
        self._report("verifying", 0, written.rows)
        paths = [below(place, hour, part) for hour in hours for part in hours[hour]]
        if (again := _read_back(self._spark, paths)) != written:
            raise OutputError(
                f"{place}: {written.rows} rows were written, but {again.rows} or different rows "
                "were read back: check the disk and run compact again"
            )
        return hours

    def _tasks(self, sizes: Mapping[str, int]) -> tuple[DataFrame, int]:
        """The tasks of each hour by its size, as ``_merged`` takes them, and how many there are."""
        rows = []
        count = 0
        for hour, size in sorted(sizes.items()):
            slices = max(-(-size // self._settings.file_size), 1)
            rows.append((hour, count, slices))
            count += slices
        schema = f"{_NAME} string, {_FIRST} int, {_SLICES} int"
        return self._spark.createDataFrame(rows, schema), count


class _InputTotals:
    """What was read of each input."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._rows: dict[str, int] = defaultdict(int)
        self._unkeyed: dict[str, int] = defaultdict(int)
        self._hours: dict[str, dict[str, int]] = defaultdict(dict)

    @property
    def rows(self) -> int:
        """Rows of all inputs."""
        return sum(self._rows.values())

    def gather(self, data: DataFrame) -> None:
        """Read it all."""
        size = F.sum(F.octet_length("body")).alias("size")
        unkeyed = F.count_if(~is_keyed()).alias("unkeyed")
        counts = data.groupBy(FILE, "date", "hour").agg(F.count("*").alias("rows"), size, unkeyed)
        for row in counts.collect():
            path = row[FILE]
            self._rows[path] += row["rows"]
            self._unkeyed[path] += row["unkeyed"]
            self._hours[path][_HOUR % (row["date"], row["hour"])] = row["size"] or 0
        if strange := self._rows.keys() - {each.path for each in self._inputs}:
            raise ConfigError(f"{min(strange)}: Spark calls this file so: give --input as it does")

    def sizes(self) -> dict[str, int]:
        """Bytes of bodies by hour."""
        found: dict[str, int] = defaultdict(int)
        for hours in self._hours.values():
            for hour, size in hours.items():
                found[hour] += size
        return found

    def known(self) -> dict[str, Known]:
        """What is to be known of the inputs; raises RecordError if one is not as it was."""
        check_unchanged(self._inputs)
        placed = [each for each in self._inputs if self._has_places(each)]
        sums = dict(zip(placed, digests(placed), strict=True))
        return {
            each.path: Known(
                size=each.size,
                mtime_ns=each.mtime_ns,
                rows=each.skip + self._rows[each.path],
                hours=tuple(self._hours[each.path]),
                sha256=sums.get(each, ""),
            )
            for each in self._inputs
        }

    def _has_places(self, each: Input) -> bool:
        """Whether it has rows that only their place identifies, or may get some."""
        empty = each.kind == "records" and not self._rows[each.path]
        return bool(self._unkeyed[each.path]) or empty


def _merged(data: DataFrame, tasks: DataFrame, count: int) -> DataFrame:
    """Each message once, and the rows of a task in the order to write them.

    ``tasks`` has the first of the ``count`` tasks of each hour, and how many slices of time, one a
    task, the hour has.
    """
    for name in ("source_file", "source_record"):
        data = data.withColumn(name, F.when(~is_keyed(), F.col(name)))
    hour = F.format_string(_HOUR, F.col("date").cast("string"), "hour")
    elapsed = F.pmod(F.unix_micros("timestamp"), F.lit(_HOUR_US)) / F.lit(_HOUR_US)
    task = (F.col(_FIRST) + F.floor(elapsed * F.col(_SLICES))).cast("int")
    same = Window.partitionBy(_TASK, "date", "hour", *_KEY).orderBy(*_CHOICE)
    return (
        data.join(F.broadcast(tasks), hour == F.col(_NAME), "left")
        .withColumn(_TASK, F.coalesce(task, F.lit(0)))
        .drop(*tasks.columns)
        .repartitionById(count, _TASK)
        .withColumn(_NTH, F.row_number().over(same))
        .where(F.col(_NTH) == 1)
        .drop(_NTH, FILE)
    )


def _write(
    data: DataFrame, place: str, name: str, file_size: int
) -> tuple[_Content, dict[str, dict[str, HourFile]]]:
    observed = Observation()
    names = [name for name in data.columns if name != _TASK]
    rows = (
        data.observe(observed, *_content(data.select(names)))
        .sortWithinPartitions(_TASK, "date", "hour", *_KEY)
        .select(names)
    )
    written = write_files(
        rows, place, "parquet", name=name, partitions=("date", "hour"), size=file_size
    )
    hours: dict[str, dict[str, HourFile]] = {}
    store = open_store(place)
    for each in written:
        hour = "/".join(each.path.split("/")[:2])
        size = store.stat(each.path).size
        hours.setdefault(hour, {})[posixpath.relpath(each.path, hour)] = HourFile(
            size, each.rows, each.size
        )
    return _Content(**observed.get), hours


def _read_back(spark: SparkSession, paths: Sequence[str]) -> _Content:
    data = spark.read.options(**STRICT).parquet(*map(literal, paths))
    row = data.agg(*_content(data)).first()
    assert row
    return _Content(**row.asDict())


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
