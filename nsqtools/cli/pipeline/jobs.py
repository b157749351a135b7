"""The jobs of ``compact`` and ``replay``: run, told of, and turned into exit codes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import Exit
from nsqtools.cli.pipeline.preflight import check_free
from nsqtools.cli.pipeline.running import Run
from nsqtools.cli.pipeline.views import StepView, conclude, counted
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError
from nsqtools.spark.compact import Compacted, compact
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.places import OURS, local
from nsqtools.spark.replay import Replayed, is_staged, publish, stage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from nsqtools.config import MetricsOptions, SparkOptions
    from nsqtools.spark.compact import CompactSettings
    from nsqtools.spark.replay import ReplaySettings

log = logging.getLogger(__name__)


def run_compact(settings: CompactSettings, spark: SparkOptions, metrics: MetricsOptions) -> int:
    """Compact; an exit code."""
    done = Compacted(stopped=True)

    def work(spark: Any, *, stop: threading.Event, report: Callable[[Any], None]) -> None:
        nonlocal done
        done = compact(spark, settings, stop, _steps(report))

    root = local(settings.output)
    if root is not None:
        check_free(str(root / OURS / "compact.lock"))

    async def run() -> int:
        running = Run(spark, metrics, StepView())
        code = await running.until_done(work)
        if done.stopped:
            log.warning("stopped: the output is as it was")
            return running.signals.exit_code(Exit.FAILURE)
        return code

    code = asyncio.run(run())
    if not done.stopped:
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


def replay_staging(place: str, topic: str) -> str:
    """Where a replay is staged unless told; raises ConfigError if that has no place."""
    path = local(place)
    if path is None or not path.is_dir():
        raise ConfigError(f"--staging is required, since --input {place} is no directory")
    return str(path / OURS / f"replay-{topic}")


def run_replay(settings: ReplaySettings, spark: SparkOptions, metrics: MetricsOptions) -> int:
    """Choose, unless an earlier run did, and publish; an exit code."""
    code, done = asyncio.run(_replay(settings, spark, metrics))
    told = f"{counted(done.published - done.before, 'message')} published"
    if done.before:
        told += f", and {done.before:,} by earlier runs"
    if done.stopped:
        told += f"; {done.rows - done.published - done.refused - done.empty:,} are left"
    if done.empty:
        told += f"; {done.empty:,} empty ones left out"
    conclude(told)
    if done.refused:
        log.error("%s refused: %s", counted(done.refused, "message"), done.reason)
        return Exit.PARTIAL
    return code


async def _replay(
    settings: ReplaySettings, spark: SparkOptions, metrics: MetricsOptions
) -> tuple[int, Replayed]:
    run = Run(spark, metrics, StepView())
    done = Replayed(stopped=True)

    def choose(spark: Any, *, stop: threading.Event, report: Callable[[Any], None]) -> None:
        stage(spark, settings, stop, _steps(report))

    def send(report: Callable[[Any], None]) -> None:
        nonlocal done
        done = publish(settings, run.stop, _steps(report))

    code: int = Exit.DONE
    check_free(f"{settings.staging}/replay.lock")
    async with Producer(settings.nsqds, settings.config):
        pass  # or raise now, and not after Spark has done its work
    if not is_staged(settings):
        try:
            code = await run.until_done(choose)
        except StoppedError:
            return code, done
    if not run.stop.is_set():
        code = await run.without_spark(send)
    return code, done


def _steps(report: Callable[[Any], None]) -> Callable[[str, int, int], None]:
    """What a job reports through, as one fact."""
    return lambda step, done, total: report((step, done, total))
