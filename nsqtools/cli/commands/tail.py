"""``nsqtools tail``: messages to standard output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import ConsumerConfig, MetricsOptions, SourceOptions, StopOptions, TailOptions

if TYPE_CHECKING:
    from nsqtools.records.writers import Writer

_STDOUT = 1


@click.command(
    "tail",
    cls=Command,
    guide="tail",
    essential="topic channel nsqd_tcp_address lookupd_http_address count until_empty json "
    "timestamps print_topic format",
)
@options(
    source=SourceOptions,
    form=TailOptions,
    stop=StopOptions,
    metrics=MetricsOptions,
    config=(ConsumerConfig, {"max_in_flight": 2500, "max_attempts": 0}),
)
def tail(
    *,
    source: SourceOptions,
    form: TailOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: ConsumerConfig,
) -> None:
    """Print the messages of a topic.

    Without --channel it creates an ephemeral channel of its own: it prints copies of messages that
    are published from now on, and takes none from other channels. If the topic has no channel yet,
    it takes the messages that wait in the topic. With --channel it consumes that channel; a message
    is finished once it is written.
    """
    import asyncio
    import random

    from nsqtools.cli.service import consume
    from nsqtools.sinks.stdout import StreamSink

    channel = source.channel or f"tail{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
    sink = StreamSink(_STDOUT, _writer(form))
    asyncio.run(consume(source, channel, config, stop, sink, metrics=metrics))


def _writer(form: TailOptions) -> Writer:
    from nsqtools.records.forms import make_writer
    from nsqtools.records.layout import Layout
    from nsqtools.records.template import Template

    escape = os.isatty(_STDOUT)
    layout = Layout.choose(
        json=form.json,
        length_prefix=form.length_prefix,
        delimiter=form.delimiter,
        null=form.null,
    )
    if form.format:
        return Template(form.format, escape=escape)
    return make_writer(
        layout, print_topic=form.print_topic, timestamps=form.timestamps, escape=escape
    )
