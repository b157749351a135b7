"""``pipeline replay``: archives back into a topic.

Spark selects and orders the rows once, into numbered files in the staging directory. This process
then publishes them in batches, one after another, and records its position after each OK. If a run
ends early for any reason, the next run with the same settings continues it. The batch that was
being sent may then be published again, so each message arrives at least once. Messages get new ids
and timestamps.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from nsqtools.engine.producer import Producer
from nsqtools.errors import REFUSED_BODY, ConfigError, PublishError, ServerError
from nsqtools.policy.pace import Pace
from nsqtools.proto.commands import publish_many_size
from nsqtools.spark.dataframe import frame, view
from nsqtools.spark.folders import sync
from nsqtools.spark.inputs import find, parquet
from nsqtools.spark.interrupts import interruptible
from nsqtools.spark.mounted import held, real
from nsqtools.spark.places import as_url, local
from nsqtools.spark.replayed import ReplayState, forget, load, save
from nsqtools.spark.sparksession import first_line

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from nsqtools.config import ProducerConfig
    from nsqtools.names import Address
    from nsqtools.records.layout import Layout
    from nsqtools.spark.inputs import Input, ProgressReport

__all__ = ["LOCK", "ReplaySettings", "Replayed", "is_staged", "publish", "reach", "stage"]

LOCK = "replay.lock"
"""The lock file of a staging directory."""

_PARTS = "parts"
_BATCH_BYTES = 1 << 20
_ROWS = 1024
_POLL = 0.2
_GRACE = 5.0
"""Seconds that the current batch gets after ``stop`` is set."""

_TERM = re.compile(r"\s*(\S.*?)(?:\s+(asc|desc))?\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """``inputs`` and ``layout`` are parameters of ``inputs.find``; ``staging`` is a directory.

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
    return load(_root(settings), _identity(settings)) is not None


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
    root = _root(settings)
    with held(root, LOCK):
        if load(root, _identity(settings)):
            return
        found = find(settings.inputs, settings.layout, exclude=[root])
        _check_bodies(found)
        folder = os.path.join(root, _PARTS)
        shutil.rmtree(folder, ignore_errors=True)
        report("staging", 0, 0)
        with interruptible(spark, stop):
            _chosen(spark, settings, found).write.option("compression", "zstd").parquet(
                as_url(folder)
            )
        for each in found:
            each.check_same()
        state = ReplayState(_identity(settings), _numbered(folder))
        report("staging", state.rows, state.rows)
        save(root, state)


def publish(settings: ReplaySettings, stop: threading.Event, report: ProgressReport) -> Replayed:
    """Publish the staged rows from the position of the last run, then remove them.

    A message that nsqd permanently rejects is counted and skipped. Raises PublishError if no nsqd
    accepts messages, UnreachableError, LockedError, OutputError, and ConfigError if nothing is
    staged.
    """
    root = _root(settings)
    with held(root, LOCK):
        state = load(root, _identity(settings))
        if not state:
            raise ConfigError(f"{root}: no staged replay to continue: stage it first")
        before = state.published
        finished = not stop.is_set() and asyncio.run(_publish(root, settings, state, stop, report))
        if finished:
            forget(root)
            shutil.rmtree(os.path.join(root, _PARTS), ignore_errors=True)
    return Replayed(
        rows=state.rows,
        published=state.published,
        before=before,
        refused=state.refused,
        reason=state.reason,
        empty=state.passed - state.published - state.refused,
        stopped=not finished,
    )


def _root(settings: ReplaySettings) -> str:
    return real(settings.staging, "replay must stage on a mounted file system")


def _identity(settings: ReplaySettings) -> dict[str, Any]:
    """What chooses the messages and their order: a run with the same goes on with them."""
    layout = settings.layout
    return {
        "inputs": sorted(os.path.realpath(local(each) or each) for each in settings.inputs),
        "topic": settings.topic,
        "where": settings.where,
        "order_by": settings.order_by,
        "layout": [layout.format, layout.delimiter.hex()] if layout else None,
    }


def _check_bodies(found: Sequence[Input]) -> None:
    for each in found:
        if each.schema and "body" not in [name.lower() for name in each.schema.names]:
            raise ConfigError(f"{each.path}: has no column body to publish")


def _chosen(spark: SparkSession, settings: ReplaySettings, found: Sequence[Input]) -> DataFrame:
    """The bodies to publish, in their order."""
    data = view(frame(spark, found))
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


def _numbered(folder: str) -> list[tuple[str, int]]:
    """The parts in their order, with their rows; they last from now on."""
    names = [name for name in os.listdir(folder) if name.startswith("part-")]
    names.sort(key=lambda name: (int(name.split("-")[1]), name))
    sync(Path(folder).parent, [Path(folder)])
    return [(name, parquet(os.path.join(folder, name)).rows) for name in names]


async def _publish(
    root: str,
    settings: ReplaySettings,
    state: ReplayState,
    stop: threading.Event,
    report: ProgressReport,
) -> bool:
    """Publish part by part; whether all is done. ``state`` is as on disk at any time."""
    loop = asyncio.get_running_loop()
    pace = Pace(settings.rate)
    total = state.rows
    limit = min(settings.config.max_body_size, _BATCH_BYTES)
    async with Producer(settings.nsqds, settings.config) as producer:
        while state.part < len(state.parts):
            path = os.path.join(root, _PARTS, state.parts[state.part][0])
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
                    save(root, state)
                    report("publishing", state.passed, total)
                    start = end
            state.part, state.row = state.part + 1, 0
            save(root, state)
    report("publishing", state.passed, total)
    return True


def _batches(path: str, start: int, limit: int) -> Iterator[tuple[list[int], list[bytes]]]:
    """Bodies of a part from this row on, for one MPUB each, and their rows; no empty ones."""
    rows: list[int] = []
    bodies: list[bytes] = []
    size = at = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS, columns=["body"]):
            for row, body in enumerate(batch.column(0).to_pylist(), at):
                if row < start or not body:
                    continue
                if bodies and publish_many_size(len(bodies) + 1, size + len(body)) > limit:
                    yield rows, bodies
                    rows, bodies, size = [], [], 0
                rows.append(row)
                bodies.append(body)
                size += len(body)
            at += batch.num_rows
    if bodies:
        yield rows, bodies


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
