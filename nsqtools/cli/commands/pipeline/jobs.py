"""The jobs of ``pipeline compact`` and ``pipeline replay``."""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import click

from nsqtools.cli.commands.pipeline.preflight import check_free, check_inputs, check_sink, locked
from nsqtools.cli.commands.pipeline.run import Run
from nsqtools.cli.commands.pipeline.sources import connection_options, layout
from nsqtools.cli.commands.pipeline.views import StepView
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.logs import report_end
from nsqtools.cli.remotes import targets, with_secret
from nsqtools.clock import wall
from nsqtools.config.units import counted, parse_time
from nsqtools.errors import ConfigError, RecordError
from nsqtools.spark.executors import packages_of
from nsqtools.spark.jobs import compact as compacting
from nsqtools.spark.jobs import replay as republishing
from nsqtools.spark.jobs.compact import CompactSettings
from nsqtools.spark.jobs.replay import ReplaySettings
from nsqtools.spark.lake.folders import check_output
from nsqtools.spark.lake.snapshots import compact_table, is_table
from nsqtools.spark.properties import check_variables, is_local
from nsqtools.stores import in_threads
from nsqtools.stores.places import OURS, below, is_named, is_pattern, local
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    from nsqtools.config.connection import ProducerConfig
    from nsqtools.config.consuming import MetricsOptions
    from nsqtools.config.lake import CompactOptions, InputOptions, ReplayOptions, SparkOptions
    from nsqtools.config.publishing import TargetOptions
    from nsqtools.spark.jobs.compact import Compacted

log = logging.getLogger(__name__)


def compact(
    *,
    inputs: InputOptions,
    compaction: CompactOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
) -> None:
    """Merge archives, or the small files of tables.

    Raises Ended with PARTIAL if an input could not be deleted.
    """
    places = check_inputs(inputs.input)
    tables = [place for place, is_ in zip(places, in_threads(is_table, places), strict=True) if is_]
    if tables:
        _check_tables(tables, places, compaction)
        run_loop(_compact_tables(tables, compaction.file_size, spark, metrics))
        return
    if not compaction.output:
        raise ConfigError("--output is required, unless --input is a table")
    now = wall()
    settings = CompactSettings(
        inputs=inputs.input,
        output=compaction.output,
        layout=layout(inputs),
        since=parse_time(compaction.since, now) / 1e9 // 3600 * 3600 if compaction.since else -inf,
        until=parse_time(compaction.until, now) / 1e9 if compaction.until else inf,
        older_than=compaction.older_than,
        delete_inputs=compaction.delete_inputs,
        file_size=compaction.file_size,
        dry_run=compaction.dry_run,
    )
    check_variables(spark.conf, [*settings.inputs, settings.output])
    compacting.check_apart(settings)
    root = local(settings.output)
    if root is not None:
        check_output(settings.output, "--output")
        check_free(str(root / OURS / "lock"))
    done = run_loop(_compact(settings, spark, metrics))
    omitted = f"{counted(done.duplicates, 'duplicate')} omitted" * (not settings.dry_run)
    summary = (
        f"{counted(done.read, 'record')} of {counted(done.inputs, 'new file')} read, "
        f"{omitted or 'duplicates not counted'}; {counted(done.rows, 'record')} in "
        f"{counted(done.files, 'new file')}, in place of {counted(done.replaced, 'old file')}"
        + (f"; {counted(done.deleted, 'file')} of --input deleted" if done.deleted else "")
    )
    if settings.dry_run:
        click.echo(f"a run would do at most: {summary}")
        return
    report_end(summary)
    if done.kept:
        log.error("%s of --input could not be deleted", counted(done.kept, "file"))
        raise Ended(Exit.PARTIAL)


def _check_tables(tables: list[str], places: list[str], compaction: CompactOptions) -> None:
    """Raise ConfigError for inputs and options that do not go with tables."""
    for table in filter(is_named, tables):
        raise ConfigError(
            f"--input {table}: pyiceberg merges no files: 'nsqtools help tables' names programs "
            "that do"
        )
    if len(tables) < len(places):
        raise ConfigError(f"--input {tables[0]}: is a table: compact it in a run of its own")
    given = {
        "--output": compaction.output,
        "--since": compaction.since,
        "--until": compaction.until,
        "--older-than": compaction.older_than,
        "--delete-inputs": compaction.delete_inputs,
        "--dry-run": compaction.dry_run,
    }
    if wrong := [name for name, value in given.items() if value]:
        raise ConfigError(
            f"{wrong[0]}: --input {tables[0]} is a table, which is compacted where it is: omit "
            f"{wrong[0]}"
        )


