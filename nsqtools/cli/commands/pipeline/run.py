"""Runs a Spark job in a thread; signals, metrics and systemd are handled in the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.service import Signals, progress, supervised
from nsqtools.names import listening_address
from nsqtools.net.systemd import Notifier
from nsqtools.spark.executors import check_executors, ship
from nsqtools.spark.interrupts import StoppedError
from nsqtools.spark.sparksession import open_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsqtools.cli.commands.pipeline.views import View
    from nsqtools.config.consuming import MetricsOptions
    from nsqtools.config.lake import SparkOptions

R = TypeVar("R")


class PipelineJob(Protocol):
    """A job. It reports facts for its View, and ends early, without an error, once ``stop`` is set.

    ``spark`` is a SparkSession.
    """

    def __call__(self, spark: Any, *, stop: threading.Event, report: Callable[..., None]) -> Any:
        """Called in a thread."""


log = logging.getLogger(__name__)


class Run:
    """The run of one job. Create it inside the running event loop."""

    def __init__(
        self,
        spark: SparkOptions,
        metrics: MetricsOptions,
        view: View,
        *,
        packages: Iterable[str] = ("pyarrow",),
        prints: bool = False,
    ) -> None:
        self._watched = not (prints and sys.stdout.isatty())
        self.stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.signals = Signals(
            self._interrupted, lambda: None, "the next run repeats the current batch"
        )
        self._spark = spark
        self._metrics = metrics
        self._view = view
        self._packages = tuple(packages)
        self._notifier = Notifier()
        self._state = ""

    async def until_done(self, work: PipelineJob, *, if_stopped: str = "") -> Any:
        """Run the job in Spark and return its result.

        Raises StoppedError if a signal came before the job began, or if the job raises it. With
        ``if_stopped``, logs this text and raises Ended instead.
        """
        self._state = "starting Spark"
        try:
            return await self._supervise(partial(self._in_spark, work))
        except StoppedError:
            if not if_stopped:
                raise
            log.warning("%s", if_stopped)
            raise Ended(self.signals.exit_code(Exit.FAILURE)) from None

    async def without_spark(self, work: Callable[[Callable[..., None]], R]) -> R:
        """Run work without Spark. Its argument is the function for reports."""
        self._notifier.ready()
        return await self._supervise(work)

    async def _supervise(self, work: Callable[[Callable[..., None]], R]) -> R:
        """Run work in a thread. Raises Ended after a second signal, even if the work is done."""
        loop = asyncio.get_running_loop()

        def report(*fact: Any) -> None:
            loop.call_soon_threadsafe(self._report, *fact)

        address = listening_address(self._metrics.metrics_address)
        async with (
            supervised(self._notifier, self._status, address, self._view.metrics),
            progress(self._line, enabled=self._watched),
        ):
            done = await asyncio.to_thread(work, report)
        if self.signals.urgent:
            raise Ended(self.signals.exit_code(Exit.DONE))
        return done

    def _in_spark(self, work: PipelineJob, report: Callable[..., None]) -> Any:
        """Called in a thread."""
        pairs = (text.partition("=") for text in self._spark.conf)
        conf = {name.strip(): value for name, _, value in pairs}  # the last value of a key counts
        log_file = self._spark.spark_log or None
        with open_session(self._spark.master, conf, log_file=log_file) as session:
            if self.stop.is_set():
                raise StoppedError
            ship(session)
            check_executors(session, self._packages)
            self._loop.call_soon_threadsafe(self._began)
            return work(session, stop=self.stop, report=report)

    def _began(self) -> None:
        self._state = ""
        self._notifier.ready()

    def _report(self, *fact: Any) -> None:
        if line := self._view.add(*fact):
            log.info("%s", line)

    def _status(self) -> str:
        return self._state or self._view.line

    def _line(self) -> str:
        """The status on a terminal."""
        return self._status() + ", Ctrl-C again to end now" * self.stop.is_set()

    def _interrupted(self) -> None:
        self._notifier.stopping()
        self._state = "finishing the current step"
        self.stop.set()
