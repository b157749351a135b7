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
    from nsqtools.sinks.http.courier import Courier
    from nsqtools.sinks.http.dryrun import DryRun
    from nsqtools.sinks.http.requests import Endpoint
    from nsqtools.sinks.http.sink import HttpSink

_STDOUT = 1


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
) -> int:
    """Deliver messages to HTTP endpoints.

    A message is finished once an endpoint has taken it; until then it is tried again.
    """
    import asyncio
    import random

    from nsqtools.cli.logs import show_status
    from nsqtools.cli.run import consume

    if most_waiting := 2 * http.batch if http.batch > 1 else 0:
        config = config.with_values(max_in_flight=max(config.max_in_flight, most_waiting))
    channel, dial = source.channel, None
    if http.dry_run:
        channel = f"dry-run{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
        dial = _beside(source, stop)
    if http.status_every:
        show_status()

    async def deliver() -> int:
        sink = http_sink(source, http, dead, config)
        return await consume(source, channel, config, stop, sink, metrics=metrics, dial=dial)

    return asyncio.run(deliver())


def http_sink(
    source: SourceOptions, options: HttpOptions, dead: DeadLetterOptions, config: ConsumerConfig
) -> HttpSink:
    """The sink that delivers to these endpoints; connects nowhere yet. Raises ConfigError."""
    from random import Random
    from time import time

    from nsqtools.cli.postbox import Postbox, check_dead_letter_topic, make_transport
    from nsqtools.policy.endpoints import make_endpoints
    from nsqtools.policy.pace import Pace
    from nsqtools.policy.verdicts import Statuses
    from nsqtools.sinks.deadletters import Nowhere, make_dead_letters
    from nsqtools.sinks.http.courier import EachOf, OneOf
    from nsqtools.sinks.http.post import Post, post_letters
    from nsqtools.sinks.http.sink import HttpSink

    check_dead_letter_topic(source, dead)
    statuses = Statuses(options.success_on, options.drop_on, options.retry_on)
    transport = make_transport(options)
    post = Post(
        _endpoints(options),
        _dry_run() if options.dry_run else transport,
        statuses,
        timeout=options.http_client_request_timeout,
        wall=time,
        in_batches=options.batch > 1,
        follow_redirects=options.follow_redirects,
        status_every=0 if options.dry_run else options.status_every,
    )
    rng = Random()  # noqa: S311
    most = options.endpoint_concurrency or options.concurrency
    courier: Courier
    if options.mode == "all":
        courier = EachOf(post, most=most, rng=rng)
    else:
        choice = make_endpoints(options.mode, list(post.endpoints))
        courier = OneOf(post, choice, most=most, rng=rng)
    postbox = Postbox(source, config)
    dead_letters = make_dead_letters(
        dead,
        publish=postbox.publish,
        post=post_letters(transport, options.http_client_request_timeout),
    )
    return HttpSink(
        courier,
        Nowhere() if options.dry_run else dead_letters,
        Pace(options.rate),
        workers=options.concurrency,
        size=options.batch,
        wait=options.batch_wait,
        share=options.sample,
        rng=rng,
        on_close=postbox.close,
    )


def _beside(source: SourceOptions, stop: StopOptions) -> Dial:
    """Connects for an ephemeral channel, unless that would take messages from other channels.

    A topic without a channel keeps its messages for its first channel; were that the ephemeral one,
    they would be lost with it. So nsqd is asked over HTTP whether the topic has a channel that
    stays.
    """
    import logging

    from nsqtools.config.option import counted
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


def _dry_run() -> DryRun:
    import os

    from nsqtools.sinks.http.dryrun import DryRun
    from nsqtools.sinks.stdout import Output

    return DryRun(Output(_STDOUT, "standard output"), escape=os.isatty(_STDOUT))


def _endpoints(options: HttpOptions) -> list[Endpoint]:
    from nsqtools.cli.peers import warn_if_public
    from nsqtools.sinks.http.arguments import make_endpoints, read_headers
    from nsqtools.sinks.http.signing import Signer

    signer = Signer.from_file(options.sign_secret_file) if options.sign_secret_file else None
    headers = read_headers(options.header, options.header_file)
    for path in filter(None, (options.sign_secret_file, *options.header_file)):
        warn_if_public(path)
    return make_endpoints(
        post=options.post,
        get=options.get,
        headers=headers,
        content_type=options.content_type,
        batch_format=options.batch_format if options.batch > 1 else "",
        compress=options.compress == "gzip",
        signer=signer,
    )
