"""``nsqtools relay``: topics to topics of another nsqd."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.cli.signals import STOPPING
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
    examples=(
        (
            "Relay two topics to another cluster",
            "nsqtools relay --topic orders --topic clicks "
            "--destination-nsqd-tcp-address 127.0.0.1:5150",
        ),
        (
            "Move what a channel holds to another topic, and tell how much it was",
            "nsqtools relay --topic orders --channel archive --destination-topic orders.old "
            "--destination-nsqd-tcp-address 127.0.0.1:4150 --until-empty",
        ),
        (
            "Relay what is paid, without what nobody may see",
            "nsqtools relay --topic orders --destination-nsqd-tcp-address 127.0.0.1:5150 "
            "--require-json-field paid --require-json-value true "
            "--whitelist-json-field id --whitelist-json-field paid --dead-letter-dir dead",
        ),
        (
            "Choose and edit with jq, and name the topics anew",
            "nsqtools relay --topic orders --destination-nsqd-tcp-address 127.0.0.1:5150 "
            "--where '.total > 100' --set '.from = \"eu\"' --map '(.*)=eu.\\1' "
            "--dead-letter-dir dead",
        ),
    ),
    notes={
        "DELIVERY": """\
What arrives together is published in one command, and is finished when the destination has taken
it. If that connection breaks before the answer, another destination gets the batch, or the same one
when it is back: messages may arrive twice then, but none is lost. While no destination answers,
messages wait here for up to --publish-timeout, and nsqd is kept from sending them again; after that
they go back to nsqd, which delivers them again later, and consuming slows down.

With --mode hostpool a destination that failed is left alone for 30 s, doubling to 15 minutes, while
others answer; it takes part again as soon as it can be connected to anew.

Attempts and times of publishing start anew at the destination. With --defer messages go one by one,
since nsqd has no deferred batches.""",
        "RULES": """\
A message is asked for --require-json-field, then for --where; then it is cut down to the fields of
--whitelist-json-field, and edited by --set, by one expression after the other. Without the last two
bodies stay as they are, byte by byte. Fields are those of the object itself. Those that are kept
stay in their order, and their values as they are written; of one that occurs twice the last counts.
Numbers are compared by value, however many digits they have.

--where and --set need the Python package jq. It writes objects anew, without spaces, but leaves the
order of the fields and the digits of numbers it does not touch, except that it spells exponents in
its own way. A --set that makes nothing of a message, as 'empty' does, filters it out.

Messages that are filtered out are finished. What is not JSON, or no object where a field is asked
for, and what an expression fails with, is a dead letter; so is what the destination does not take,
such as a message over its -max-msg-size. Without --dead-letter-topic, -dir or -url such messages go
back to nsqd and come again, later and later, until --max-attempts, if that is given, and the exit
status is 4; they keep --until-empty from ending. --dead-letter-topic is a topic of the cluster that
is consumed from.""",
        "CONNECTIONS": """\
The connection options are those of both sides. What is for one side alone is given with
--consumer-opt or --producer-opt, as in --producer-opt auth_secret_file,/etc/nsq/secret. A
--max-msg-size over 64MiB lets larger messages in, too.""",
        "LOOPS": """\
A topic whose messages would come back, because it goes to itself on an nsqd that it is consumed
from, is refused. That is found out by what nsqds say of themselves at their HTTP addresses, or else
by the addresses that their names stand for. With nsqlookupd, a destination that it knows is one of
the cluster that is consumed from.""",
        "SIGNALS": STOPPING,
    },
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
