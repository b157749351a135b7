"""The sink ``nsq``: rows to topics, at least once.

A task publishes its rows with ``engine.Producer`` and succeeds once nsqd has answered OK for all of
them. A failed task has published some rows, and its next attempt publishes them again: messages may
arrive twice, but none is lost. Only the driver queries nsqlookupd.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType

from nsqtools.engine.lookup import nodes
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, NSQError, RecordError, UnreachableError
from nsqtools.names import check_name
from nsqtools.spark.properties import refuse_speculative_task
from nsqtools.spark.source.sourceoptions import parse_sink, respelled, with_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from nsqtools.names import Address
    from nsqtools.spark.source.sourceoptions import SinkSettings

log = logging.getLogger(__name__)

_PUBLISH_BYTES = 1 << 20
"""Bodies of one publish: many enough for one OK, few enough that several are under way."""
_UNDER_WAY = 8
"""Publishes at once, or two for each nsqd if that is more."""
_LOOKUP_TIMEOUTS = (2.0, 10.0)
"""For the connection and for the whole request, in seconds."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The positions of body and topic in a row, and the name of the body's column.

    ``topic`` is None if one topic serves all rows.
    """

    body: int
    body_name: str
    topic: int | None

    @classmethod
    def find(cls, schema: StructType, topic: str) -> Columns:
        """Find the column ``body`` or ``value``, and ``topic`` unless ``topic`` is given.

        Names are compared without case, as in Spark. Raises ConfigError.
        """
        known = {field.name.lower(): (at, field) for at, field in enumerate(schema.fields)}
        found = known.get("body") or known.get("value")
        if not found:
            raise ConfigError(
                "sink nsq: expected a column body or value, found "
                f"{', '.join(schema.fieldNames()) or 'no columns'}: select it as body"
            )
        at, field = found
        if not isinstance(field.dataType, (BinaryType, StringType)):
            raise ConfigError(
                f"sink nsq: column {field.name} is {field.dataType.simpleString()}: expected "
                "binary or string, as from to_json(struct(*))"
            )
        if topic:
            check_name("topic", topic)
            return cls(at, field.name, None)
        if "topic" not in known:
            raise ConfigError("sink nsq: set the option topic, or select a column topic")
        place, column = known["topic"]
        if not isinstance(column.dataType, StringType):
            raise ConfigError(
                f"sink nsq: column {column.name} is {column.dataType.simpleString()}: "
                "expected string"
            )
        return cls(at, field.name, place)


@dataclass(frozen=True, slots=True)
class TaskCommit(WriterCommitMessage):
    """A task's report to the driver."""

    messages: int


class _TaskWriter:
    """What both kinds of writer do; the driver makes it and sends it to executors.

    ``overwrite`` is set for the mode ``overwrite`` and the output mode ``complete``. Raises
    ConfigError for invalid options or columns, UnreachableError if no nsqlookupd answers.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        settings = parse_sink(options)
        if overwrite:
            raise ConfigError("sink nsq: a topic cannot be overwritten: use mode append")
        self._columns = Columns.find(schema, settings.topic)
        if settings.lookupds:
            settings = replace(settings, nsqds=asyncio.run(_all_nsqds(settings)))
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task; raises NSQError unless nsqd has accepted all of them."""
        refuse_speculative_task()
        try:
            return TaskCommit(asyncio.run(self._publish(iterator)))
        except NSQError as error:
            raise respelled(error, flags=self._settings.flags)  # noqa: B904 - it is the same error

    def abort(self, messages: Sequence[Any], *_: int) -> None:
        """Log that the job, or the batch, has failed; published messages stay."""
        count = sum(each.messages for each in messages if each is not None)
        log.warning("the write failed after publishing at least %d messages", count)

    async def _publish(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Rows are read in a thread while what came before them is on its way."""
        loop = asyncio.get_running_loop()
        config = with_secret(self._settings)
        most = max(_UNDER_WAY, 2 * len(self._settings.nsqds))
        under_way: set[asyncio.Task[None]] = set()
        count = 0
        async with Producer(self._settings.nsqds, config) as producer:
            while (batch := await loop.run_in_executor(None, next, batches, None)) is not None:
                for topic, bodies in split(batch, self._columns, self._settings.topic, count):
                    under_way.add(loop.create_task(producer.publish(topic, bodies)))
                    if len(under_way) >= most:
                        under_way = await _fewer(under_way)
                count += batch.num_rows
            while under_way:
                under_way = await _fewer(under_way)
        return count


async def _fewer(under_way: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that are left when one is done; raises the error of one that failed."""
    done, left = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return left


async def _all_nsqds(settings: SinkSettings) -> tuple[Address, ...]:
    """All that the nsqlookupds know, whatever topics they have."""
    found = await nodes(settings.lookupds, settings.config, _LOOKUP_TIMEOUTS)
    nsqds = tuple(sorted(each.tcp for each in found))
    if not nsqds:
        names = ", ".join(settings.lookupds)
        raise UnreachableError(f"nsqlookupd {names} knows no nsqd to publish to")
    return nsqds


def split(
    batch: pa.RecordBatch, columns: Columns, topic: str, before: int = 0
) -> Iterator[tuple[str, list[bytes]]]:
    """Yield publishes of about 1 MiB: a topic, and bodies in the order of the rows.

    ``before`` is the number of earlier rows of the task, for errors. Raises RecordError, before the
    first publish, for a row without a body or a topic.
    """
    body = _as_binary(batch.column(columns.body))
    _check(body, columns.body_name, before)
    topics = None if columns.topic is None else batch.column(columns.topic)
    if topics is not None:
        _check(topics, "topic", before)
    step = max(1, batch.num_rows * _PUBLISH_BYTES // max(1, body.nbytes))
    for start in range(0, batch.num_rows, step):
        bodies = body.slice(start, step).to_pylist()
        if topics is None:
            yield topic, bodies
            continue
        by_topic: dict[str, list[bytes]] = defaultdict(list)
        for name, each in zip(topics.slice(start, step).to_pylist(), bodies, strict=True):
            by_topic[name].append(each)
        yield from by_topic.items()


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _check(column: pa.Array, name: str, before: int) -> None:
    """Raise RecordError if a row is null or empty there."""
    lengths = pc.fill_null(pc.binary_length(column), 0)
    if len(column) and not pc.min(lengths).as_py():
        at = pc.index(lengths, 0).as_py()
        what = "empty" if column[at].is_valid else "null"
        raise RecordError(
            f"sink nsq: column {name} is {what} in row {before + at + 1} of a task: remove "
            f"such rows, for example with where('length({name}) > 0')"
        )


class NsqWriter(_TaskWriter, DataSourceArrowWriter):
    """The writer of ``df.write.format("nsq")``."""


class NsqStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream.format("nsq")``; a repeated batch is published again."""
