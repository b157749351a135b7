"""``nsqtools pub``: messages from arguments, files or standard input to a topic."""

from __future__ import annotations

import os

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import ProducerConfig, PubOptions, TargetOptions


@click.command(
    "pub",
    cls=Command,
    examples=(
        ("Publish one message", "nsqtools pub --topic events hello"),
        ("Publish each line of a file", "nsqtools pub --topic events --file events.log"),
        (
            "Copy a topic, whatever bytes it holds",
            "nsqtools tail --topic a --json | nsqtools pub --topic b --json",
        ),
        (
            "Publish what an archive holds, ten times as fast as it came",
            "nsqtools pub --topic events --from-archive --json --pace 10x events.log.gz",
        ),
    ),
    notes={
        "ARCHIVES": """\
With --from-archive the arguments are files that to-file or nsq_to_file wrote, and are published
one after another. Those whose names end in .gz and .zst are decompressed, and are read twice:
first to see how much of them is good. The options of the format say how records stand in them. Of a
file that is torn or damaged the records before that place are published; the command then says
where it is, publishes no later file, and exits with 1.

--pace keeps the distance in time of every record from the first one, divided by the factor. A
record that is late, or older than the one before it, is published at once.""",
        "SIGNALS": """\
SIGINT, SIGTERM, SIGHUP
  Read no more, publish what was read, and exit with 130 after SIGINT, else with 1.
A second signal
  Leave at once. What was on its way may or may not have been published.

A signal that was ignored when the command started, as by nohup, stays ignored.""",
    },
)
@click.argument(
    "messages",
    nargs=-1,
    metavar="[MESSAGE]...",
    help="A message, or with --from-archive a file; none: read input.",
)
@options(target=TargetOptions, form=PubOptions, config=ProducerConfig)
def pub(
    *, messages: tuple[str, ...], target: TargetOptions, form: PubOptions, config: ProducerConfig
) -> int:
    """Publish messages to a topic.

    Messages are arguments, or else the records of files or of standard input; with --from-archive
    the arguments are files that were archived. A message counts as published when nsqd has said
    so; exit status 4 says that some were refused.
    """
    import asyncio

    from nsqtools.cli.publishing import Publishing

    if messages and form.file:
        raise click.UsageError("messages and --file exclude each other: give one kind")
    if form.from_archive and not messages:
        raise click.UsageError("--from-archive: no file is given")
    job = Publishing(target, form, config)
    if form.from_archive:
        return asyncio.run(job.run(archives=messages))
    if messages and form.pace != "max":
        raise click.UsageError("--pace: messages have no timestamps")
    return asyncio.run(job.run([os.fsencode(message) for message in messages]))
