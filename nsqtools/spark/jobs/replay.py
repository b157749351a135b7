"""``pipeline replay``: archives back into a topic.

Spark selects and orders the rows once, into numbered files in the staging directory. This process
then publishes them in batches, one after another, and records its position after each OK. If a run
ends early for any reason, the next run with the same settings continues it. The batch that was
being sent may then be published again, so each message arrives at least once. Messages get new ids
and timestamps.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.engine.producer import Producer
from nsqtools.errors import REFUSED_BODY, ConfigError, PublishError, ServerError
from nsqtools.policy.pace import Pace
from nsqtools.proto.commands import publish_many_size
from nsqtools.spark.interrupts import interruptible
from nsqtools.spark.jobs.guard import only_one
from nsqtools.spark.jobs.replayed import ReplayState, load, save
from nsqtools.spark.jobs.versions import Versions
from nsqtools.spark.lake.archives import open_file
from nsqtools.spark.lake.dataframes import view
from nsqtools.spark.lake.inputs import check_unchanged, find, real
from nsqtools.spark.lake.write import write_files
from nsqtools.spark.sparksession import first_line
from nsqtools.stores import open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.stores.places import below

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.config import ProducerConfig
    from nsqtools.names import Address
    from nsqtools.records.layout import Layout
    from nsqtools.spark.lake.inputs import Input, ProgressReport

__all__ = ["ReplaySettings", "Replayed", "is_staged", "publish", "reach", "stage"]

_PARTS = "parts"
_BATCH_BYTES = 1 << 20
_POLL = 0.2
_GRACE = 5.0
"""Seconds that the current batch gets after ``stop`` is set."""

_TERM = re.compile(r"\s*(\S.*?)(?:\s+(asc|desc))?\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """``inputs`` and ``layout`` are parameters of ``inputs.find``; ``staging`` is a directory, on
    any store.

    ``where`` is an SQL condition on the columns of ``dataframe.view``. ``order_by`` has one or more
    of these columns, separated by commas, each optionally followed by ``desc``. Both may be empty.
    ``rate`` is in messages per second, 0 for no limit.
    """

    inputs: tuple[str, ...]
    topic: str
    nsqds: tuple[Address, ...]
    staging: str
    config: ProducerConfig
    layout: Layout | None = None
    where: str = ""
    order_by: str = ""
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result for the selected ``rows``, of this run and the runs that it continued.

    nsqd has answered OK for ``published`` messages, ``before`` of them in earlier runs. It has
    permanently rejected ``refused`` messages, the first for this ``reason``. ``empty`` rows have no
    body to publish. If ``stopped``, the next run continues.
    """

    rows: int = 0
    published: int = 0
    before: int = 0
    refused: int = 0
    reason: str = ""
    empty: int = 0
    stopped: bool = False

    @property
    def left(self) -> int:
        """Rows that the next run has to publish."""
        return self.rows - self.published - self.refused - self.empty


def is_staged(settings: ReplaySettings) -> bool:
    """Whether ``publish`` can continue an earlier run, so that Spark is not needed.

    Raises ConfigError if the staging directory has an unfinished replay with other settings.
    """
    return _state(settings)[1] is not None


async def reach(settings: ReplaySettings) -> None:
    """Raise UnreachableError early, before Spark has done its work."""
    async with Producer(settings.nsqds, settings.config):
        pass


def stage(
    spark: SparkSession, settings: ReplaySettings, stop: threading.Event, report: ProgressReport
) -> None:
    """Write the selected rows to the staging directory, unless they are there.

    Raises StoppedError after ``stop``, ConfigError for invalid settings and inputs, RecordError for
    a damaged file, LockedError if another run uses the staging directory, OutputError, and NSQError
    for other errors of Spark.
    """
    root = real(settings.staging)
    with only_one(root, "--staging") as guard, as_output_error(root):
        guard.stops(stop)
        versions, state = _state(settings)
        if state:
            return
        found = find(settings.inputs, settings.layout, exclude=[root])
        open_store(root).delete(_PARTS)
        report("staging", 0, 0)
        with interruptible(spark, stop):
            chosen = _chosen(spark, settings, found)
            # A name of this run's own: tasks of a killed one may still write.
            written = write_files(chosen, below(root, _PARTS), "parquet", name=uuid4().hex)
        check_unchanged(found)
        guard.check()
        parts = sorted((_number(each.path), each.path, each.rows) for each in written)
        state = ReplayState(_identity(settings), [(path, rows) for _, path, rows in parts])
        report("staging", state.rows, state.rows)
        save(versions, state)


