"""``nsqtools pipeline sql``: a query of topics or archives."""

from __future__ import annotations

import click

from nsqtools.cli.commands.pipeline.notes import STREAM_SIGNALS
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
    examples=(
        (
            "Count the messages of an archive by day",
            "nsqtools pipeline sql --input lake "
            "--query 'SELECT date, count(*) FROM nsq GROUP BY date ORDER BY date'",
        ),
        (
            "Sum up what comes in windows of a minute, in Parquet",
            "nsqtools pipeline sql --topic events --channel sums --continuous --watermark 5m "
            "--schema 'user INT, amount DOUBLE' --output sums --query "
            "'SELECT window.start, user, sum(amount) AS total FROM nsq "
            'GROUP BY window(timestamp, "1 minute"), user\'',
        ),
    ),
    notes={
        "TABLE": """\
The table nsq has the columns topic, channel, nsqd (HOST:PORT), message_id, timestamp (of
publishing, UTC), timestamp_ns (since the epoch), attempts and body (BINARY), then those of --schema
and _corrupt, which has the text of a body that does not parse. A field that has the name of a
column before it is called body_<field>. With --input there are also date and hour, and whatever
else the archives have.""",
        "RESULTS": """\
Files of a stream are in batch=* below --output: a batch that a killed run left is replaced by the
next one, so that each row is there once. Those of archives are written into a directory that has
none yet.

A topic gets the column body or, without one, rows as JSON objects. Messages may be there twice
after a failure, since a batch that was not done is published again.

The console shows a table on a terminal; in a pipe columns have tabs between.""",
        "CONSOLE": """\
Without --checkpoint, messages that are taken stay in $XDG_STATE_HOME/nsqtools, by default
~/.local/state/nsqtools, or in --staging, until all rows of their batch are shown. In a pipe, that
is when its reader has read them. A run that fails, is killed, or loses its reader, as with head,
leaves them there. The next query of the same topics, channel and servers, whatever it asks, begins
with them, and shows all rows of that batch. A run that ends early prints the directory: remove it
to discard the messages. Only one such query at a time can use a channel.

Aggregations begin anew with each run. A query whose rows wait for a watermark is refused, since
what it has counted would be lost: give --checkpoint, or --output-mode update.""",
        "SIGNALS": f"""\
{STREAM_SIGNALS}

With --input the first signal breaks the query off, and the exit status is 130 after SIGINT, else
1.""",
    },
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
