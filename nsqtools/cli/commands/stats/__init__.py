"""``nsqtools stats``: depths, rates and consumers of topics and channels."""

from __future__ import annotations

import click

from nsqtools.cli.commands.stats.check import PluginCommand
from nsqtools.cli.options import options
from nsqtools.config.admin import ClusterOptions
from nsqtools.config.stats import StatsOptions


@click.command(
    "stats",
    cls=PluginCommand,
    essential="lookupd_http_address nsqd_http_address topic channel interval once watch json "
    "check serve",
)
@options()
def stats(*, servers: ClusterOptions, asked: StatsOptions) -> None:
    """Report depths, rates and consumers of topics and channels.

    All nsqds are queried at once: those listed by nsqlookupds and those given as options. Their
    numbers are added up. stats warns of an nsqd that does not answer, and marks each row that lacks
    its numbers. The exit status is 3 if no nsqd answers at the start.
    """

    from nsqtools.cli.service import until_signal
    from nsqtools.tasks import run_loop

    if asked.serve:
        from nsqtools.cli.commands.stats.exporter import serve

        run_loop(until_signal(serve(servers, asked)))
    elif asked.check:
        from nsqtools.cli.commands.stats.check import check

        run_loop(check(servers, asked))
    else:
        run_loop(until_signal(_report(servers, asked)))


async def _report(servers: ClusterOptions, asked: StatsOptions) -> None:
    from nsqtools.cli.commands.stats.report import Reporter
    from nsqtools.cli.remotes import open_cluster

    if asked.watch:
        from nsqtools.cli.commands.stats.watch import show
    else:
        from nsqtools.cli.commands.stats.stream import show
    async with open_cluster(servers, quiet=asked.watch) as cluster:
        await show(Reporter(cluster, asked), asked)