def publish(settings: ReplaySettings, stop: threading.Event, report: ProgressReport) -> Replayed:
    """Publish the staged rows from the position of the last run, then remove them.

    A message that nsqd permanently rejects is counted and skipped. Raises PublishError if no nsqd
    accepts messages, UnreachableError, LockedError, OutputError, and ConfigError if nothing is
    staged.
    """
    root = real(settings.staging)
    with only_one(root, "--staging") as guard, as_output_error(root):
        guard.stops(stop)
        versions, state = _state(settings)
        if not state:
            raise ConfigError(f"{root}: no staged replay to continue: stage it first")
        before = state.published
        finished = not stop.is_set() and asyncio.run(
            _publish(root, settings, versions, state, stop, report)
        )
        if finished:
            versions.remove()
            open_store(root).delete(_PARTS)
        guard.check()
    return Replayed(
        rows=state.rows,
        published=state.published,
        before=before,
        refused=state.refused,
        reason=state.reason,
        empty=state.passed - state.published - state.refused,
        stopped=not finished,
    )


def _state(settings: ReplaySettings) -> tuple[Versions, ReplayState | None]:
    root = real(settings.staging)
    versions = Versions(open_store(root, "--staging"), "replay", "replay.json")
    return versions, load(versions, root, _identity(settings))


def _identity(settings: ReplaySettings) -> dict[str, Any]:
    """What chooses the messages and their order: a run with the same goes on with them."""
    layout = settings.layout
    return {
        "inputs": sorted(map(real, settings.inputs)),
        "topic": settings.topic,
        "where": settings.where,
        "order_by": settings.order_by,
        "layout": [layout.format, layout.delimiter.hex()] if layout else None,
    }


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


async def _publish(
    root: str,
    settings: ReplaySettings,
    versions: Versions,
    state: ReplayState,
    stop: threading.Event,
    report: ProgressReport,
) -> bool:
    """Publish part by part; whether all is done. ``state`` is as in the store at any time."""
    loop = asyncio.get_running_loop()
    pace = Pace(settings.rate)
    total = state.rows
    limit = min(settings.config.max_body_size, _BATCH_BYTES)
    async with Producer(settings.nsqds, settings.config) as producer:
        while state.part < len(state.parts):
            path = below(root, _PARTS, state.parts[state.part][0])
            for rows, bodies in _batches(path, state.row, limit):
                start = 0
                while start < len(bodies):
                    end = start + pace.burst(len(bodies) - start)
                    await _rest(pace.delay(end - start, now=loop.time()), stop)
                    if stop.is_set():
                        return False
                    sent = bodies[start:end]
                    if not await _sent(producer, settings.topic, sent, state, stop):
                        return False
                    state.row = rows[end - 1] + 1
                    save(versions, state)
                    report("publishing", state.passed, total)
                    start = end
            state.part, state.row = state.part + 1, 0
            save(versions, state)
    report("publishing", state.passed, total)
    return True


def _batches(path: str, start: int, limit: int) -> Iterator[tuple[list[int], list[bytes]]]:
    """Bodies of a part from this row on, for one MPUB each, and their rows; no empty ones."""
    rows: list[int] = []
    bodies: list[bytes] = []
    size = 0
    for row, body in _bodies(path, start):
        if not body:
            continue
        if bodies and publish_many_size(len(bodies) + 1, size + len(body)) > limit:
            yield rows, bodies
            rows, bodies, size = [], [], 0
        rows.append(row)
        bodies.append(body)
        size += len(body)
    if bodies:
        yield rows, bodies


def _bodies(path: str, start: int) -> Iterator[tuple[int, bytes | None]]:
    """Bodies of a part from this row on, and their rows; one row group is in memory at a time."""
    at = 0
    with open_file(path) as source, pq.ParquetFile(source) as file:
        for number in range(file.num_row_groups):
            after = at + file.metadata.row_group(number).num_rows
            if start < after:
                group = file.read_row_group(number, columns=["body"])
                for row, body in enumerate(group.column(0), at):
                    if row >= start:
                        yield row, body.as_py()
            at = after


async def _rest(seconds: float, stop: threading.Event) -> None:
    """Let time pass, but no more of it once told to end."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0 and not stop.is_set():  # noqa: ASYNC110
        await asyncio.sleep(min(left, _POLL))


async def _sent(
    producer: Producer,
    topic: str,
    bodies: Sequence[bytes],
    state: ReplayState,
    stop: threading.Event,
) -> bool:
    """Publish and count; False if it was told to end and nobody has taken them soon after."""
    task = asyncio.ensure_future(producer.publish(topic, bodies))
    while not stop.is_set() and not task.done():
        await asyncio.wait({task}, timeout=_POLL)
    await asyncio.wait({task}, timeout=_GRACE)
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        return False
    refused = 0
    try:
        task.result()
    except PublishError as error:
        if not _blames_bodies(error):
            raise PublishError(
                f"{error}; {state.passed} of {state.rows} rows are done: run replay again to "
                "continue",
                error.refused,
                permanent=error.permanent,
            ) from error
        refused = len(error.refused)
        state.reason = state.reason or str(error)
    state.refused += refused
    state.published += len(bodies) - refused
    return True


def _blames_bodies(error: PublishError) -> bool:
    """Whether it is for the bodies alone that they were refused; else no other would be taken."""
    cause = error.__cause__
    by_nsqd = isinstance(cause, ServerError) and cause.code in REFUSED_BODY
    return error.permanent and (cause is None or by_nsqd)