async def _compact_tables(
    tables: list[str], file_size: int, spark: SparkOptions, metrics: MetricsOptions
) -> None:
    """Compact one table after another; a signal ends the run between two."""
    run = Run(spark, metrics, StepView())
    for table in tables:
        if run.stop.is_set():
            raise Ended(run.signals.exit_code(Exit.FAILURE))
        done = await run.without_spark(lambda _: compact_table(table, file_size))  # noqa: B023
        report_end(
            f"{table}: {counted(done.merged, 'file')} merged into {done.files:,}, "
            f"{counted(done.deleted, 'replaced file')} deleted"
        )


async def _compact(
    settings: CompactSettings, spark: SparkOptions, metrics: MetricsOptions
) -> Compacted:
    run = Run(spark, metrics, StepView(), packages=packages_of(places=[settings.output]))
    work = partial(compacting.compact, settings=settings)
    try:
        done: Compacted = await run.until_done(work, if_stopped="stopped: the output is unchanged")
    except RecordError as error:
        raise RecordError(
            f"{error}; nothing was changed or deleted: move the file away, or omit it from --input"
        ) from error
    return done


def replay(
    *,
    target: TargetOptions,
    inputs: InputOptions,
    replaying: ReplayOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    config: ProducerConfig,
) -> None:
    """Select messages, unless an earlier run did, and publish them.

    Raises Ended with PARTIAL if nsqd rejected messages, or with another code if a signal came
    before the first message was published.
    """
    nsqds = run_loop(targets(target, with_secret(config)))
    sink = {
        "topic": target.topic,
        "nsqd.tcp.addresses": ",".join(map(str, nsqds)),
        **connection_options(config, spark.master),
    }
    settings = ReplaySettings(
        inputs=inputs.input,
        sink=sink,
        staging=replaying.staging or _replay_staging(inputs.input[0], target.topic),
        layout=layout(inputs),
        where=replaying.where,
        order_by=replaying.order_by,
        rate=replaying.rate,
    )
    check_variables(spark.conf, [*settings.inputs, settings.staging])
    with locked(replaying.lock):
        check_free(f"{settings.staging}/lock")
        run_loop(_replay(settings, spark, metrics))


def _replay_staging(place: str, topic: str) -> str:
    """The default of --staging. Raises ConfigError if the input is a file or a pattern."""
    check_inputs([place])
    if is_named(place):
        raise ConfigError(f"--staging is required, because --input {place} is a table of a catalog")
    path = local(place)
    if is_pattern(place) or (path is not None and not path.is_dir()):
        raise ConfigError(f"--staging is required, because --input {place} is not a directory")
    return below(place if path is None else str(path), OURS, f"replay-{topic}")


async def _replay(settings: ReplaySettings, spark: SparkOptions, metrics: MetricsOptions) -> None:
    packages = packages_of(settings.sink, places=[settings.staging, *settings.inputs])
    run = Run(spark, metrics, StepView(), packages=packages)
    if not republishing.is_planned(settings):
        check_inputs(settings.inputs)
    await check_sink(settings.sink, spark.master)
    if_stopped = "stopped before the messages were selected: none was published"
    if is_local(spark.master) or settings.is_sequential:
        if not await run.without_spark(lambda _: republishing.plan(settings)):
            stage = partial(republishing.stage, settings=settings)
            await run.until_done(stage, if_stopped=if_stopped)
        done = await run.without_spark(partial(republishing.publish, settings, run.stop))
    else:
        there = partial(republishing.publish_there, settings=settings)
        done = await run.until_done(there, if_stopped=if_stopped)
    now = done.published - done.before
    summary = f"{counted(now, 'message')} published"
    if done.before:
        summary += f", and {done.before:,} by earlier runs"
    if done.stopped:
        summary += f"; {done.left:,} left for the next run"
    if done.empty:
        summary += f"; {counted(done.empty, 'empty message')} skipped"
    report_end(summary)
    if done.again:
        log.warning("up to %s may have been published twice", counted(done.again, "message"))
    if not done.rows:
        log.warning("no message to publish was found in --input")
    if done.refused:
        log.error("%s refused: %s", counted(done.refused, "message"), done.reason)
        raise Ended(Exit.PARTIAL)
    if done.stopped and not now:
        log.warning("stopped before a message was published: %s are left", f"{done.left:,}")
        raise Ended(run.signals.exit_code(Exit.FAILURE))
