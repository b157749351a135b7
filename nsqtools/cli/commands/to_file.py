"""``nsqtools to-file``: topics to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nsqtools.cli.options import Command, options
from nsqtools.config.connection import BatchConsumerConfig
from nsqtools.config.consuming import MetricsOptions, StopOptions
from nsqtools.config.files import ArchiveOptions, ArchiveSourceOptions
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.names import TopicPattern


@click.command(
    "to-file",
    cls=Command,
    essential="topic channel nsqd_tcp_address lookupd_http_address output_dir filename_format "
    "compress rotate_size rotate_interval until_empty",
)
@options()
def to_file(
    *,
    source: ArchiveSourceOptions,
    files: ArchiveOptions,
    stop: StopOptions,
    metrics: MetricsOptions,
    config: BatchConsumerConfig,
) -> None:
    """Archive topics in files.

    A message is finished once it is on disk, in a file readable even after a crash. The name of an
    incomplete file ends in .part. After a crash, the next start completes the files left behind.
    """

    from nsqtools.cli.logs import adjust
    from nsqtools.cli.service import consume
    from nsqtools.sinks.files.filesink import file_sink
    from nsqtools.tasks import run_loop

    adjust(files.log_level, files.log_prefix)
    sink = file_sink(source, files, config)
    consuming = consume(
        source,
        source.channel,
        config,
        stop,
        sink,
        topics=choose_topics(source),
        refresh=source.topic_refresh,
        timeouts=(source.http_client_connect_timeout, source.http_client_request_timeout),
        metrics=metrics,
        hangup=sink.reopen,
    )
    run_loop(consuming)


def choose_topics(source: ArchiveSourceOptions) -> Sequence[str] | TopicPattern:
    """The named topics, filtered by the pattern if there is one, or the pattern alone.

    Raises ConfigError if the pattern matches none of the named topics.
    """
    from nsqtools.config.topicpattern import compiled
    from nsqtools.policy.topics import matching

    if not source.topic_pattern:
        return source.topic
    pattern = compiled(source.topic_pattern)
    if source.topic and not (topics := matching(pattern, source.topic)):
        raise ConfigError(f"--topic-pattern {source.topic_pattern!r}: no --topic matches it")
    return topics if source.topic else pattern
