"""``nsqtools to-file``: topics to files that lose nothing."""

from __future__ import annotations

import click

from nsqtools.cli.options import Command, options
from nsqtools.config import ArchiveOptions, ArchiveSourceOptions, ConsumerConfig, StopOptions


@click.command(
    "to-file",
    cls=Command,
    examples=(
        (
            "Archive a topic in compressed files of an hour each",
            "nsqtools to-file --topic events --output-dir /srv/archive --compress zstd",
        ),
        (
            "Take what a channel holds and stop, as from cron",
            "nsqtools to-file --topic events --output-dir /srv/archive --until-empty "
            "--max-duration 9m --lock /tmp/events.lock -q",
        ),
        (
            "Partition by the time of publishing, with metadata",
            "nsqtools to-file --topic events --output-dir /srv/lake --format json --name-by message "
            "--filename-format 'dt=<DATETIME>/<TOPIC>.<HOST><REV>.json' "
            "--datetime-format %Y-%m-%d --utc --until-empty",
        ),
    ),
    notes={
        "FILES": """\
A file that is written to ends in .part, beside the file it will be or in --work-dir. It is
synced, and its messages finished, when half of --max-in-flight waits, when nsqd is starved, when
--sync-interval is over (at most half of the message timeout that nsqd negotiated), and when the
file is rotated. Each sync of a compressed file ends a gzip member, a zstd frame or a snappy
stream, so that whatever a crash leaves behind is readable up to the last sync.
A file is published when it is rotated, on SIGHUP and at the end: it gets its final name, which
never replaces a file that is there, and is complete. <REV> is -000001 and so on where a name was
taken. It must be in --filename-format if files are compressed or rotated, or written in another
directory; without it a file is continued when the command runs again.
What a crash left behind is published at the next start with the same names: whole records, while
what follows the last of them is moved to a file that ends in .torn. A leftover that a living
process writes to is left alone.""",
        "DISK FULL AND OTHER FAILURES": """\
When a file cannot be written, the half-written record is cut off, the messages go back to nsqd,
and the command tries again after a while, longer each time (consumer option
max_backoff_duration bounds it). With --fail-fast it exits with 1 instead. Either way nothing is
finished that is not safe. A file that is removed or replaced while it is written is written anew
beside. A message may be in the archive twice after a crash or a lost connection: at most as
many as were in flight.""",
        "COMMAND OF --on-rotate": """\
It runs in a shell, for one file after another. {} is the quoted path of the file. Its
environment has NSQ_FILE, NSQ_TOPIC, NSQ_COUNT (records), NSQ_FIRST_TIMESTAMP and
NSQ_LAST_TIMESTAMP (nanoseconds since the epoch). It is run again when it fails, five times with
growing delays, and is waited for at the end; the exit status is 1 if a file was not taken.""",
        "SIGNALS": """\
SIGHUP
  Sync and publish all files; the next message begins others.
SIGINT, SIGTERM
  Take no more messages, write those received within --drain-timeout, publish, and exit with 130
  after SIGINT, else with 0.
A second signal
  Leave at once. What was not synced is delivered again, and the next start publishes the rest.

A signal that was ignored when the command started, as by nohup, stays ignored.""",
        "CRON": """\
This line archives what came since the last run, says nothing when all is well, and exits with 75
while the last run still goes on:

  */10 * * * * nsqtools to-file --topic events --output-dir /srv/archive --gzip --until-empty \
--max-duration 9m --lock /run/lock/events.lock -q

The exit status is 4 when --max-duration ended the run before the channel was empty.""",
        "SYSTEMD": """\
The command tells systemd when it is ready, what it has done, and that it is alive:

  [Unit]
  Description=Archive of NSQ topics
  After=network-online.target
  Wants=network-online.target

  [Service]
  Type=notify
  ExecStart=/usr/bin/nsqtools to-file --config /etc/nsqtools/archive.toml
  ExecReload=/bin/kill -HUP $MAINPID
  WatchdogSec=30
  TimeoutStopSec=90
  Restart=on-failure

  [Install]
  WantedBy=multi-user.target""",
    },
)
@options(
    source=(ArchiveSourceOptions, {"channel": "nsq_to_file"}),
    files=ArchiveOptions,
    stop=StopOptions,
    config=(ConsumerConfig, {"max_in_flight": 2500, "max_attempts": 0}),
)
def to_file(
    *,
    source: ArchiveSourceOptions,
    files: ArchiveOptions,
    stop: StopOptions,
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
    return asyncio.run(consume(source, source.channel, config, stop, sink, hangup=sink.reopen))
