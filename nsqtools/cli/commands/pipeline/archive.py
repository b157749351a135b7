"""``nsqtools pipeline archive``: topics to Parquet, each message once."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import (
    BodyOptions,
    LakeOptions,
    MetricsOptions,
    SparkOptions,
    StreamConfig,
    StreamOptions,
    StreamSourceOptions,
)


@click.command(
    "archive",
    cls=Command,
    guide="pipeline-archive",
)
@options(
    source=StreamSourceOptions,
    lake=LakeOptions,
    bodies=BodyOptions,
    stream=StreamOptions,
    spark=SparkOptions,
    metrics=MetricsOptions,
    config=StreamConfig,
)
def archive(
    *,
    source: StreamSourceOptions,
    lake: LakeOptions,
    bodies: BodyOptions,
    stream: StreamOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    config: StreamConfig,
) -> int:
    """Archive topics in Parquet, each message once.

    Files are in date=*/hour=*/batch=* below --output, by when messages were published (UTC). A
    message is finished once it is on disk in --staging. A run that was killed is repeated by the
    next one, file by file: whoever reads the files sees each message once.
    """
    from functools import partial

    from nsqtools.cli.commands.pipeline.sources import schema_text, source_options
    from nsqtools.cli.commands.pipeline.streaming import Places, StreamJob, run_stream
    from nsqtools.spark.session import require_spark

    require_spark()
    from nsqtools.spark.archive import ArchiveSettings, Shape
    from nsqtools.spark.archive import archive as job
    from nsqtools.spark.streams import Stream

    places = Places.of(stream, lake.output)
    settings = ArchiveSettings(
        source=source_options(source, stream, config, master=spark.master, staging=places.staging),
        output=places.output,
        stream=Stream(places.checkpoint, stream.trigger if stream.continuous else None),
        shape=Shape(lake.format, schema_text(bodies.schema), lake.where, lake.select),
    )
    work = partial(job, settings=settings)
    found = StreamJob(work, "archived", settings.source, places, settings.stamp)
    return run_stream(found, stream, spark, metrics)
