"""Where consuming commands read, when they stop, and what becomes of what they give up."""

from __future__ import annotations

from nsqtools.config.option import (
    Options,
    addresses,
    channel_name,
    duration,
    flag,
    integer,
    like,
    path,
    text,
    texts,
    topic_name,
    urls,
)
from nsqtools.config.records import RecordOptions
from nsqtools.names import NSQD_TCP_PORT, listening_address

METRICS_ADDRESS = text(
    "Serve metrics for Prometheus here, over HTTP: :PORT is on 127.0.0.1, and port 0 is a free "
    "port, which -v names.",
    metavar="HOST:PORT",
    default_note="not served",
    rule=listening_address,
)


class ServerOptions(Options):
    """The nsqds to consume from."""

    shared = True

    nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to consume from; may be repeated.",
        f"127.0.0.1:{NSQD_TCP_PORT}",
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = urls(
        "nsqlookupd to ask for nsqds instead; may be repeated."
    )


class SourceOptions(ServerOptions):
    """Where a consuming command reads."""

    title = "Source"

    topic: tuple[str, ...] = texts(
        "Topic to consume; may be repeated.",
        metavar="TOPIC",
        values="topic",
        own=True,
        required=True,
    )
    channel: str = channel_name("Channel to consume it on.", own=True)


class StopOptions(Options):
    """When a consuming command is done; 0 is no limit."""

    title = "When to stop"

    count: int = integer(
        "Stop after this many messages, all topics together.",
        0,
        short="n",
        default_note="no limit",
    )
    max_duration: float = duration("Stop after this time.", 0.0, default_note="no limit")
    idle_timeout: float = duration(
        "Stop when no message came for this long.", 0.0, default_note="no limit"
    )
    until_empty: bool = flag(
        "Stop when depth, in flight and deferred are 0 on every nsqd, seen twice."
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, for --until-empty; may be repeated.",
        default_note="what nsqlookupd says, or the port after the TCP port",
    )


class DeliveryStopOptions(StopOptions):
    """``-n`` is nsq_to_http's number of requests at a time."""

    count: int = like(StopOptions.count, short="")


class TailOptions(RecordOptions):
    """What ``tail`` prints."""

    print_topic: bool = flag(
        "Print 'topic | ' before each message.", excludes=("json", "length_prefix")
    )
    timestamps: bool = flag(
        "Print the time of publishing before each message.", excludes=("json", "length_prefix")
    )
    format: str = text(
        "Template: %s body, %S its size, %R its size in 4 bytes, %t topic, %c channel, %i id, "
        "%a attempts, %T ns since the epoch, %d{strftime}, %h nsqd, %%, \\n, \\t, \\0, \\xNN.",
        short="f",
        metavar="TEMPLATE",
        excludes=("delimiter", "null", "length_prefix", "json", "print_topic", "timestamps"),
    )


class MetricsOptions(Options):
    """Where a command that runs for long serves its metrics."""

    title = "Metrics"

    metrics_address: str = METRICS_ADDRESS


class DeadLetterOptions(Options):
    """Where messages go that are given up or refused for good."""

    title = "Dead letters"

    dead_letter_topic: str = topic_name(
        "Publish messages that are given up to this topic, as they are.",
        excludes=("dead_letter_dir",),
    )
    dead_letter_dir: str = path(
        "Append messages that are given up to TOPIC.dead.jsonl in this directory, which "
        "pub --json reads.",
        metavar="DIR",
    )
