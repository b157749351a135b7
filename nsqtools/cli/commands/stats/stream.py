"""Reports on standard output, one after another, until a signal or --count."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import TYPE_CHECKING

import click

from nsqtools.cli.commands.stats.formats import Csv, JsonReports, Lines, Tables
from nsqtools.cli.exits import Ended, Exit

if TYPE_CHECKING:
    from nsqtools.cli.commands.stats.report import Report, Reporter
    from nsqtools.config.stats import StatsOptions

log = logging.getLogger(__name__)


async def show(reporter: Reporter, asked: StatsOptions) -> None:
    """Print reports. Without --once, the first sample only serves to compute rates.

    Raises UnreachableError if no server answers at the start, and Ended if no report had the named
    topic or channel.
    """
    form = _form(asked)
    absence = Absence(asked)
    count = 1 if asked.once else asked.count
    ticker = Ticker(asked.interval)
    report = await reporter.report()
    absence.add(report)
    reported = 0
    while not count or reported < count:
        if not asked.once:
            await ticker.turn()
            report = await reporter.report()
            absence.add(report)
        click.echo(form.add(report), nl=False)
        sys.stdout.flush()
        reported += 1
    absence.end()


class Ticker:
    """Turns at a fixed interval, in seconds. A late turn delays the turns after it."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = time.monotonic() + interval

    async def turn(self) -> None:
        """Wait for the next turn."""
        await asyncio.sleep(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next + self._interval, time.monotonic())


class Absence:
    """Whether the named topic or channel exists; logs an error each time it is gone."""

    def __init__(self, asked: StatsOptions) -> None:
        names = {"topic": asked.topic, "channel": asked.channel}
        self._name = ", ".join(f"{kind} {name}" for kind, name in names.items() if name)
        self._seen = not self._name
        self._is_absent = False

    def add(self, report: Report) -> None:
        """Take a report.

        Logs an error if the topic or channel is gone, but no further error until it is back.
        """
        if not self._name:
            return
        if not report.rows and not self._is_absent:
            log.error("%s: no reachable nsqd has it", self._name)
        self._is_absent = not report.rows
        self._seen = self._seen or bool(report.rows)

    def end(self) -> None:
        """Raise Ended if no report had the topic or channel."""
        if not self._seen:
            raise Ended(Exit.FAILURE)


def _form(asked: StatsOptions) -> JsonReports | Csv | Tables | Lines:
    """The form of reports, by options and terminal."""
    single = bool(asked.topic and asked.channel)  # its tables would be mostly headers
    if asked.json:
        return JsonReports()
    if asked.csv:
        return Csv(consumers=asked.clients)
    if asked.clients or (sys.stdout.isatty() and not single):
        return Tables(consumers=asked.clients)
    return Lines(single=single)
