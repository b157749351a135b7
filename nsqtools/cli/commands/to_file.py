"""``nsqtools to-file``: topics to files that lose nothing."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import (
    ArchiveOptions,
    ArchiveSourceOptions,
    ConsumerConfig,
    MetricsOptions,
    StopOptions,
)


@click.command(
    "to-file",
    cls=Command,
    examples=(
        (
            "Archive a topic in compressed files of an hour each",
            "nsqtools to-file --topic events --output-dir archive --compress zstd",
        ),
        (
            "Archive what a channel holds and stop, as from cron",
            "nsqtools to-file --topic events --output-dir archive --gzip --until-empty "
            "--max-duration 9m --lock events.lock -q",
        ),
        (
            "Partition by the day of publishing, with metadata",
            "nsqtools to-file --topic events --output-dir lake --format json --compress zstd "
            "--name-by message --filename-format 'dt=<DATETIME>/<TOPIC>.<HOST><REV>.json' "
            "--datetime-format %Y-%m-%d --utc --until-empty",
        ),
        (
            "Upload each file of 256 MiB, and keep a week of them here",
            "nsqtools to-file --topic events --output-dir archive --gzip --rotate-size 256MiB "
            "--on-rotate 'aws s3 cp {} s3://archive/' --max-age 168h",
        ),
    ),
    notes={
        "ARCHIVE FILES": """\
A file under way ends in .part, beside the file that it will be or in --work-dir. It is synced, and
its messages are finished, when a quarter of --max-in-flight waits or nsqd is starved, when
--sync-interval is over (half of the message timeout that nsqd negotiated, if that is shorter), and
when the file is rotated. Each sync ends a gzip member or a zstd frame: whatever a crash leaves
behind can be read up to the last sync.

A file is published when it is rotated, on SIGHUP and at the end. It then gets its name, which
never replaces a file that is there, and is complete. <REV> is -000001 and so on where a name is
taken. --filename-format must have it if files are compressed, rotated, named by message or written
in another directory; the first file is then -000000. Without <REV> a file is continued when the
command runs again.

What a crash left behind is published at the next start with the same names, up to the last whole
record or compressed member. What follows that in a file without compression is moved to a file
that ends in .torn: look at it if --format or --delimiter was changed, else delete it. A file that a
living process writes to is left alone, and so are files of another <HOST>: where the host name is
new at each start, as in a container, give --host-identifier. One process at a time writes the files
of a topic: the lock is a file in --output-dir whose name begins with a dot and the topic.

The directory .nsqtools in --output-dir holds the journal: one small file for each file under way
and for each published file that waits for --on-rotate, and the names that were used. Do not delete
it: after a crash the next start could not find the files under way, and the name of a file that
was moved away or deleted could be given to another one.

The paths of --manifest and --latest-link are relative to --output-dir.""",
        "DISK FULL AND OTHER FAILURES": """\
When a file cannot be written, what is not safe of it is cut off, its messages go back to nsqd,
and the command tries again, after longer and longer pauses (at most max_backoff_duration, see
--consumer-opt). With --fail-fast it exits with 1 instead. Nothing is finished that is not safe. A
file that is removed or replaced under way is written anew beside.

After a crash or a lost connection messages may be in the archive twice, at most as many as were
in flight.""",
        "COMMAND OF --on-rotate": """\
It runs in a shell, for one file after another, while messages are written to the next. {} is the
quoted path of the file; without it the path is appended. Its environment has these variables too:

NSQ_FILE
  The path.
NSQ_TOPIC
  The topic.
NSQ_COUNT
  The number of records.
NSQ_FIRST_TIMESTAMP, NSQ_LAST_TIMESTAMP
  When the first and the last of them were published, in nanoseconds since the epoch.

The command runs again when it fails or takes longer than --on-rotate-timeout: after growing
pauses, and then every ten minutes. At the end, when it is waited for, it runs up to four times
within seconds. A file waits for the command until that has succeeded with it, also after a crash:
the next run with the same topic begins with the files that wait. Until then --keep, --max-age and
--max-total do not delete the file, and the exit status is 1. To stop retrying these files, run
to-file once with --on-rotate true. After a crash the command may run twice with a file.""",
        "SIGNALS": """\
SIGHUP
  Sync and publish all files; the next message begins new ones.
SIGINT, SIGTERM
  Take no more messages, write those received within --drain-timeout, and publish all files. The
  exit status is 0 after SIGTERM, and 130 after SIGINT.
A second signal
  Leave at once. What was not synced is delivered again, and the next start publishes the rest.

A signal that was ignored when the command started, as by nohup, stays ignored.""",
        "CRON": """\
This line archives what came since the last run, and says nothing when all is well. The exit status
is 75 while the last run still goes on, and 4 when --max-duration was over before the channel was
empty.

\b
*/10 * * * * cd /srv && nsqtools to-file --topic events --output-dir archive \
--gzip --until-empty --max-duration 9m --lock events.lock -q""",
        "SYSTEMD": """\
The command tells systemd when it is ready, what it does, and that it is alive:

\b
[Unit]
Description=Archive of NSQ topics
After=network-online.target
Wants=network-online.target

\b
[Service]
Type=notify
ExecStart=/usr/bin/nsqtools to-file --config /etc/nsqtools/archive.toml
ExecReload=/bin/kill -HUP $MAINPID
WatchdogSec=30
TimeoutStopSec=90
Restart=on-failure

\b
[Install]
WantedBy=multi-user.target""",
    },
)
@options(
    source=(ArchiveSourceOptions, {"channel": "nsq_to_file"}),
    files=ArchiveOptions,
    stop=StopOptions,
    metrics=MetricsOptions,
    config=(ConsumerConfig, {"max_in_flight": 2500, "max_attempts": 0}),
)
def to_file(
    *,
    source: ArchiveSourceOptions,
    files: ArchiveOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: ConsumerConfig,
) -> int:
    """Archive topics in files.

    A message is finished once it is on disk, in a file that a crash leaves readable. A file under
    way ends in .part; one that has its name is complete. What a crash left behind is published
    when the command starts again.
    """
    import asyncio

    from nsqtools.cli.archiving import file_sink
    from nsqtools.cli.logs import adjust
    from nsqtools.cli.run import consume

    adjust(files.log_level, files.log_prefix)
    sink = file_sink(source, files, config)
    # A topic has a lock, the file under way, and perhaps another.
    consuming = consume(
        source, source.channel, config, stop, sink, metrics=metrics, hangup=sink.reopen, files=3
    )
    return asyncio.run(consuming)
