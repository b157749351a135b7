"""Delivery over HTTP as the options of ``to-http`` describe it."""

from __future__ import annotations

import logging
import os
import random
import time
from typing import TYPE_CHECKING

from nsqtools.cli.cluster import warn_if_public
from nsqtools.cli.postbox import Postbox, check_dead_letter_topic
from nsqtools.config import ClientConfig
from nsqtools.config.units import counted
from nsqtools.engine.lookup import Backlog, Lookups
from nsqtools.engine.membership import Subscription
from nsqtools.errors import RefusedError, UnreachableError
from nsqtools.names import is_ephemeral
from nsqtools.net.connection import Connection
from nsqtools.net.tls import client_context, explain
from nsqtools.policy.endpoints import make_endpoints as make_choice
from nsqtools.policy.pace import Pace
from nsqtools.policy.verdicts import Statuses
from nsqtools.sinks.deadletters import Nowhere, make_dead_letters
from nsqtools.sinks.http.arguments import make_endpoints, read_headers
from nsqtools.sinks.http.courier import EachOf, OneOf
from nsqtools.sinks.http.dryrun import DryRun
from nsqtools.sinks.http.post import Post, post_letters
from nsqtools.sinks.http.proxies import AnyTransport, with_proxies
from nsqtools.sinks.http.signing import Signer
from nsqtools.sinks.http.sink import HttpSink
from nsqtools.sinks.http.transport import Transport
from nsqtools.sinks.stdout import Output

if TYPE_CHECKING:
    from typing import Any

    from nsqtools.config import (
        ConsumerConfig,
        DeadLetterOptions,
        HttpOptions,
        SourceOptions,
        StopOptions,
    )
    from nsqtools.names import Address
    from nsqtools.net.connection import Dial, Listener
    from nsqtools.sinks.http.courier import Courier
    from nsqtools.sinks.http.requests import Endpoint

_STDOUT = 1
_FLAGS = "--http-tls"

log = logging.getLogger(__name__)


def http_sink(
    source: SourceOptions, options: HttpOptions, dead: DeadLetterOptions, config: ConsumerConfig
) -> HttpSink:
    """The sink that delivers to these endpoints; raises ConfigError, having connected nowhere."""
    check_dead_letter_topic(source, dead)
    endpoints = _endpoints(options)
    statuses = Statuses(options.success_on, options.drop_on, options.retry_on)
    transport = make_transport(options)
    post = Post(
        endpoints,
        _dry_run() if options.dry_run else transport,
        statuses,
        timeout=options.http_client_request_timeout,
        wall=time.time,
        in_batches=options.batch > 1,
        follow_redirects=options.follow_redirects,
        status_every=0 if options.dry_run else options.status_every,
    )
    rng = random.Random()  # noqa: S311
    most = options.concurrency
    courier: Courier
    if options.mode == "all":
        courier = EachOf(post, most=most, rng=rng)
    else:
        choice = make_choice(options.mode, list(post.endpoints))
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


def beside(source: SourceOptions, stop: StopOptions) -> Dial:
    """Dials for an ephemeral channel of copies, where that takes nothing from anybody.

    A topic without a channel keeps its messages for the first one, which would take them along
    when it goes. So the nsqd is asked over HTTP whether the topic has a channel that stays.
    """

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
            log.warning(
                "topic %s: a dry run prints only messages published from now on, not the %s in its "
                "channels at %s",
                *(topic, counted(waiting, "message"), address),
            )
        return await Connection.open(
            address, config, listener, subscription=subscription, auth_secret=auth_secret
        )

    return dial


def _dry_run() -> DryRun:
    return DryRun(Output(_STDOUT, "standard output"), escape=os.isatty(_STDOUT))


def _endpoints(options: HttpOptions) -> list[Endpoint]:
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


def make_transport(options: HttpOptions) -> AnyTransport:
    """Our own transport, and httpx's for what goes through a proxy."""
    tls = ClientConfig(
        tls_root_ca_file=options.http_tls_root_ca_file,
        tls_cert=options.http_tls_cert,
        tls_key=options.http_tls_key,
        tls_insecure_skip_verify=options.http_tls_insecure_skip_verify,
    )
    context = client_context(tls, flags=_FLAGS)
    direct = Transport(
        context,
        connect_timeout=options.http_client_connect_timeout,
        explain=lambda error: explain(error, flags=_FLAGS),
    )
    return with_proxies(direct, options.proxy, context, [*options.post, *options.get])
