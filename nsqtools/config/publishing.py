"""Options of pub: target, input and publishing."""

from __future__ import annotations

from nsqtools.config.consuming import ServerOptions
from nsqtools.config.option import duration, flag, like, number, paths, text, topic_name
from nsqtools.config.records import RecordOptions

RATE = number("Maximum messages per second; 0 for no limit.", 0.0)
DEFER = duration("Time that nsqd holds a message before it delivers it.", 0.0, maximum=3600.0)


class TargetOptions(ServerOptions):
    """The nsqds and the topic that a command publishes to."""

    title = "Target"

    topic: str = topic_name("Topic to publish to.", own=True, required=True)
    nsqd_tcp_address: tuple[str, ...] = like(
        ServerOptions.nsqd_tcp_address, help="nsqd to publish to; may be repeated."
    )
    lookupd_http_address: tuple[str, ...] = like(
        ServerOptions.lookupd_http_address,
        help="nsqlookupd that lists the nsqds to publish to; may be repeated.",
    )


class PubOptions(RecordOptions):
    """Options of ``pub`` for its input and for publishing."""

    title = "Input and publishing"

    file: tuple[str, ...] = paths(
        "File to read messages from, - for standard input; may be repeated.", metavar="FILE"
    )
    whole: bool = flag(
        "Publish each file, or all of standard input, as one message.",
        excludes=("delimiter", "null", "length_prefix", "json"),
    )
    rate: float = RATE
    defer: float = DEFER
    from_archive: bool = flag(
        "Publish archive files, which are the arguments; .gz and .zst are decompressed.",
        excludes=("file", "whole"),
    )
    pace: str = text(
        "Speed relative to the original publishing, for --from-archive --json: 1x, 10x or max.",
        "max",
        metavar="SPEED",
        needs="json",
    )
