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
    ),
    notes={
        "SIGNALS": """\
SIGINT, SIGTERM, SIGHUP
  Read no more, publish what was read, and exit with 130 after SIGINT, else with 1.
A second signal
  Leave at once. What was on its way may or may not have been published.

A signal that was ignored when the command started, as by nohup, stays ignored."""
    },
)
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...", help="A message; none: read input.")
@options(target=TargetOptions, form=PubOptions, config=ProducerConfig)
def pub(
    *, messages: tuple[str, ...], target: TargetOptions, form: PubOptions, config: ProducerConfig
) -> int:
    """Publish messages to a topic.

    Messages are arguments, or else the records of files or of standard input. A message counts as
    published when nsqd has said so; exit status 4 says that some were refused.
    """
    import asyncio

    from nsqtools.cli.publishing import Publishing

    if messages and form.file:
        raise click.UsageError("messages and --file exclude each other: give one kind")
    job = Publishing(target, form, config)
    return asyncio.run(job.run([os.fsencode(message) for message in messages]))
