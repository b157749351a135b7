"""Options of pub: target, input and publishing."""

from __future__ import annotations

from nsqtools.config.consuming import ServerOptions
from nsqtools.config.option import NO_LIMIT, duration, flag, number, paths, text, topic_name
from nsqtools.config.records import RecordInputOptions

RATE = number("Maximum messages per second.", 0.0, default_note=NO_LIMIT)
DEFER = duration("Delay of messages before nsqd delivers them.", 0.0, maximum=3600.0)


class TargetOptions(ServerOptions):
    """The nsqds and the topic to publish to."""

    title = "Target"

    topic: str = topic_name("Topic to publish to.", own=True, required=True)


class PubOptions(RecordInputOptions):
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
        "Publish archive files instead: each argument is a file. .gz and .zst are decompressed.",
        excludes=("file", "whole"),
    )
    pace: str = text(
        "Speed relative to the original publishing, for --from-archive --json: 1x, 10x or max.",
        "max",
        metavar="SPEED",
        needs="json",
    )
