"""``nsqtools pipeline archive``: topics to Parquet, each message once."""

from __future__ import annotations

import click

from nsqtools.cli.commands.pipeline.notes import STREAM_SIGNALS, SYSTEMD
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
    examples=(
        (
            "Archive what waits on a channel and stop, as from cron",
            "nsqtools pipeline archive --topic events --channel lake --output lake "
            "--lock events.lock -q",
        ),
        (
            "Go on with it as a service, with the fields of JSON bodies as columns",
            "nsqtools pipeline archive --topic events --channel lake --output lake --continuous "
            "--trigger 30s --schema 'user INT, action STRING' --where 'user IS NOT NULL'",
        ),
    ),
    notes={
        "FILES OF THE ARCHIVE": """\
The columns are topic, channel, nsqd (HOST:PORT), message_id, timestamp (of publishing, UTC),
timestamp_ns (since the epoch), attempts and body, then those of --schema and _corrupt, which has
the text of a body that does not parse. A field that has the name of a column before it, or of a
directory, is called body_<field>. With --format json, body is text, and bodies that are no UTF-8
are in body_b64 instead.

--select replaces all of that. Keep topic, message_id and timestamp_ns, if pipeline compact is to
tell messages apart, and body, if pipeline replay is to publish them.

A batch has a directory of its own, so that its files appear and are replaced together: date, hour
(both of the timestamp) and batch, which is 16 digits of the checkpoint's id and a number.
With a new checkpoint nothing that is there is overwritten. Readers that do not skip names with a
dot or an underscore before, such as DuckDB, are given 'lake/date=*/*/*/*.parquet'. Few large
batches make few files; pipeline compact merges them.""",
        "EXACTLY ONCE": """\
nsqd has no positions that one could read from again, so messages are written to --staging first,
synced, and finished then. What a batch consists of is in the log of --checkpoint. A run that ends
anyhow in the midst of a batch is followed by one that repeats it with the same messages, from the
staging, in the same directories. --output and --checkpoint belong together: without the latter,
messages of the last batch may be in the staging alone.

A message that comes again, since its run was killed or its connection broke before nsqd knew that
it is finished, is not written twice. One that nsqd hands out as new, after a crash of its own, is:
both have the same message_id and timestamp_ns, and pipeline compact keeps one of them.""",
        "SIGNALS": STREAM_SIGNALS,
        "CRON": """\
This line archives what came since the last run, and says nothing when all is well. While nothing
waits it ends at once, without starting Spark. Into a file or a mail a run writes warnings alone,
which -q leaves out, too, and with -v what it did. The exit status is 75 while the last run still
goes on.

\b
*/10 * * * * cd /srv && nsqtools pipeline archive --topic events --channel lake \
--output lake --lock events.lock -q""",
        "SYSTEMD": SYSTEMD,
    },
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
