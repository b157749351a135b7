"""The streaming queries of ``archive`` and ``sql``, from lock to summary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import click

from nsqtools.cli.commands.pipeline.preflight import check_sink, locked, silent, waiting
from nsqtools.cli.commands.pipeline.run import Run
from nsqtools.cli.commands.pipeline.sources import schema_text, source_options
from nsqtools.cli.commands.pipeline.views import StreamView
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.logs import report_end
from nsqtools.config.units import counted
from nsqtools.errors import ConfigError, NSQError, PeerError
from nsqtools.spark.executors import packages_of
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.jobs.archive import ArchiveSettings, Shape
from nsqtools.spark.jobs.archive import archive as archive_topics
from nsqtools.spark.jobs.batches import LakeOutput
from nsqtools.spark.jobs.checkpoint import Checkpoint, Stamp
from nsqtools.spark.jobs.guard import only_one
from nsqtools.spark.jobs.streams import Stream
from nsqtools.spark.lake.folders import check_output
from nsqtools.spark.lake.write import write_files
from nsqtools.spark.properties import check_variables
from nsqtools.spark.requirements import require_spark
from nsqtools.spark.source.depths import Depths
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.stores import open_store, probe
from nsqtools.stores.places import OURS, as_url, below, local
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsqtools.cli.commands.pipeline.run import PipelineJob
    from nsqtools.config.consuming import MetricsOptions
    from nsqtools.config.lake import (
        BodyOptions,
        LakeOptions,
        SparkOptions,
        StreamConfig,
        StreamOptions,
        StreamSourceOptions,
    )
    from nsqtools.spark.jobs.guard import RunGuard

log = logging.getLogger(__name__)

_LOOK = 10.0  # seconds between polls of a service's servers


class Places(NamedTuple):
    """Where a stream writes and keeps its state: absolute paths, or URLs.

    ``output`` is empty for a topic, the console, and a table that a catalog knows.
    """

    output: str
    checkpoint: str
    staging: str

    @classmethod
    def of(cls, stream: StreamOptions, output: str, catalog: str) -> Places:
        """The places given by the options; by default below the output or the checkpoint.

        Raises ConfigError for a table of a catalog without a checkpoint.
        """
        if catalog:
            if not stream.checkpoint:
                raise ConfigError("--checkpoint is required with --format iceberg")
            output = ""
        home = below(output, OURS) if output else stream.checkpoint
        return cls(
            _absolute(output) if output else "",
            _absolute(stream.checkpoint or below(home, "checkpoint")),
            _absolute(stream.staging or below(home, "staging")),
        )


def _absolute(place: str) -> str:
    path = local(place)
    return place if path is None else str(path)


def archive(
    *,
    source: StreamSourceOptions,
    lake: LakeOptions,
    bodies: BodyOptions,
    stream: StreamOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    config: StreamConfig,
) -> None:
    """Archive topics."""
    places = Places.of(stream, lake.output, lake.catalog)
    output = LakeOutput(places.output or lake.output, lake.format, lake.catalog, lake.evolve)
    table = output.open()
    if table and lake.check:
        table.verify()
    settings = ArchiveSettings(
        source=source_options(source, stream, config, master=spark.master, staging=places.staging),
        output=output,
        stream=Stream(places.checkpoint, stream.trigger if stream.continuous else None),
        shape=Shape(
            schema_text(bodies.schema),
            bodies.infer,
            lake.where,
            lake.select,
            lake.partition_by,
        ),
    )
    StreamJob(
        partial(archive_topics, settings=settings),
        settings.source,
        places,
        settings.stamp,
        stream,
        spark,
        metrics,
        verb="archived",
        check=lake.check,
    ).run()


@dataclass(frozen=True, slots=True)
class StreamJob:
    """A streaming query.

    ``source`` and ``sink`` are options of Spark's source and sink. A checkpoint may only be
    continued with the same ``stamp``. ``verb`` is passed to ``StreamView``. With ``prints``, the
    query prints on the terminal, so no progress is shown there. With ``check``, the job only tests
    the requirements of a run. ``packages`` are modules that the work needs on executors.
    """

    work: PipelineJob
    source: Mapping[str, str]
    places: Places
    stamp: Mapping[str, Any]
    stream: StreamOptions
    spark: SparkOptions
    metrics: MetricsOptions
    verb: str = ""
    prints: bool = False
    sink: Mapping[str, str] = field(default_factory=dict)
    check: bool = False
    packages: Sequence[str] = ()

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint and the staging."""
        return Checkpoint(self.places.checkpoint, self.places.staging)

    @property
    def held(self) -> str:
        """The path to lock for the run: the checkpoint, or a staging that outlives it."""
        return self.places.staging if self.is_kept else self.places.checkpoint

    @property
    def is_kept(self) -> bool:
        """Whether the checkpoint is temporary and the staging outlives it."""
        return "streamName" in self.source

    def run(self) -> None:
        """Run the query. No other run may use its checkpoint meanwhile.

        Options are checked before anything is created. A run without messages leaves no files.
        """
        if self.places.output:
            check_output(self.places.output, "--output")
        check_variables(self.spark.conf, self.places)
        checkpoint = self.checkpoint
        option = "--staging" if self.is_kept else "--checkpoint"
        mask = 0o077 if self.is_kept else None  # messages not yet shown are private
        with _umask(mask), locked(self.stream.lock), only_one(self.held, option) as guard:
            if self.is_kept:
                self._run_kept(guard)
                return
            if local(self.places.staging) is None:
                probe(checkpoint.staging)
            Stamp.check(checkpoint, self.stamp)
            checkpoint.check_orphans()
            run_loop(self._run(guard))

    def _run_kept(self, guard: RunGuard) -> None:
        """Run with a temporary checkpoint; the next run continues from the staging.

        The staging has the only copy of its messages. Messages not committed by Spark have not been
        shown.
        """
        checkpoint = self.checkpoint
        try:
            run_loop(self._run(guard))
        finally:
            if left := checkpoint.staged():
                log.warning(
                    "%s received but not completely shown, kept in %s: the next query of the same "
                    "topics, channel and servers shows them first",
                    *(counted(left, "message"), self.places.staging),
                )

    async def _run(self, guard: RunGuard) -> None:
        """Count the waiting messages, and start Spark unless there is nothing to do."""
        view = StreamView(self.verb)
        places = (self.places.staging, self.places.output)
        packages = [*packages_of(self.source, self.sink, places=places), *self.packages]
        run = Run(self.spark, self.metrics, view, packages=packages, prints=self.prints)
        checkpoint = self.checkpoint
        left = self.is_kept and checkpoint.staged()
        if self.sink:
            await check_sink(self.sink, self.spark.master)
        try:
            count = await waiting(
                self.source, self.spark.master, creates=self.stream.continuous and not self.check
            )
        except PeerError as error:
            if self.check or (checkpoint.is_finished() and not left):
                raise
            log.warning("%s", error)  # staged messages need no nsqd
        else:
            if self.check:
                await self._try(run, count)
                return
            settled = not left and checkpoint.is_settled(self.stamp)
            if not count and not self.stream.continuous and settled:
                log.info("no messages wait")
                await self._check_servers()
                return
        require_spark()
        guard.stops(run.stop)
        if run.stop.is_set():
            return
        if local(self.places.staging) is not None:  # only now, because it creates the directory
            probe(checkpoint.staging)

        def work(spark: Any, **arguments: Any) -> None:
            guard.note_java(spark)
            self.work(spark, **arguments)

        continuous = self.stream.continuous
        watching = asyncio.ensure_future(_watch(self.source)) if continuous else None
        try:
            with contextlib.suppress(StoppedError):  # before it began: no message was taken
                await run.until_done(work)
        finally:
            if watching:
                watching.cancel()
        guard.check()
        report_end(view.summary)
        if view.totals.corrupt:
            log.warning(
                "%s of %s have bodies that do not fit the columns: _corrupt has their text",
                f"{view.totals.corrupt:,}",
                counted(view.totals.received, "message"),
            )
        if not (continuous or run.stop.is_set()):
            await self._check_servers()

    async def _check_servers(self) -> None:
        """Raise Ended with PARTIAL if messages may still wait on servers without an answer."""
        if unknown := await silent(self.source):
            log.error("unknown whether messages wait: %s", "; ".join(unknown))
            raise Ended(Exit.PARTIAL)

    async def _try(self, run: Run, count: int) -> None:
        """Start Spark, and let it write and read a file in the output. Raises what a run raises."""
        require_spark()
        probe(self.checkpoint.staging)
        root = self.places.output or self.places.checkpoint
        place = below(root, OURS, f"check-{uuid4().hex}")

        def work(spark: Any, **_: Any) -> None:
            try:
                write_files(spark.range(1), place, "parquet")
                spark.read.parquet(as_url(place)).count()
            finally:
                open_store(root).delete(f"{OURS}/{place.rpartition('/')[2]}")

        await run.until_done(work, if_stopped="stopped before the check was done")
        click.echo(f"ready: {counted(count, 'message')} waiting for {root}")


@contextlib.contextmanager
def _umask(mask: int | None) -> Iterator[None]:
    """Set the umask of this process meanwhile; None leaves it unchanged."""
    if mask is None:
        yield
        return
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


async def _watch(source: Mapping[str, str]) -> None:
    """Warn of servers that stop answering while a service runs.

    The planner of batches warns too, but only in Spark's log.
    """
    depths = Depths(parse_source(source))
    while True:
        await asyncio.sleep(_LOOK)
        with contextlib.suppress(NSQError, OSError):
            await depths.ask()
