"""The sink ``nsq``: rows to topics, at least once.

A task publishes its rows over ``engine.Producer`` and succeeds when nsqd has said OK to all of
them. A task that fails has published some already, which nothing can take back, and so does its
next try: messages may arrive twice, never not at all. ``commit`` and ``abort`` have nothing to do.
The driver asks nsqlookupd, not the executors.
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

from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, NSQError, RecordError, UnreachableError
from nsqtools.names import check_name
from nsqtools.spark.sourceoptions import parse_sink, respelled, with_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from nsqtools.names import Address
    from nsqtools.spark.sourceoptions import SinkSettings

log = logging.getLogger(__name__)

_PUBLISH_BYTES = 1 << 20
"""Bodies of one publish: many enough for one OK, few enough that several are under way."""
_UNDER_WAY = 8
"""Publishes at once, or two for each nsqd if that is more."""
_LOOKUP_LIMITS = {"connect_timeout": 2.0, "request_timeout": 10.0}


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row has its body and its topic: positions, and the names for errors.

    ``topic`` is None where one topic serves all rows.
    """

    body: int
    body_name: str
    topic: int | None

    @classmethod
    def find(cls, schema: StructType, topic: str) -> Columns:
        """Columns ``body`` or ``value``, and ``topic`` unless one is given; others are ignored.

        Names are compared as Spark does, without case. Raises ConfigError.
        """
        known = {field.name.lower(): (at, field) for at, field in enumerate(schema.fields)}
        found = known.get("body") or known.get("value")
        if not found:
            raise ConfigError(
                "sink nsq: expected a column body, or value, among "
                f"{', '.join(schema.fieldNames()) or 'no columns'}: name it by selecting it as body"
            )
        at, field = found
        if not isinstance(field.dataType, (BinaryType, StringType)):
            raise ConfigError(
                f"sink nsq: column {field.name} is {field.dataType.simpleString()}: "
                "expected binary or string, as by to_json(struct(*))"
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
    """What a task tells the driver."""

    messages: int


@dataclass(frozen=True, slots=True)
class Publishing:
    """All that a task needs to publish its rows; goes to executors."""

    settings: SinkSettings
    columns: Columns

    @classmethod
    def plan(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> Publishing:
        """On the driver, before anything is published.

        Raises ConfigError for wrong options or columns, UnreachableError if no nsqlookupd answers.
        """
        settings = parse_sink(options)
        if overwrite:
            raise ConfigError("sink nsq: a topic cannot be overwritten: use mode append")
        columns = Columns.find(schema, settings.topic)
        if settings.lookupds:
            nsqds = asyncio.run(_all_nsqds(settings))
            settings = replace(settings, nsqds=nsqds)
        return cls(settings, columns)

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Publish all rows; raises NSQError unless nsqd has taken them all."""
        try:
            return TaskCommit(asyncio.run(self._publish(batches)))
        except NSQError as error:
            raise respelled(error, flags=self.settings.flags)  # noqa: B904 - it is the same error

    async def _publish(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Rows are read in a thread while what came before them is on its way."""
        loop = asyncio.get_running_loop()
        config = with_secret(self.settings)
        most = max(_UNDER_WAY, 2 * len(self.settings.nsqds))
        under_way: set[asyncio.Task[None]] = set()
        count = 0
        async with Producer(self.settings.nsqds, config) as producer:
            while (batch := await loop.run_in_executor(None, next, batches, None)) is not None:
                for topic, bodies in split(batch, self.columns, self.settings.topic, count):
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
    from nsqtools.engine.lookup import ask_lookupds
    from nsqtools.net.http.daemons import Lookupd, union_producers
    from nsqtools.net.tls import http_context

    tls = http_context(settings.config)
    answers = await ask_lookupds(settings.lookupds, Lookupd.nodes, tls=tls, **_LOOKUP_LIMITS)
    nsqds = tuple(sorted(union_producers(answers.values)))
    if not nsqds:
        names = ", ".join(settings.lookupds)
        raise UnreachableError(f"nsqlookupd {names} knows no nsqd to publish to")
    return nsqds


def split(
    batch: pa.RecordBatch, columns: Columns, topic: str, before: int = 0
) -> Iterator[tuple[str, list[bytes]]]:
    """Publishes of about 1 MiB: a topic, and bodies in the order of the rows.

    ``before`` rows of the task came earlier, for errors. Raises RecordError, before the first, for
    a row without a body or a topic.
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
            f"sink nsq: column {name} is {what} in row {before + at + 1} of a task: "
            f"drop such rows, as by where('length({name}) > 0')"
        )


class _TaskWriter:
    """Both kinds of writer."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of a task."""
        return self._publishing.write(iterator)


class NsqWriter(_TaskWriter, DataSourceArrowWriter):
    """``df.write.format("nsq")``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks succeeded."""
        log.info("%d messages published", _count(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The job failed; what was published stays so."""
        log.warning("the job failed: at least %d messages are published", _count(messages))


class NsqStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``; a batch that is run again is published again."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch succeeded."""
        log.info("batch %d: %d messages published", batchId, _count(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The micro-batch failed; what was published stays so, and is published again."""
        count = _count(messages)
        log.warning("batch %d failed: at least %d messages are published", batchId, count)


def _count(messages: Sequence[Any]) -> int:
    return sum(each.messages for each in messages if each is not None)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> NsqWriter:
    """As ``DataSource.writer``; raises ConfigError or UnreachableError."""
    return NsqWriter(Publishing.plan(options, schema, overwrite))


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> NsqStreamWriter:
    """As ``DataSource.streamWriter``; raises ConfigError or UnreachableError.

    A stream is never asked to overwrite: ``overwrite`` stands for its output mode ``complete``.
    """
    return NsqStreamWriter(Publishing.plan(options, schema, overwrite))
