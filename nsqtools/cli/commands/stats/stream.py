"""Reports on standard output, one after another, until a signal or --count."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import TYPE_CHECKING

import click

from nsqtools.cli.commands.stats.formats import Csv, JsonReports, Lines, Tables
from nsqtools.cli.commands.stats.report import Reporter
from nsqtools.cli.exits import Exit
from nsqtools.cli.remotes import open_cluster
from nsqtools.cli.service import until_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.cli.commands.stats.report import Report
    from nsqtools.config import ClusterOptions, StatsOptions

log = logging.getLogger(__name__)


def run(where: ClusterOptions, asked: StatsOptions) -> int:
    """Report; an exit code. Raises UnreachableError if nobody answers at the start."""
    return asyncio.run(until_signal(_stream(where, asked)))


async def _stream(where: ClusterOptions, asked: StatsOptions) -> int:
    async with open_cluster(where) as cluster:
        return await _report(Reporter(cluster, asked), asked)


async def _report(reporter: Reporter, asked: StatsOptions) -> int:
    """Print reports. Without --once the first sample only serves to compute rates."""
    show = _printer(asked)
    absence = Absence(asked)
    count = 1 if asked.once else asked.count
    ticker = Ticker(asked.interval)
    report = await reporter.report()
    absence.heard(report)
    reported = 0
    while not count or reported < count:
        if not asked.once:
            await ticker.turn()
            report = await reporter.report()
            absence.heard(report)
        show(report)
        reported += 1
    return absence.exit_code


class Ticker:
    """Turns at an even interval, in seconds; a late turn delays those after it."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = time.monotonic() + interval

    async def turn(self) -> None:
        """Wait for the next turn."""
        await asyncio.sleep(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next + self._interval, time.monotonic())


class Absence:
    """Whether the named topic or channel exists; its absence is logged once."""

    def __init__(self, asked: StatsOptions) -> None:
        names = {"topic": asked.topic, "channel": asked.channel}
        self._name = ", ".join(f"{kind} {name}" for kind, name in names.items() if name)
        self._seen = not self._name
        self._told = False

    def heard(self, report: Report) -> None:
        """Take a report, and log if no nsqd has the topic or channel now."""
        if not self._name:
            return
        if not report.rows and not self._told:
            log.warning("%s: no nsqd that answers has it", self._name)
        self._told = not report.rows
        self._seen = self._seen or bool(report.rows)

    @property
    def exit_code(self) -> int:
        """FAILURE if no report had the topic or channel."""
        return Exit.DONE if self._seen else Exit.FAILURE


def _printer(asked: StatsOptions) -> Callable[[Report], None]:
    """A function that prints reports in the form that options and terminal call for."""
    single = bool(asked.topic and asked.channel)  # its tables would be mostly headers
    form: JsonReports | Csv | Lines | Tables
    if asked.json:
        form = JsonReports()
    elif asked.csv:
        form = Csv(consumers=asked.clients)
    elif asked.clients or (sys.stdout.isatty() and not single):
        form = Tables(consumers=asked.clients)
    else:
        form = Lines(single=single)

    def show(report: Report) -> None:
        if text := form.add(report):
            click.echo(text, nl=False)
            sys.stdout.flush()

    return show
