"""The streaming queries of ``archive`` and ``sql``, from lock to summary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.cli.commands.pipeline.preflight import check_sink, check_staging, locked, waiting
from nsqtools.cli.commands.pipeline.run import Run
from nsqtools.cli.commands.pipeline.sources import schema_text, source_options
from nsqtools.cli.commands.pipeline.views import StreamView, conclude
from nsqtools.config.units import counted
from nsqtools.errors import NSQError, PeerError
from nsqtools.spark.archive import ArchiveSettings, Shape
from nsqtools.spark.archive import archive as archive_topics
from nsqtools.spark.checkpoints import (
    check_staged,
    committed,
    has_orphans,
    is_finished,
    staged,
)
from nsqtools.spark.claims import check_stamp, is_settled, note_java, only_one
from nsqtools.spark.depths import Depths
from nsqtools.spark.folders import check_output
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.ledger import Ledger
from nsqtools.spark.places import OURS, below, local
from nsqtools.spark.shipping import packages_of
from nsqtools.spark.sourceoptions import parse_source
from nsqtools.spark.stores import make_store
from nsqtools.spark.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.cli.commands.pipeline.run import PipelineJob
    from nsqtools.config import (
        BodyOptions,
        LakeOptions,
        MetricsOptions,
        SparkOptions,
        StreamConfig,
        StreamOptions,
        StreamSourceOptions,
    )

log = logging.getLogger(__name__)

_LOOK = 10.0  # seconds between looks at the servers of a service


class Places(NamedTuple):
    """Where a stream writes and where its state is: absolute paths, or URLs."""

    output: str
    checkpoint: str
    staging: str

    @classmethod
    def of(cls, stream: StreamOptions, output: str) -> Places:
        """The places that the options name; by default below the output, or else the checkpoint."""
        home = below(output, OURS) if output else stream.checkpoint
        return cls(
            _absolute(output) if output else "",
            _absolute(stream.checkpoint or below(home, "checkpoint")),
            _absolute(stream.staging or below(home, "staging")),
        )


def _absolute(place: str) -> str:
    path = local(place)
    return place if path is None else str(path)


class StreamJob(NamedTuple):
    """A streaming query.

    ``verb`` is that of ``StreamView``. A checkpoint may only be continued with the same ``stamp``.
    A query that ``prints`` has the terminal to itself. ``source`` and ``sink`` are options of
    Spark's source and sink.
    """

    work: PipelineJob
    verb: str
    source: Mapping[str, str]
    places: Places
    stamp: Mapping[str, Any]
    prints: bool = False
    sink: Mapping[str, str] | None = None

    @property
    def held(self) -> str:
        """What only one run at a time may use: the checkpoint, or a staging that outlives it."""
        return self.places.staging if self.is_kept else self.places.checkpoint

    @property
    def is_kept(self) -> bool:
        """Whether the checkpoint is temporary and the staging outlives it."""
        return "streamName" in self.source


def archive(
    source: StreamSourceOptions,
    lake: LakeOptions,
    bodies: BodyOptions,
    stream: StreamOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    config: StreamConfig,
) -> None:
    """Archive topics."""
    places = Places.of(stream, lake.output)
    settings = ArchiveSettings(
        source=source_options(source, stream, config, master=spark.master, staging=places.staging),
        output=places.output,
        stream=Stream(places.checkpoint, stream.trigger if stream.continuous else None),
        shape=Shape(lake.format, schema_text(bodies.schema), lake.where, lake.select),
    )
    work = partial(archive_topics, settings=settings)
    job = StreamJob(work, "archived", settings.source, places, settings.stamp)
    run_stream(job, stream, spark, metrics)


def run_stream(
    job: StreamJob, stream: StreamOptions, spark: SparkOptions, metrics: MetricsOptions
) -> None:
    """Run a query while no other run uses its checkpoint.

    Options are checked before anything is created, and a run that does nothing leaves no files.
    """
    if job.places.output:
        check_output(job.places.output, "--output")
    make_store(job.places.staging)
    with locked(stream.lock), only_one(job.held, "--staging" if job.is_kept else "--checkpoint"):
        if job.is_kept:
            _run_kept(job, stream, spark, metrics)
            return
        check_stamp(job.places.checkpoint, job.stamp)
        check_staged(job.places.checkpoint, job.places.staging)
        if has_orphans(job.places.checkpoint, job.places.staging):
            log.warning(
                "--staging %s has messages of another checkpoint than %s: they are finished, and "
                "only that checkpoint leads to them",
                job.places.staging,
                job.places.checkpoint,
            )
        asyncio.run(_run(job, stream, spark, metrics))


def _run_kept(
    job: StreamJob, stream: StreamOptions, spark: SparkOptions, metrics: MetricsOptions
) -> None:
    """As ``run_stream``, with a private staging that the next run continues from.

    Messages in the staging are nowhere else; those that Spark has not committed were not shown.
    """
    staging, mask = job.places.staging, os.umask(0o077)
    try:
        asyncio.run(_run(job, stream, spark, metrics))
    finally:
        os.umask(mask)
        with contextlib.suppress(OSError, ValueError, LookupError):
            done = committed(job.places.checkpoint)
            Ledger(*make_store(staging), job.source["streamName"]).clean(done)
        if left := staged(staging):
            log.warning(
                "%s received but not completely shown, kept in %s: the next query of the same "
                "topics, channel and servers shows them first",
                *(counted(left, "message"), staging),
            )


async def _run(
    job: StreamJob, stream: StreamOptions, spark: SparkOptions, metrics: MetricsOptions
) -> None:
    """Ask nsqd how many messages wait, and start Spark only if there is work."""
    view = StreamView(job.verb)
    packages = packages_of(job.source, job.sink or {})
    run = Run(spark, metrics, view, packages=packages, prints=job.prints)
    idle = False
    left = job.held == job.places.staging and staged(job.held)
    if job.sink:
        await check_sink(job.sink, spark.master)
    try:
        count = await waiting(job.source, spark.master)
    except PeerError as error:
        if is_finished(job.places.checkpoint) and not left:
            raise
        log.warning("%s", error)  # what is staged already needs no nsqd
    else:
        settled = not left and is_settled(*job.places[1:], job.stamp)
        idle = not count and not stream.continuous and settled
    if idle:
        log.info("no message waits")
    if idle or run.stop.is_set():
        return
    check_staging(job.places.staging)

    def work(spark: Any, **given: Any) -> None:
        note_java(job.held, spark)
        job.work(spark, **given)

    watching = asyncio.ensure_future(_watch(job.source)) if stream.continuous else None
    try:
        with contextlib.suppress(StoppedError):  # before it began: no message was taken
            await run.until_done(work)
    finally:
        if watching:
            watching.cancel()
    conclude(view.summary)


async def _watch(source: Mapping[str, str]) -> None:
    """Warn of servers that stop answering while a service runs.

    The planner of the batches warns, too, but only in Spark's log.
    """
    depths = Depths(parse_source(source))
    while True:
        await asyncio.sleep(_LOOK)
        with contextlib.suppress(NSQError, OSError):
            await depths.ask()
