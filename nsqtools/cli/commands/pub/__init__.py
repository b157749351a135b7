"""``nsqtools pub``: messages from arguments, files or standard input to a topic."""

from __future__ import annotations

import os

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.connection import ProducerConfig
from nsqtools.config.publishing import PubOptions, TargetOptions


@click.command(
    "pub",
    cls=Command,
    essential="topic nsqd_tcp_address lookupd_http_address file delimiter json rate defer "
    "from_archive",
)
@click.argument(
    "messages",
    nargs=-1,
    metavar="[MESSAGE]...",
    help="Messages, or files with --from-archive. Without any, standard input is read.",
)
@options()
def pub(
    *, messages: tuple[str, ...], target: TargetOptions, form: PubOptions, config: ProducerConfig
) -> None:
    """Publish messages to a topic.

    Messages are the arguments, or the lines of --file or of standard input. With --from-archive,
    the arguments are archive files. Empty lines are skipped: nsqd refuses empty messages. A message
    counts as published when nsqd has answered OK. The exit status is 4 if any message was refused.
    """

    from nsqtools.cli.commands.pub.publication import PubRun
    from nsqtools.tasks import run_loop

    _warn_of_turns(target, config)
    if messages and form.file:
        raise click.UsageError("give messages or --file, not both")
    if form.from_archive and not messages:
        raise click.UsageError("--from-archive: give the files to publish")
    job = PubRun(target, form, config)
    if form.from_archive:
        run_loop(job.run(archives=messages))
        return
    if "" in messages:
        raise click.UsageError("MESSAGE is empty: nsqd refuses empty messages")
    if messages and form.pace != "max":
        raise click.UsageError("--pace: messages on the command line have no timestamps")
    run_loop(job.run([os.fsencode(message) for message in messages]))


def _warn_of_turns(target: TargetOptions, config: ProducerConfig) -> None:
    """Warn of several nsqds without --mode: to_nsq would publish a copy to each."""
    import logging

    count = len(set(target.nsqd_tcp_address))
    if count > 1 and click.get_current_context().obj.is_default("config", "mode"):
        logging.getLogger(__name__).warning(
            "each message goes to one of %d nsqds; --mode all publishes a copy to each, as to_nsq "
            "does (--mode %s silences this warning)",
            count,
            config.mode,
        )
