"""``nsqtools pipeline replay``: archives back into a topic."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import (
    InputOptions,
    MetricsOptions,
    ProducerConfig,
    ReplayOptions,
    SparkOptions,
    TargetOptions,
)


@click.command(
    "replay",
    cls=Command,
    examples=(
        (
            "Publish what an archive has of a day, in its order and slowly",
            "nsqtools pipeline replay --input lake --topic orders --order-by timestamp --rate 100 "
            "--where \"date = '2026-11-21'\"",
        ),
    ),
    notes={
        "MESSAGES": """\
Bodies are published as they are; ids, timestamps and attempts are new ones. --where knows the
columns topic, channel, nsqd, message_id, timestamp (UTC), timestamp_ns, attempts and body, and
date, hour, source_file and source_record, and whatever else the archives have. Records without
metadata, as those of to-file --format raw, have no more than body and the last two, and the time of
their file.

Spark chooses the messages and orders them, once, into --staging; then it ends, and they are
published from there. How far that is, is noted there after each OK of nsqd. A run that ended early
is continued by the next one with the same --input, --where, --order-by and --topic; the messages
that were on their way then, at most a MiB, may be published again. Without --order-by messages come
in no particular order, but always in the same.

Empty bodies are left out, since nsqd takes none. One that nsqd refuses for its size is left out,
too, and the exit status is then 4.""",
        "SIGNALS": """\
SIGINT, SIGTERM, SIGHUP
  Stop when what is on its way is published, with exit status 0. The next run goes on. If nothing
  was published yet the exit status is 130 after SIGINT, else 1.
A second signal
  Leave at once. The exit status is 130 if the first signal was SIGINT, else 1.

A signal that was ignored when the command started, as by nohup, stays ignored.""",
    },
)
@options(
    target=TargetOptions,
    inputs=InputOptions,
    replaying=ReplayOptions,
    spark=SparkOptions,
    metrics=MetricsOptions,
    config=ProducerConfig,
)
def replay(
    *,
    target: TargetOptions,
    inputs: InputOptions,
    replaying: ReplayOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    config: ProducerConfig,
) -> int:
    """Publish archives to a topic.

    Archives are those of pipeline archive, pipeline compact and to-file. Every message is published
    at least once: a run that was killed is continued by the next one.
    """
    from nsqtools.spark.session import require_spark

    require_spark()
    from nsqtools.cli.commands.pipeline.jobs import replay_staging, run_replay
    from nsqtools.cli.commands.pipeline.preflight import locked
    from nsqtools.cli.commands.pipeline.sources import layout
    from nsqtools.cli.peers import addresses, with_secret
    from nsqtools.spark.replay import ReplaySettings

    settings = ReplaySettings(
        inputs=inputs.input,
        topic=target.topic,
        nsqds=addresses(target.nsqd_tcp_address),
        staging=replaying.staging or replay_staging(inputs.input[0], target.topic),
        config=with_secret(config),
        layout=layout(inputs),
        where=replaying.where,
        order_by=replaying.order_by,
        rate=replaying.rate,
    )
    with locked(replaying.lock):
        return run_replay(settings, spark, metrics)
