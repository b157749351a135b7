"""The files of the batches of a stream, each batch once."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqtools.errors import ConfigError
from nsqtools.spark.jobs.progress import Written
from nsqtools.spark.lake.tables import Token
from nsqtools.spark.lake.write import summary, write_files
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import ICEBERG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from nsqtools.spark.jobs.checkpoint import Stamp
    from nsqtools.spark.lake.tables import LakeTable
    from nsqtools.spark.source.plans import BatchPlan

_PER_TASK = 10_000
"""Messages for which another task is worth another file."""


@dataclass(frozen=True, slots=True)
class LakeOutput:
    """Where rows go, as ``format``: parquet, json, delta or iceberg.

    ``place`` is a path or URL, for iceberg the name of a table of ``catalog``. With ``evolve``, a
    table gets the columns that it lacks.
    """

    place: str
    format: str = "parquet"
    catalog: str = ""
    evolve: bool = False

    @property
    def id(self) -> str:
        """The place, with its catalog."""
        return f"{ICEBERG}:{self.catalog}/{self.place}" if self.catalog else self.place

    @property
    def files(self) -> str:
        """The format of the files: parquet or json."""
        return "json" if self.format == "json" else "parquet"

    def open(self) -> LakeTable | None:
        """Return the table; None for an output of files alone.

        Raises ConfigError if its package is missing, or for an unknown catalog.
        """
        if self.format == "delta":
            from nsqtools.spark.lake.delta import DeltaTable

            return DeltaTable(self.place, evolve=self.evolve)
        if self.format == "iceberg":
            from nsqtools.spark.lake.iceberg import IcebergTable

            return IcebergTable(self.catalog, self.place, evolve=self.evolve)
        return None


class BatchFiles:
    """Writes batches of a checkpoint to an output. Raises what ``LakeOutput.open`` raises."""

    def __init__(self, output: LakeOutput, stamp: Stamp) -> None:
        self._output = output
        self._stamp = stamp
        self._table = output.open()

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

        A table that has the batch already stays as it is, and no rows are written; files of earlier
        attempts are not in it, and stay until the table's own maintenance. With ``few``,
        small batches are written by fewer tasks than they have partitions. ``partitions`` and
        ``times`` are arguments of ``write_files``; a table that exists has its own partitions.
        Raises OutputError.
        """
        name, token, table = named(query, number), Token(query, number), self._table
        if table and table.has(token):
            self._stamp.confirm()
            return Written(0)
        place = self._output.place
        if table:
            rows = table.spelled(rows)
            schema = rows.drop(times).schema
            place, rows, partitions = table.prepare(rows, schema, partitions)
            name += f"-{uuid4().hex[:8]}"  # a late task of this attempt changes no committed file
        elif self._stamp.changed:
            remove_batch(place, name)
        self._stamp.confirm()
        tasks = tasks_for(self._stamp.checkpoint.planned() if few else [])
        # A run may have been killed within this batch, and some SQL has other tasks each time.
        files = write_files(
            *(rows, place, self._output.files),
            name=name,
            tasks=tasks,
            partitions=partitions,
            times=times,
        )
        if table:
            table.commit(files, schema, partitions, token)
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
