"""``nsqtools to-http``: messages to HTTP endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import (
    ConsumerConfig,
    DeadLetterOptions,
    DeliveryStopOptions,
    HttpOptions,
    MetricsOptions,
    SourceOptions,
)

if TYPE_CHECKING:
    from typing import Any

    from nsqtools.config import StopOptions
    from nsqtools.names import Address
    from nsqtools.net.connection import Connection, Dial, Listener
    from nsqtools.sinks.http.httpsink import HttpSink


@click.command(
    "to-http",
    cls=Command,
    guide="to-http",
)
@options(
    source=(SourceOptions, {"channel": "nsq_to_http"}),
    http=HttpOptions,
    dead=DeadLetterOptions,
    stop=DeliveryStopOptions,
    metrics=MetricsOptions,
    config=(ConsumerConfig, {"max_in_flight": 200, "max_attempts": 0}),
)
def to_http(
    *,
    source: SourceOptions,
    http: HttpOptions,
    dead: DeadLetterOptions,
    stop: DeliveryStopOptions,
    metrics: MetricsOptions,
    config: ConsumerConfig,
) -> None:
    """Deliver messages to HTTP endpoints.

    A message is finished once an endpoint has taken it; until then it is tried again.
    """
    import asyncio
    import random

    from nsqtools.cli.logs import show_status
    from nsqtools.cli.service import consume

    if most_waiting := 2 * http.batch if http.batch > 1 else 0:
        config = config.with_values(max_in_flight=max(config.max_in_flight, most_waiting))
    channel, dial = source.channel, None
    if http.dry_run:
        channel = f"dry-run{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
        dial = _beside(source, stop)
    if http.status_every:
        show_status()

    async def deliver() -> None:
        sink = http_sink(source, http, dead, config)
        await consume(source, channel, config, stop, sink, metrics=metrics, dial=dial)

    asyncio.run(deliver())


def http_sink(
    source: SourceOptions, options: HttpOptions, dead: DeadLetterOptions, config: ConsumerConfig
) -> HttpSink:
    """The sink that delivers to these endpoints; connects nowhere yet. Raises ConfigError."""
    from nsqtools.cli.postbox import Postbox, check_dead_letter_topic, make_transport
    from nsqtools.cli.remotes import warn_if_public
    from nsqtools.sinks.http.assembly import make_sink

    check_dead_letter_topic(source, dead)
    postbox = Postbox(source, config)
    transport = make_transport(options)
    sink = make_sink(options, dead, transport, publish=postbox.publish, on_close=postbox.close)
    for path in filter(None, (options.sign_secret_file, *options.header_file)):
        warn_if_public(path)
    return sink


def _beside(source: SourceOptions, stop: StopOptions) -> Dial:
    """Connects for an ephemeral channel, unless that would take messages from other channels.

    A topic without a channel keeps its messages for its first channel; were that the ephemeral one,
    they would be lost with it. So nsqd is asked over HTTP whether the topic has a channel that
    stays.
    """
    import logging

    from nsqtools.config.units import counted
    from nsqtools.engine.lookup import Backlog, Lookups
    from nsqtools.engine.membership import Subscription
    from nsqtools.errors import RefusedError, UnreachableError
    from nsqtools.names import is_ephemeral
    from nsqtools.net.connection import Connection

    async def dial(
        address: Address,
        config: Any,
        listener: Listener,
        *,
        subscription: tuple[str, str] | None,
        auth_secret: str,
    ) -> Connection:
        assert subscription
        topic, channel = subscription
        lookups, urls = source.lookupd_http_address, stop.nsqd_http_address
        try:
            if lookups and not urls:
                named = Subscription(topic=topic, channel=channel, lookupds=lookups)
                nodes = await Lookups(named, config).producers()
                urls = tuple(str(node.http) for tcp, node in nodes.items() if tcp == address)
            here = Subscription(topic=topic, channel=channel, nsqds=(address,))
            stats = await Backlog(here, config, urls).stats()
        except UnreachableError as error:
            text = f"--dry-run has to see the topic's channels: {error} (see --nsqd-http-address)"
            raise UnreachableError(text, address) from error
        waiting = 0
        for topics in stats.values():
            channels = [each for entry in topics for each in entry.channels]
            if all(is_ephemeral(each.name) for each in channels):
                raise RefusedError(
                    f"topic {topic} has no channel, so a dry run would take its messages: create "
                    f"one first, with nsqtools channel create {topic} {source.channel}",
                    address,
                )
            waiting += sum(each.depth + each.in_flight + each.deferred for each in channels)
        if waiting:
            logging.getLogger(__name__).warning(
                "topic %s: a dry run prints only messages published from now on, not the %s in its "
                "channels at %s",
                *(topic, counted(waiting, "message"), address),
            )
        return await Connection.open(
            address, config, listener, subscription=subscription, auth_secret=auth_secret
        )

    return dial
