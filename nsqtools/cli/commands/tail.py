"""``nsqtools tail``: messages to standard output."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.connection import BatchConsumerConfig
from nsqtools.config.consuming import MetricsOptions, StopOptions, TailOptions, TailSourceOptions
from nsqtools.names import is_ephemeral

_PEEK_IDLE = 2.0


@click.command(
    "tail",
    cls=Command,
    essential="topic channel nsqd_tcp_address lookupd_http_address count until_empty json "
    "format where decode",
)
@options()
def tail(
    *,
    source: TailSourceOptions,
    form: TailOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: BatchConsumerConfig,
) -> None:
    """Print the messages of a topic.

    Without --channel, tail creates an ephemeral channel of its own. It prints copies of new
    messages, and other channels keep theirs. If the topic has no channel yet, it also takes the
    waiting messages. With --channel, tail consumes the channel: a message is finished when
    printed, or put back with --peek.
    """
    import random

    from nsqtools.cli.logs import show_status
    from nsqtools.cli.output import STDOUT, selection_of, stream_writer
    from nsqtools.cli.remotes import channel_depth, with_secret
    from nsqtools.cli.service import consume
    from nsqtools.sinks.peek import PeekSink
    from nsqtools.sinks.stdout import StreamSink
    from nsqtools.tasks import run_loop

    writer, count, selection = stream_writer(form), stop.count, selection_of(form)
    channel = source.channel or f"tail{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
    if source.peek:
        _check_peek(source, stop, config)
        config = with_secret(config).with_values(max_in_flight=count, max_attempts=0)
        stop = stop.with_values(count=0, idle_timeout=stop.idle_timeout or _PEEK_IDLE)
    elif form.where:  # the engine counts finished messages, the sink those that it prints
        stop = stop.with_values(count=0)

    async def run() -> None:
        sink = StreamSink(STDOUT, writer, selection=selection, count=count if form.where else 0)
        if source.peek:
            await channel_depth(source, source.topic[0], channel, config, stop.nsqd_http_address)
            show_status()
            sink = PeekSink(STDOUT, writer, count, selection=selection)
        await consume(source, channel, config, stop, sink, metrics=metrics)

    run_loop(run())


def _check_peek(source: TailSourceOptions, stop: StopOptions, config: BatchConsumerConfig) -> None:
    """Raise UsageError for options that cannot be used with --peek."""
    count, limit = stop.count, config.max_in_flight
    for wrong, text in (
        (len(set(source.topic)) > 1, "takes one --topic"),
        (is_ephemeral(source.channel), "nsqd would delete an ephemeral channel when tail ends"),
        (not count, "needs -n, the number of messages to hold"),
        (count > limit, f"-n {count} is over --max-in-flight {limit}, the most that it may hold"),
        (stop.until_empty, "cannot be used with --until-empty: the channel keeps its messages"),
        (config.sample_rate, "cannot be used with --sample-rate: nsqd drops the other messages"),
    ):
        if wrong:
            raise click.UsageError(f"--peek: {text}")
