"""``nsqtools pipeline``: topics to files, files to topics, and queries of both, with Spark."""

from __future__ import annotations

from typing import Any

import click

from nsqtools.cli.options import CommandGroup, options
from nsqtools.config.connection import ProducerConfig
from nsqtools.config.consuming import MetricsOptions
from nsqtools.config.lake import (
    BodyOptions,
    CompactOptions,
    InputOptions,
    LakeOptions,
    QueryBodyOptions,
    QueryInputOptions,
    QueryOptions,
    QuerySourceOptions,
    ReplayOptions,
    SparkOptions,
    StreamConfig,
    StreamOptions,
    StreamSourceOptions,
)
from nsqtools.config.publishing import TargetOptions


@click.group("pipeline", cls=CommandGroup)
def pipeline() -> None:
    """Archive, merge, replay and query topics, with Spark.

    Spark runs on this machine or on a cluster. A message is finished once it is on disk in the
    staging of its batch. If a run is killed, the next run repeats the unfinished batch with the
    same messages.

    These commands need Java 17 or later, and Spark: pip install 'nsqtools[spark]'.
    """


@pipeline.command(
    "archive",
    essential="topic channel nsqd_tcp_address lookupd_http_address output schema where continuous "
    "lock",
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
def archive(**groups: Any) -> None:
    """Archive topics in Parquet, each message once.

    Files are in date=*/hour=*/batch=* of --output, by the time of publishing (UTC). A message is
    finished once it is on disk in --staging. If a run is killed, the next run completes its batch.
    """
    _call("stream", "archive", groups)


@pipeline.command(
    "compact",
    essential="input output older_than file_size delete_inputs dry_run input_format master",
)
@options(inputs=InputOptions, compaction=CompactOptions, spark=SparkOptions, metrics=MetricsOptions)
def compact(**groups: Any) -> None:
    """Merge archives into few files, sorted, each message once.

    The input is archives of pipeline archive and of to-file. A run reads only files new since the
    last run. It writes to date=*/hour=* of --output, and rewrites only files with messages of the
    same minutes.
    """
    _call("jobs", "compact", groups)


@pipeline.command(
    "replay", essential="topic nsqd_tcp_address input where order_by rate input_format lock master"
)
@options(
    target=TargetOptions,
    inputs=InputOptions,
    replaying=ReplayOptions,
    spark=SparkOptions,
    metrics=MetricsOptions,
    config=ProducerConfig,
)
def replay(**groups: Any) -> None:
    """Publish archives to a topic.

    The input is archives of pipeline archive, pipeline compact and to-file. Every message is
    published at least once. If a run is killed, the next run continues it.
    """
    _call("jobs", "replay", groups)


@pipeline.command(
    "sql",
    essential="query input topic channel nsqd_tcp_address lookupd_http_address output continuous",
)
@options(
    source=QuerySourceOptions,
    asked=QueryOptions,
    inputs=QueryInputOptions,
    bodies=QueryBodyOptions,
    stream=StreamOptions,
    spark=SparkOptions,
    metrics=MetricsOptions,
    target=ProducerConfig,
    config=StreamConfig,
)
def sql(**groups: Any) -> None:
    """Query topics, or archives, with SQL.

    The result goes to files, a table, another topic, or standard output. A query over topics is a
    streaming query, with windows and watermarks. It consumes messages and finishes them once they
    are safe in --staging.
    """
    _call("query", "sql", groups)


def _call(module: str, function: str, groups: dict[str, Any]) -> None:
    """Call a function in a module of this package; the module imports Spark.

    Raises ConfigError without Spark. Java is checked later, when it is needed.
    """
    from importlib import import_module

    from nsqtools.spark.properties import default_master
    from nsqtools.spark.requirements import require_pyspark

    require_pyspark()
    spark: SparkOptions = groups["spark"]
    if not spark.master:
        groups["spark"] = SparkOptions(**vars(spark) | {"master": default_master()})
    getattr(import_module(f"{__name__}.{module}"), function)(**groups)
