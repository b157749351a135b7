"""``nsqtools pipeline compact``: archives to few files, each message once."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import CompactOptions, InputOptions, MetricsOptions, SparkOptions


@click.command(
    "compact",
    cls=Command,
    examples=(
        (
            "Merge the batches of an archive into a few files an hour",
            "nsqtools pipeline compact --input lake --output compacted",
        ),
        (
            "Move what is complete out of an archive that grows, from cron",
            "nsqtools pipeline compact --input lake --output compacted --older-than 2h "
            "--delete-inputs -q",
        ),
    ),
    notes={
        "RESULT": """\
There is Parquet in date=*/hour=* below --output, by the time of publishing (UTC), sorted by
that time. Files that were compacted before, which a list in _nsqtools tells, are not read again,
and only the hours that new ones have messages of are written anew. So the command can be run as
often as one likes, with all archives as --input. An hour that files still come in for is then
written as often, unless --older-than lets them gather.

A message is kept once, by topic, message_id and timestamp_ns. Records without these, as those of
to-file --format raw, have no time but that of their file and are known by their place in it, in
the columns source_file and source_record.

A run that was killed leaves the output as it was before, or is finished by the next one. Files of
--input that are still written to are an error: to-file gives files their names when they are whole.
--delete-inputs deletes a file only when what was made of it has been read again and found complete.

--input and --output are in file systems that are mounted here, and on all executors, and neither is
in the other.""",
        "SIGNALS": """\
SIGINT, SIGTERM, SIGHUP
  Stop, and leave the output as it was. The exit status is 130 after SIGINT, else 1.

A signal that was ignored when the command started, as by nohup, stays ignored.""",
        "EXIT STATUS": """\
A file of --input that is damaged is a failure (1), and nothing is changed or deleted: 4 is for
files that --delete-inputs could not delete.""",
    },
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
