"""``nsqtools relay``: relays topics to another nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.connection import BatchConsumerConfig, ConsumerConfig, ProducerConfig
from nsqtools.config.consuming import DeadLetterOptions, MetricsOptions, SourceOptions, StopOptions
from nsqtools.config.relay import DestinationConfig, RelayOptions, RelaySourceOptions

if TYPE_CHECKING:
    from nsqtools.sinks.relay.relaysink import RelaySink

_AHEAD = 10.0
"""With --rate, messages are received at most this many seconds before their publishing is due."""


@click.command(
    "relay",
    cls=Command,
    essential="topic channel nsqd_tcp_address lookupd_http_address destination_nsqd_tcp_address "
    "destination_topic where dead_letter_dir until_empty",
)
@options()
def relay(
    *,
    source: RelaySourceOptions,
    relaying: RelayOptions,
    dead: DeadLetterOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    target: DestinationConfig,
    config: BatchConsumerConfig,
) -> None:
    """Relay topics to topics of another nsqd.

    A message is finished once the destination has it. By default messages go unchanged to the topic
    of the same name. Options rename topics, filter messages and edit them.
    """
    from math import ceil

    from nsqtools.cli.logs import show_status
    from nsqtools.cli.remotes import beside_producer, with_secret
    from nsqtools.cli.service import consume
    from nsqtools.tasks import run_loop

    config = with_secret(beside_producer(config))
    target = target.with_values(auth_secret=config.auth_secret, auth_secret_file="")
    if relaying.status_every or stop.until_empty:
        show_status()

    consuming = config
    if relaying.rate:
        max_ahead = max(1, ceil(relaying.rate * _AHEAD))
        consuming = config.with_values(max_in_flight=min(config.max_in_flight, max_ahead))

    async def work() -> None:
        sink = _sink(source, relaying, dead, stop, config, target)
        await consume(source, source.channel, consuming, stop, sink, metrics=metrics)

    run_loop(work())


def _sink(
    source: SourceOptions,
    options: RelayOptions,
    dead: DeadLetterOptions,
    stop: StopOptions,
    config: ConsumerConfig,
    target: ProducerConfig,
) -> RelaySink:
    """A sink for relaying these topics, not connected yet. Raises ConfigError for bad options."""
    from nsqtools.cli.clusterproducer import dead_letters
    from nsqtools.cli.remotes import addresses, fixed_nsqds
    from nsqtools.engine.loops import LoopGuard, RelayEnd
    from nsqtools.engine.producer import Producer
    from nsqtools.policy.pace import Pace
    from nsqtools.sinks.relay.filter import destinations, find_loops, make_filter
    from nsqtools.sinks.relay.relaysink import RelaySink

    goals = destinations(source.topic, destination=options.destination_topic, maps=options.map)
    nsqds = addresses(options.destination_nsqd_tcp_address)
    guard = None
    if loops := find_loops(goals):  # topics returning to their source if both sides share an nsqd
        lookupds = source.lookupd_http_address
        here = RelayEnd(config, fixed_nsqds(source), lookupds, stop.nsqd_http_address)
        guard = LoopGuard(
            loops, here, RelayEnd(target, nsqds, http=options.destination_nsqd_http_address)
        )
    return RelaySink(
        Producer(nsqds, target),
        goals,
        make_filter(options),
        dead_letters(source, dead, config),
        guard=guard,
        defer=options.defer or None,
        pace=Pace(options.rate),
        status_every=options.status_every,
        patient=stop.is_endless,
    )
