"""``nsqtools to-http``: messages to HTTP endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.connection import ClientConfig, ConsumerConfig
from nsqtools.config.consuming import (
    DeadLetterOptions,
    DeliveryStopOptions,
    MetricsOptions,
    SourceOptions,
)
from nsqtools.config.http import HttpConsumerConfig, HttpOptions, HttpSourceOptions

if TYPE_CHECKING:
    from nsqtools.sinks.http.httpsink import HttpSink

_TLS_FLAGS = "--http-tls"


@click.command(
    "to-http",
    cls=Command,
    essential="topic channel nsqd_tcp_address lookupd_http_address post get mode concurrency "
    "max_attempts dead_letter_dir dead_letter_topic",
)
@options()
def to_http(
    *,
    source: HttpSourceOptions,
    http: HttpOptions,
    dead: DeadLetterOptions,
    stop: DeliveryStopOptions,
    metrics: MetricsOptions,
    config: HttpConsumerConfig,
) -> None:
    """Deliver messages to HTTP endpoints.

    A message is finished once an endpoint has accepted it. Until then to-http tries again.
    """

    from nsqtools.cli.logs import show_status
    from nsqtools.cli.remotes import with_secret
    from nsqtools.cli.service import consume
    from nsqtools.tasks import run_loop

    worker = None
    if http.workers > 1:
        from nsqtools.cli.workers import Worker, check_shares, run_workers

        check_shares(http, config, stop)
        worker = Worker.find()
        if not worker:
            run_loop(run_workers(http.workers, metrics, endless=stop.is_endless))
            return
        http = http.with_values(
            concurrency=worker.share(http.concurrency), rate=http.rate / worker.count
        )
        config = config.with_values(max_in_flight=worker.share(config.max_in_flight))
    config = with_secret(config)
    if http.batch > 1:
        config = config.with_values(max_in_flight=max(config.max_in_flight, 2 * http.batch))
    if http.status_every:
        show_status()

    async def deliver() -> None:
        sink = http_sink(source, http, dead, config)
        await consume(source, source.channel, config, stop, sink, metrics=metrics, worker=worker)

    run_loop(deliver())


def http_sink(
    source: SourceOptions, options: HttpOptions, dead: DeadLetterOptions, config: ConsumerConfig
) -> HttpSink:
    """A sink for these endpoints, not connected yet. Raises ConfigError for invalid options."""
    from functools import partial

    from nsqtools.cli.clusterproducer import dead_letters
    from nsqtools.cli.remotes import warn_if_public
    from nsqtools.net.tls import client_context, explain
    from nsqtools.sinks.http.assembly import make_sink

    tls = ClientConfig(
        tls_root_ca_file=options.http_tls_root_ca_file,
        tls_cert=options.http_tls_cert,
        tls_key=options.http_tls_key,
        tls_insecure_skip_verify=options.http_tls_insecure_skip_verify,
    )
    sink = make_sink(
        options,
        dead_letters(source, dead, config),
        client_context(tls, flags=_TLS_FLAGS),
        longest_delay=config.max_requeue_delay,
        explain=partial(explain, flags=_TLS_FLAGS),
    )
    for path in filter(None, (options.sign_secret_file, *options.header_file)):
        warn_if_public(path)
    return sink
