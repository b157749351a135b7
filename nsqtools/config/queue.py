"""Options of ``queue``: it reads and writes nsqd's files."""

from __future__ import annotations

from nsqtools.config.connection import ClientConfig, ProducerConfig
from nsqtools.config.consuming import StopOptions, TailOptions
from nsqtools.config.option import Options, channel_name, flag, like, text, topic_name
from nsqtools.config.program import JSON
from nsqtools.config.publishing import PubOptions
from nsqtools.config.records import RecordInputOptions
from nsqtools.config.units import TIME, parse_time


class QueueListOptions(Options):
    """Options of ``queue ls``."""

    title = "Output"

    max_msg_size: int = like(
        ClientConfig.max_msg_size,
        help="Maximum size of a message; a larger message counts as damage.",
    )
    json: bool = JSON


class QueueOptions(Options):
    """A disk queue."""

    title = "Queue"

    topic: str = topic_name("Topic of the queue.", own=True, required=True)
    channel: str = channel_name(
        "Channel of the queue.", own=True, default_note="the queue of the topic itself"
    )


class ChannelQueueOptions(QueueOptions):
    """The disk queue of a channel."""

    channel: str = channel_name("Channel of the queue.", own=True, required=True)


class QueueCatOptions(TailOptions):
    """Options of ``queue cat``: the selection of messages, and their format."""

    count: int = StopOptions.count
    since: str = text(
        f"Print messages published at this time or later: {TIME}",
        metavar="TIME",
        default_note="all",
        rule=parse_time,
    )
    until: str = text(
        f"Print messages published before this time: {TIME}",
        metavar="TIME",
        default_note="all",
        rule=parse_time,
    )
    damaged: bool = flag("Also read .bad files, given up by nsqd.")
    max_msg_size: int = QueueListOptions.max_msg_size


class QueuePushOptions(RecordInputOptions):
    """Options of ``queue push``."""

    title = "Input"

    file: tuple[str, ...] = PubOptions.file
    max_msg_size: int = ProducerConfig.max_msg_size
    dry_run: bool = flag("Print the plan; change nothing.", in_file=False)
