"""A batch read of a staging: the messages of batches that no query will commit any more.

Nothing is claimed or changed. A batch that Spark has committed may be in the staging, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.log import EntryKind, damaged
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch


@dataclass(frozen=True, slots=True)
class StagedPartition(InputPartition):
    """A partition of a staged batch."""

    stream: str
    batch: int
    number: int


class StagingReader(DataSourceReader):
    """Reads all messages of a staging, with an empty text as their channel."""

    def __init__(self, place: str) -> None:
        self._place = place

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of all batches; raises OutputError."""
        store = open_store(self._place)
        with as_output_error(self._place):
            ledgers = [Ledger(store, stream) for stream in sorted(store.list(""))]
            return [
                StagedPartition(ledger.folder, batch, number)
                for ledger in ledgers
                for batch in ledger.kept()
                for number in ledger.partitions(batch)
            ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a partition. Raises OutputError."""
        assert isinstance(partition, StagedPartition)
        ledger = Ledger(open_store(self._place), partition.stream)
        entries = ledger.partition_log(partition.batch, partition.number)
        with as_output_error(self._place):
            segments = [each for each in entries.read_on() if each.kind is EntryKind.SEGMENT]
            if not segments:
                return
            plan = ledger.prepared(partition.batch)
            if plan is None:
                raise damaged(ledger.store.url(entries.path))
            quotas = plan.tasks[partition.number]
            entries = ledger.partition_log(partition.batch, partition.number, quotas)
            for segment in segments:
                yield from entries.rows(segment, "")
