"""The jobs of ``compact`` and ``replay``: run, told of, and turned into exit codes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from nsqtools.cli.commands.pipeline.preflight import check_free, check_inputs
from nsqtools.cli.commands.pipeline.running import Run
from nsqtools.cli.commands.pipeline.views import StepView, conclude, counted
from nsqtools.cli.exits import Exit
from nsqtools.errors import ConfigError, RecordError
from nsqtools.spark import compact, replay
from nsqtools.spark.folders import check_output
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.places import OURS, local
from nsqtools.spark.replay import Replayed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from nsqtools.config import MetricsOptions, SparkOptions
    from nsqtools.spark.compact import Compacted, CompactSettings
    from nsqtools.spark.replay import ReplaySettings

log = logging.getLogger(__name__)


def run_compact(settings: CompactSettings, spark: SparkOptions, metrics: MetricsOptions) -> int:
    """Compact; an exit code."""
    check_inputs(settings.inputs)
    compact.check_apart(settings)
    root = local(settings.output)
    if root is not None:
        check_output(settings.output, "--output")
        check_free(str(root / OURS / compact.LOCK))
    code, done = asyncio.run(_compact(settings, spark, metrics))
    if not done:
        log.warning("stopped: the output is as it was")
        return code
    conclude(
        f"{counted(done.read, 'record')} of {counted(done.inputs, 'new file')} read, "
        f"{counted(done.duplicates, 'duplicate')} left out: {counted(done.hours, 'hour')} now "
        f"of {counted(done.rows, 'record')} in {counted(done.files, 'file')}"
        + (f"; {counted(done.deleted, 'file')} of --input deleted" if done.deleted else "")
    )
    if done.kept:
        log.error("%s of --input could not be deleted", counted(done.kept, "file"))
        return Exit.PARTIAL
    return code


async def _compact(
    settings: CompactSettings, spark: SparkOptions, metrics: MetricsOptions
) -> tuple[int, Compacted | None]:
    """An exit code, and what was done unless it was stopped."""
    run = Run(spark, metrics, StepView())
    done: Compacted | None = None

    def work(spark: Any, *, stop: threading.Event, report: Callable[[Any], None]) -> None:
        nonlocal done
        done = compact.compact(spark, settings, stop, _steps(report))

    try:
        code = await run.until_done(work)
    except StoppedError:
        return run.signals.exit_code(Exit.FAILURE), None
    except RecordError as error:
        raise RecordError(
            f"{error}; nothing was changed or deleted: move that file away, or leave it out"
        ) from error
    return code, done


def replay_staging(place: str, topic: str) -> str:
    """Where a replay is staged unless told; raises ConfigError if that has no place."""
    check_inputs([place])
    path = local(place)
    if path is None or not path.is_dir():
        raise ConfigError(f"--staging is required, since --input {place} is no directory")
    return str(path / OURS / f"replay-{topic}")


def run_replay(settings: ReplaySettings, spark: SparkOptions, metrics: MetricsOptions) -> int:
    """Choose, unless an earlier run did, and publish; an exit code."""
    check_free(f"{settings.staging}/{replay.LOCK}")
    code, done = asyncio.run(_replay(settings, spark, metrics))
    if not done:
        log.warning("stopped before the messages were chosen: none is published")
        return code
    now = done.published - done.before
    told = f"{counted(now, 'message')} published"
    if done.before:
        told += f", and {done.before:,} by earlier runs"
    if done.stopped:
        told += f"; {done.left:,} are left, with which the next run goes on"
    if done.empty:
        told += f"; {done.empty:,} empty ones left out"
    conclude(told)
    if done.refused:
        log.error("%s refused: %s", counted(done.refused, "message"), done.reason)
        return Exit.PARTIAL
    if done.stopped and not now:
        log.warning("stopped before a message was published: %s are left", f"{done.left:,}")
    return code


async def _replay(
    settings: ReplaySettings, spark: SparkOptions, metrics: MetricsOptions
) -> tuple[int, Replayed | None]:
    """An exit code, and what was done unless it was stopped before there was what to publish."""
    run = Run(spark, metrics, StepView())
    done = Replayed()

    def choose(spark: Any, *, stop: threading.Event, report: Callable[[Any], None]) -> None:
        replay.stage(spark, settings, stop, _steps(report))

    def send(report: Callable[[Any], None]) -> None:
        nonlocal done
        done = replay.publish(settings, run.stop, _steps(report))

    if not replay.is_staged(settings):
        check_inputs(settings.inputs)
        await replay.reach(settings)
        try:
            await run.until_done(choose)
        except StoppedError:
            return run.signals.exit_code(Exit.FAILURE), None
    code = await run.without_spark(send)
    if done.stopped and done.published == done.before:
        code = run.signals.exit_code(Exit.FAILURE)
    return code, done


def _steps(report: Callable[[Any], None]) -> Callable[[str, int, int], None]:
    """What a job reports through, as one fact."""
    return lambda step, done, total: report((step, done, total))
