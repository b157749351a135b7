"""``nsqtools tail``: messages to standard output."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import ConsumerConfig, MetricsOptions, SourceOptions, StopOptions, TailOptions


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

    from nsqtools.cli.output import STDOUT, stream_writer
    from nsqtools.cli.service import consume
    from nsqtools.sinks.stdout import StreamSink

    channel = source.channel or f"tail{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
    sink = StreamSink(STDOUT, stream_writer(form))
    asyncio.run(consume(source, channel, config, stop, sink, metrics=metrics))
