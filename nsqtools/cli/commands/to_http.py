"""``nsqtools to-http``: messages to HTTP endpoints."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.cli.signals import STOPPING
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
    examples=(
        (
            "Post each message of a topic to a webhook",
            "nsqtools to-http --topic events --post http://127.0.0.1:8080/hook",
        ),
        (
            "Post a hundred at a time, and keep what is refused five times",
            "nsqtools to-http --topic events --post http://127.0.0.1:8080/bulk --batch 100 "
            "--max-attempts 5 --dead-letter-dir dead",
        ),
        (
            "See what would be sent",
            "nsqtools to-http --topic events --post http://127.0.0.1:8080/hook --dry-run",
        ),
    ),
    notes={
        "DELIVERY": """\
A message is finished when an endpoint has answered with a status of --success-on, or a dead
letter of it is safe. Everything else, such as a refused connection, a response that breaks off,
or none within --http-client-request-timeout, gives it back to nsqd, which delivers it again
later, and slows consuming down. A Retry-After with 429 or 503 says how much later. 410 takes an
endpoint out until the command ends.

After five failures in a row an endpoint is left alone for 1 s, then for longer, up to 30 s; a
single request finds out whether it is back. While there is none to try, messages are held without
spending an attempt, and nsqd is kept from sending them again, as long as its --max-msg-timeout
allows. An endpoint to which no connection can be made costs a message nothing if there is another
one.

With --mode all each endpoint has to take a message. Who has taken it is remembered until then, so
that a retry is for the others alone; a crash forgets it.

Requests have the headers X-NSQ-Topic, X-NSQ-Channel, X-NSQ-Id, X-NSQ-Attempts and X-NSQ-Timestamp
(ns since the epoch); with --batch X-NSQ-Count, and X-NSQ-Ids up to 200 messages. A message may be
delivered more than once; id and timestamp together tell.""",
        "BATCHES": """\
All messages of a request are finished or given back together. When one is refused with a 4xx
status, its messages are tried again one by one, so that one that is malformed takes no other with
it. With ndjson and json-array a body has to be JSON; one that is not is given back, or a dead
letter after --max-attempts.""",
        "DRY RUN": """\
--dry-run gets copies of the messages that are published while it runs, on an ephemeral channel. It
makes no other channel, so the topic has to have one already: without that its messages would go to
the first channel that is made. nsqd is asked over HTTP, see --nsqd-http-address.""",
        "SIGNALS": STOPPING,
    },
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
