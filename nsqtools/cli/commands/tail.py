"""``nsqtools tail``: messages to standard output."""

from __future__ import annotations

import click

from nsqtools.cli.options import CONSUMING, Command, options
from nsqtools.config import (
    ConsumerConfig,
    MetricsOptions,
    StopOptions,
    TailOptions,
    TailSourceOptions,
)

_PEEK_IDLE = 2.0


@click.command(
    "tail",
    cls=Command,
    guide="tail",
    essential="topic channel nsqd_tcp_address lookupd_http_address count until_empty json "
    "timestamps print_topic format",
)
@options(config=CONSUMING)
def tail(
    *,
    source: TailSourceOptions,
    form: TailOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: ConsumerConfig,
) -> None:
    """Print the messages of a topic.

    Without --channel it creates an ephemeral channel of its own: it prints copies of messages that
    are published from now on, and takes none from other channels. If the topic has no channel yet,
    it takes the messages that wait in the topic. With --channel it consumes that channel; a message
    is finished once it is written, or given back with --peek.
    """
    import asyncio
    import random

    from nsqtools.cli.output import STDOUT, stream_writer
    from nsqtools.cli.service import consume
    from nsqtools.sinks.stdout import StreamSink

    if source.peek:
        asyncio.run(_peek(source, form, stop, metrics, config))
        return
    channel = source.channel or f"tail{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
    sink = StreamSink(STDOUT, stream_writer(form))
    asyncio.run(consume(source, channel, config, stop, sink, metrics=metrics))


async def _peek(
    source: TailSourceOptions,
    form: TailOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: ConsumerConfig,
) -> None:
    """Print messages of an existing channel, and give them back."""
    from nsqtools.cli.logs import show_status
    from nsqtools.cli.output import STDOUT, stream_writer
    from nsqtools.cli.remotes import addresses, with_secret
    from nsqtools.cli.service import consume
    from nsqtools.engine.lookup import Backlog
    from nsqtools.engine.membership import Subscription
    from nsqtools.errors import NSQError
    from nsqtools.sinks.peek import PeekSink

    _check_peek(source, stop, config)
    (topic,), count = source.topic, stop.count
    lookupds = source.lookupd_http_address
    subscription = Subscription(
        topic=topic,
        channel=source.channel,
        nsqds=() if lookupds else addresses(source.nsqd_tcp_address),
        lookupds=lookupds,
    )
    config = with_secret(config).with_values(max_in_flight=count, max_attempts=0)
    if not await Backlog(subscription, config, stop.nsqd_http_address).has_channel():
        raise NSQError(f"no nsqd has channel {source.channel} of topic {topic}: check the names")
    show_status()
    sink = PeekSink(STDOUT, stream_writer(form), count)
    stop = stop.with_values(count=0, idle_timeout=stop.idle_timeout or _PEEK_IDLE)
    await consume(source, source.channel, config, stop, sink, metrics=metrics)


def _check_peek(source: TailSourceOptions, stop: StopOptions, config: ConsumerConfig) -> None:
    """Raise UsageError for options that cannot be used with --peek."""
    most, count = config.max_in_flight, stop.count
    for wrong, text in (
        (len(set(source.topic)) > 1, "takes one --topic"),
        (not count, "needs -n, the number of messages to hold"),
        (count > most, f"-n {count} is over --max-in-flight {most}, the most that it may hold"),
        (stop.until_empty, "cannot be used with --until-empty: the channel keeps its messages"),
        (config.sample_rate, "cannot be used with --sample-rate: nsqd drops the other messages"),
    ):
        if wrong:
            raise click.UsageError(f"--peek: {text}")
