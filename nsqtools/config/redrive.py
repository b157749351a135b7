"""Options of redrive."""

from __future__ import annotations

from nsqtools.config.connection import BatchConsumerConfig, ConsumerConfig
from nsqtools.config.consuming import ServerOptions, StopOptions
from nsqtools.config.option import (
    NO_LIMIT,
    Options,
    channel_name,
    flag,
    integer,
    like,
    path,
    text,
    topic_name,
)
from nsqtools.config.publishing import RATE


class RedriveSourceOptions(ServerOptions):
    """The dead letters of ``redrive``, and the servers for both sides."""

    title = "Dead letters"

    from_topic: str = topic_name(
        "Dead-letter topic to take messages from.", own=True, excludes=("from_dir",)
    )
    channel: str = channel_name(
        "Channel of --from-topic.", default="redrive", own=True, needs="from_topic"
    )
    from_dir: str = path(
        "Directory with files of dead letters, as --dead-letter-dir has them.",
        metavar="DIR",
        own=True,
    )


class RedriveConfig(BatchConsumerConfig):
    """ConsumerConfig of ``redrive``, which gives no message up and delays none by its attempts."""

    max_attempts: int = like(ConsumerConfig.max_attempts, unused=True)
    default_requeue_delay: float = like(ConsumerConfig.default_requeue_delay, unused=True)


class RedriveOptions(Options):
    """Which dead letters ``redrive`` publishes, where to, and how fast."""

    title = "Publishing"

    topic: str = topic_name(
        "Topic to publish to.",
        default_note="where the messages came from: their topic in a file, T for --from-topic "
        "T.dead",
    )
    where: str = text(
        "Publish only JSON messages for which this jq expression is neither false nor null.",
        metavar="JQ",
    )
    reason: str = text("Publish only dead letters of --from-dir whose reason contains this text.")
    rate: float = RATE
    limit: int = integer("Stop after publishing this many messages.", 0, default_note=NO_LIMIT)
    dry_run: bool = flag("Print the plan; publish nothing.", in_file=False)


class RedriveStopOptions(Options):
    """When ``redrive`` ends early, and how it finds out that it has seen everything."""

    title = "When to stop"

    max_duration: float = StopOptions.max_duration
    nsqd_http_address: tuple[str, ...] = like(
        StopOptions.nsqd_http_address,
        help="HTTP address of an nsqd, for the number of messages in --channel; may be repeated.",
    )
