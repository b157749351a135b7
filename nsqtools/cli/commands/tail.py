"""``nsqtools tail``: messages to standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.connection import BatchConsumerConfig, ConsumerConfig
from nsqtools.config.consuming import MetricsOptions, StopOptions, TailOptions, TailSourceOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    from nsqtools.cli.remotes import with_secret
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
            await _require_channel(source, config, stop.nsqd_http_address)
            show_status()
            sink = PeekSink(STDOUT, writer, count, selection=selection)
        await consume(source, channel, config, stop, sink, metrics=metrics)

    run_loop(run())


async def _require_channel(
    source: TailSourceOptions, config: ConsumerConfig, nsqds_http: Sequence[str]
) -> None:
    """Raise NSQError if no nsqd has the channel: consuming it would create it."""
    from nsqtools.cli.remotes import fixed_nsqds
    from nsqtools.engine.connector import Subscription
    from nsqtools.engine.lookup import Backlog
    from nsqtools.errors import NSQError

    topic, lookupds = source.topic[0], source.lookupd_http_address
    subscription = Subscription(
        topic=topic, channel=source.channel, nsqds=fixed_nsqds(source), lookupds=lookupds
    )
    found, is_complete = await Backlog(subscription, config, nsqds_http).known()
    names = {channel.name for each in found for channel in each.channels}
    if is_complete and source.channel not in names:
        raise NSQError(f"no nsqd has channel {source.channel} of topic {topic}: check the names")


def _check_peek(source: TailSourceOptions, stop: StopOptions, config: ConsumerConfig) -> None:
    """Raise UsageError for options that cannot be used with --peek."""
    count, limit = stop.count, config.max_in_flight
    for wrong, text in (
        (len(set(source.topic)) > 1, "takes one --topic"),
        (not count, "needs -n, the number of messages to hold"),
        (count > limit, f"-n {count} is over --max-in-flight {limit}, the most that it may hold"),
        (stop.until_empty, "cannot be used with --until-empty: the channel keeps its messages"),
        (config.sample_rate, "cannot be used with --sample-rate: nsqd drops the other messages"),
    ):
        if wrong:
            raise click.UsageError(f"--peek: {text}")
