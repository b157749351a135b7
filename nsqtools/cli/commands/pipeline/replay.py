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
    guide="pipeline-replay",
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
