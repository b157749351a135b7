"""``nsqtools pipeline sql``: a query of topics or archives."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import (
    BodyOptions,
    MetricsOptions,
    ProducerConfig,
    QueryInputOptions,
    QueryOptions,
    QuerySourceOptions,
    SparkOptions,
    StreamConfig,
    StreamOptions,
)
from nsqtools.errors import ConfigError


@click.command(
    "sql",
    cls=Command,
    guide="pipeline-sql",
)
@options(
    source=QuerySourceOptions,
    asked=QueryOptions,
    inputs=QueryInputOptions,
    bodies=BodyOptions,
    stream=StreamOptions,
    spark=SparkOptions,
    metrics=MetricsOptions,
    target=ProducerConfig,
    config=StreamConfig,
)
def sql(
    *,
    source: QuerySourceOptions,
    asked: QueryOptions,
    inputs: QueryInputOptions,
    bodies: BodyOptions,
    stream: StreamOptions,
    spark: SparkOptions,
    metrics: MetricsOptions,
    config: StreamConfig,
    target: ProducerConfig,
) -> int:
    """Query topics, or archives, with SQL.

    The result goes to Parquet or JSON files, to another topic, or to standard output. Over topics
    the query is a streaming one, with windows and watermarks, and messages are consumed: they are
    finished once they are on disk in --staging.
    """
    from nsqtools.spark.session import require_spark

    require_spark()
    from nsqtools.cli.commands.pipeline import querying

    if not inputs.input:
        for name in ("topic", "channel"):
            if not getattr(source, name):
                raise ConfigError(f"--{name} is required, unless --input names archives")
        return querying.of_topics(source, asked, bodies, stream, spark, metrics, config, target)
    return querying.of_archives(asked, inputs, bodies, stream, spark, metrics, source, target)
