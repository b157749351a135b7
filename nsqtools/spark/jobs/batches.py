"""The files of the batches of a stream, each batch once."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.lake.delta import DeltaOutput
from nsqtools.spark.lake.write import summary, write_files
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from nsqtools.spark.jobs.checkpoint import Stamp
    from nsqtools.spark.source.plans import BatchPlan

_PER_TASK = 10_000
"""Messages for which another task is worth another file."""


class BatchFiles:
    """Writes batches of a checkpoint to an output, as ``form``: parquet, json or delta.

    With ``evolve``, a table gets the columns that it lacks. Raises ConfigError if the package for
    the format is missing.
    """

    def __init__(self, output: str, form: str, stamp: Stamp, *, evolve: bool = False) -> None:
        self._output = output
        self._form = "parquet" if form == "delta" else form
        self._stamp = stamp
        self._table = DeltaOutput(output, evolve=evolve) if form == "delta" else None

    def check(self, rows: DataFrame, flag: str, times: str = "") -> None:
        """Raise ConfigError if the output cannot take these rows without the column ``times``.

        ``flag`` is the option that chooses the columns.
        """
        if self._table:
            self._table.check(rows.drop(times).schema)
            return
        for name in rows.columns:
            if name.lower() == "batch":
                raise ConfigError(
                    f"{flag}: {name} is the name of a directory: rename the column with AS"
                )

    def write(
        self,
        rows: DataFrame,
        query: str,
        number: int,
        *,
        few: bool = True,
        partitions: Sequence[str] = (),
        times: str = "",
    ) -> Written:
        """Write a batch; it replaces files of an earlier attempt.

        A table that has the batch already stays as it is, and no rows are written. With ``few``,
        small batches are written by fewer tasks than they have partitions. ``partitions`` and
        ``times`` are arguments of ``write_files``; a table that exists has its own partitions.
        Raises OutputError.
        """
        name, table = named(query, number), self._table
        is_there = table is not None and table.has(query, number)
        if self._stamp.changed:
            if not is_there:
                remove_batch(self._output, name)
            self._stamp.confirm()
        if is_there:
            return Written(0)
        if table:
            partitions = table.partitions(partitions)
            rows = rows.toDF(*table.names(rows.columns))
        tasks = tasks_for(self._stamp.checkpoint.planned() if few else [])
        # A run may have been killed within this batch, and some SQL has other tasks each time.
        files = write_files(
            *(rows, self._output, self._form),
            name=name,
            tasks=tasks,
            partitions=partitions,
            times=times,
        )
        if table:
            table.commit(files, rows.drop(times).schema, partitions, query, number)
        return summary(files)


def tasks_for(plans: Sequence[BatchPlan]) -> int | None:
    """Return the number of tasks that write a batch, at most as many as receive; None without one.

    It follows from the plan alone, so a retry has the same tasks on any machine.
    """
    count = sum(plan.messages for plan in plans)
    return min(sum(len(plan.tasks) for plan in plans), -(-count // _PER_TASK)) or None


def named(query: str, batch: int) -> str:
    """Return the name of a batch's directories: 16 digits of the query's id, and the number.

    The id prevents checkpoints that write to one output from replacing each other's batches. Spark
    chooses it at random, and these digits have 60 random bits: the probability that two of a
    million checkpoints share them is 1 in 2,000,000. With 8 digits it would be 1 in 9,000 for a
    thousand checkpoints.
    """
    return f"{query.replace('-', '')[:16]}-{batch:08d}"


def remove_batch(output: str, name: str) -> None:
    """Remove the files of a batch, wherever they are in an output. Raises OutputError."""
    store = open_store(output, "--output")
    with as_output_error(output):
        folders = {posixpath.dirname(each.path) for each in store.files()}
        for folder in sorted(folders):
            if posixpath.basename(folder) == f"batch={name}":
                store.delete(folder)
