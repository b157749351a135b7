"""``nsqtools relay``: topics to topics of another nsqd."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import (
    ConsumerConfig,
    DeadLetterOptions,
    MetricsOptions,
    ProducerConfig,
    RelayOptions,
    SourceOptions,
    StopOptions,
)


@click.command(
    "relay",
    cls=Command,
    guide="relay",
)
@options(
    source=(SourceOptions, {"channel": "nsq_to_nsq"}),
    relaying=RelayOptions,
    dead=DeadLetterOptions,
    stop=StopOptions,
    metrics=MetricsOptions,
    target=(ProducerConfig, {"mode": "hostpool"}),
    config=(ConsumerConfig, {"max_in_flight": 2500, "max_attempts": 0}),
)
def relay(
    *,
    source: SourceOptions,
    relaying: RelayOptions,
    dead: DeadLetterOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: ConsumerConfig,
    target: ProducerConfig,
) -> int:
    """Relay topics to topics of another nsqd.

    A message is finished once the destination has it. It goes to the topic of the same name unless
    told otherwise, and as it is unless rules filter or edit it.
    """
    import asyncio

    from nsqtools.cli.exits import Exit
    from nsqtools.cli.logs import show_status
    from nsqtools.cli.relaying import slowed, topic_sink
    from nsqtools.cli.run import consume

    config = config.beside_producer()
    if relaying.status_every or stop.until_empty:
        show_status()

    async def work() -> int:
        sink = topic_sink(source, relaying, dead, stop, config, target)
        consuming = slowed(config, relaying)
        code = await consume(source, source.channel, consuming, stop, sink, metrics=metrics)
        return Exit.PARTIAL if code == Exit.DONE and sink.left_behind else code

    return asyncio.run(work())
