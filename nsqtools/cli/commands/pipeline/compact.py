"""``nsqtools pipeline compact``: archives to few files, each message once."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import CompactOptions, InputOptions, MetricsOptions, SparkOptions


@click.command(
    "compact",
    cls=Command,
    guide="pipeline-compact",
)
@options(
    inputs=InputOptions,
    compaction=CompactOptions,
    spark=SparkOptions,
    metrics=MetricsOptions,
)
def compact(
    *,
    inputs: InputOptions,
    compaction: CompactOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
) -> int:
    """Merge archives into few files, sorted, each message once.

    Archives are those of pipeline archive and of to-file. Only what is new since the last run is
    read, and only the hours that it falls into are written anew.
    """
    from nsqtools.spark.session import require_spark

    require_spark()
    from nsqtools.cli.commands.pipeline.jobs import run_compact
    from nsqtools.cli.commands.pipeline.sources import layout
    from nsqtools.spark.compact import CompactSettings

    settings = CompactSettings(
        inputs=inputs.input,
        output=compaction.output,
        layout=layout(inputs),
        older_than=compaction.older_than,
        delete_inputs=compaction.delete_inputs,
        file_size=compaction.file_size,
    )
    return run_compact(settings, spark, metrics)
