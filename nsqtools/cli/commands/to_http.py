"""``nsqtools to-http``: messages to HTTP endpoints."""

from __future__ import annotations

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

    from nsqtools.cli.delivering import beside, http_sink
    from nsqtools.cli.logs import show_status
    from nsqtools.cli.run import consume

    if most_waiting := 2 * http.batch if http.batch > 1 else 0:
        config = config.with_values(max_in_flight=max(config.max_in_flight, most_waiting))
    channel, dial = source.channel, None
    if http.dry_run:
        channel = f"dry-run{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
        dial = beside(source, stop)
    if http.status_every:
        show_status()

    async def deliver() -> int:
        sink = http_sink(source, http, dead, config)
        return await consume(source, channel, config, stop, sink, metrics=metrics, dial=dial)

    return asyncio.run(deliver())
