"""``nsqtools stats``: what topics, channels and consumers are doing."""

from __future__ import annotations

import click

from nsqtools.cli.commands.stats.check import PluginCommand
from nsqtools.cli.options import options
from nsqtools.config import CheckOptions, ClusterOptions, StatsOptions


@click.command(
    "stats",
    cls=PluginCommand,
    guide="stats",
)
@options(where=ClusterOptions, asked=StatsOptions, check=CheckOptions)
def stats(*, where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    """Report depths, rates and consumers of topics and channels.

    All nsqds are asked at once, those that nsqlookupds list and those that are given, and their
    numbers are added up. One that does not answer is a warning and marks the rows that it had a
    part in; if none answers at the start the exit status is 3.
    """
    if check.serve:
        from nsqtools.cli.commands.stats.exporter import serve

        return serve(where, asked, check)
    if check.check:
        from nsqtools.cli.commands.stats.check import run as run_check

        return run_check(where, asked, check)
    if asked.watch:
        from nsqtools.cli.commands.stats.watch import run
    else:
        from nsqtools.cli.commands.stats.stream import run
    return run(where, asked)
