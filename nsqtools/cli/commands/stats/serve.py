"""``nsqtools stats --serve``: an exporter for Prometheus, of all nsqds together."""

from __future__ import annotations

import asyncio
import time
from signal import SIGINT
from typing import TYPE_CHECKING

from nsqtools.cli.cluster import open_cluster
from nsqtools.cli.commands.stats.exporting import cluster_metrics
from nsqtools.cli.exits import Exit
from nsqtools.cli.metrics import served
from nsqtools.cli.signals import first_signal
from nsqtools.metrics import Metric, Sample
from nsqtools.net.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqtools.config import CheckOptions, ClusterOptions, StatsOptions
    from nsqtools.engine.cluster import Snapshot


class Exporter:
    """Polls when somebody scrapes, one poll at a time: who comes while one runs gets its result."""

    def __init__(self, look: Callable[[], Awaitable[Snapshot]]) -> None:
        self._look = look
        self._running: asyncio.Task[list[Metric]] | None = None
        self._polls = 0
        self._status = "not scraped yet"

    @property
    def status(self) -> str:
        """What the last poll found, in a line."""
        return self._status

    async def collect(self) -> list[Metric]:
        """The metrics of now; a scrape that is given up takes nothing from the others."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._poll())
            self._running.add_done_callback(self._ended)
        return await asyncio.shield(self._running)

    async def close(self) -> None:
        """End the poll that runs."""
        if self._running:
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _ended(self, task: asyncio.Task[list[Metric]]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # told to who scraped, or to nobody if they all went away

    async def _poll(self) -> list[Metric]:
        begin = time.monotonic()
        self._polls += 1
        snapshot = await self._look()
        self._status = (
            f"{len(snapshot.stats)} of {len(snapshot.nodes)} nsqds answer, {self._polls} polls"
        )
        return [*cluster_metrics(snapshot), self._took(time.monotonic() - begin)]

    def _took(self, seconds: float) -> Metric:
        text = "How long it took to ask all nsqds and nsqlookupds."
        return Metric("nsqtools_poll_duration_seconds", "gauge", text, [Sample({}, seconds)])


def serve(where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    """Serve until a signal; the exit code. Raises ConfigError if it cannot listen there."""
    return asyncio.run(_serve(where, asked, check))


async def _serve(where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    ended = first_signal()
    notifier = Notifier()
    cluster = open_cluster(where)
    exporter = Exporter(lambda: cluster.look(asked.topic or None, asked.channel or None))
    beating = asyncio.get_running_loop().create_task(_beat(notifier, exporter))
    try:
        async with cluster, served(check.serve_address, exporter.collect, "--serve"):
            notifier.ready()
            try:
                signal = await ended
            finally:
                notifier.stopping()
                await exporter.close()
    finally:
        beating.cancel()
    return Exit.INTERRUPTED if signal is SIGINT else Exit.DONE


async def _beat(notifier: Notifier, exporter: Exporter) -> None:
    """Tell systemd, if that started us, how we are."""
    while interval := notifier.interval:
        notifier.beat(exporter.status)
        await asyncio.sleep(interval)
