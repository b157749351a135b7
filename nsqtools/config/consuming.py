"""Options of consuming commands: sources, stop conditions and dead letters."""

from __future__ import annotations

from nsqtools.config.option import (
    NO_LIMIT,
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
from nsqtools.config.records import DECODE, RecordOptions
from nsqtools.names import NSQD_TCP_PORT, listening_address

HTTP_FOUND = "from nsqlookupd, or the port after the TCP port"
"""The ``default_note`` of an option for the HTTP addresses of nsqds."""

METRICS_ADDRESS = text(
    "Serve metrics for Prometheus at this address. :PORT listens on 127.0.0.1; port 0 picks a free "
    "port, logged with -v.",
    metavar="HOST:PORT",
    default_note="not served",
    rule=listening_address,
)


class ServerOptions(Options):
    """The nsqds to consume from."""

    shared = True

    nsqd_tcp_address: tuple[str, ...] = addresses(
        "TCP address of nsqd; may be repeated.",
        f"127.0.0.1:{NSQD_TCP_PORT}",
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = urls("HTTP address of nsqlookupd; may be repeated.")


class SourceOptions(ServerOptions):
    """The topics and the channel to consume."""

    title = "Source"

    topic: tuple[str, ...] = texts(
        "Topic to consume; may be repeated.",
        metavar="TOPIC",
        values="topic",
        own=True,
        required=True,
    )
    channel: str = channel_name("Channel to consume.", own=True)


class TailSourceOptions(SourceOptions):
    """The topics and the channel to consume or, with ``--peek``, only to look at."""

    peek: bool = flag(
        "Print -n messages of --channel and put them back, which costs each an attempt. Needs one "
        "--topic; ends after 2s without a message.",
        own=True,
        in_file=False,
        needs="channel",
    )


class StopOptions(Options):
    """When a run ends: as soon as one condition is met. 0 is no limit.

    For example::

        hundred = StopOptions(count=100, idle_timeout=10.0)
        empty = StopOptions(until_empty=True, max_duration=60.0)
        assert not StopOptions().count
    """

    title = "When to stop"

    count: int = integer(
        "Stop after this many messages in total.", 0, short="n", default_note=NO_LIMIT
    )
    max_duration: float = duration("Stop after this time.", 0.0, default_note=NO_LIMIT)
    idle_timeout: float = duration(
        "Stop after this long without a message.", 0.0, default_note=NO_LIMIT
    )
    until_empty: bool = flag(
        "Stop once the channel is empty on all nsqds: nothing queued, in flight or deferred. Fail "
        "if no nsqd has the topic, or a server is silent for 30s."
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, for --until-empty; may be repeated.",
        default_note=HTTP_FOUND,
    )

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends the run."""
        conditions = StopOptions.declared().keys() - {"nsqd_http_address"}
        return not any(getattr(self, name) for name in conditions)


class DeliveryStopOptions(StopOptions):
    """Stop conditions without ``-n``: in nsq_to_http it is the number of concurrent requests."""

    count: int = like(StopOptions.count, short="")


class TailOptions(RecordOptions):
    """Output format of ``tail``, and the messages to print."""

    where: str = text(
        "Print only JSON messages for which this jq expression is true; -n counts these.",
        metavar="JQ",
    )
    decode: str = DECODE
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
    """The metrics address of a long-running command."""

    title = "Metrics"

    metrics_address: str = METRICS_ADDRESS


class DeadLetterOptions(Options):
    """Destination for messages given up or permanently rejected."""

    title = "Dead letters"

    dead_letter_topic: str = topic_name(
        "Topic for dead letters: messages given up or rejected.", excludes=("dead_letter_dir",)
    )
    dead_letter_dir: str = path(
        "Directory for dead letters: files TOPIC.dead.jsonl, for redrive.",
        metavar="DIR",
    )
