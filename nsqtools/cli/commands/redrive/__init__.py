"""``nsqtools redrive``: dead letters published again."""

# size: the run loads only when it begins

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.redrive import (
    RedriveConfig,
    RedriveOptions,
    RedriveSourceOptions,
    RedriveStopOptions,
)


@click.command(
    "redrive",
    cls=Command,
    essential="from_dir from_topic topic nsqd_tcp_address lookupd_http_address where reason rate "
    "limit dry_run",
)
@options()
def redrive(
    *,
    source: RedriveSourceOptions,
    form: RedriveOptions,
    stop: RedriveStopOptions,
    config: RedriveConfig,
) -> None:
    """Publish dead letters again, from a topic or from files.

    A message of --from-topic is finished once nsqd has answered OK. With --from-dir, a journal in
    the directory tells which messages are published, and the next run continues after them.
    Messages that are not chosen stay where they are. redrive ends once it has seen all that was
    there at its start.
    """

    from nsqtools.cli.commands.redrive.run import RedriveRun
    from nsqtools.tasks import run_loop

    if not (source.from_topic or source.from_dir):
        raise click.UsageError("give --from-topic or --from-dir")
    if form.reason and not source.from_dir:
        raise click.UsageError("--reason: needs --from-dir, as messages of a topic have no reason")
    run_loop(RedriveRun(source, form, stop, config).run())
