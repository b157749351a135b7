"""Where pub publishes, what it reads and how it sends."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.option import Options, addresses, option, option_class, urls
from nsqtools.config.records import RecordOptions
from nsqtools.errors import ConfigError
from nsqtools.names import NSQD_TCP_PORT


@option_class
class TargetOptions(Options):
    """Where a publishing command writes."""

    title: ClassVar[str] = "Target"
    shared: ClassVar[bool] = True

    topic: str = option(
        "",
        "text",
        "Topic to publish to.",
        metavar="TOPIC",
        values="topic",
        own=True,
        required=True,
    )
    nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to publish to; may be repeated.",
        default=(f"127.0.0.1:{NSQD_TCP_PORT}",),
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = urls(
        "Not supported here: refused, so that nothing goes to the default nsqd by mistake.",
        flag=False,
    )

    def check_complete(self) -> None:
        """nsqlookupd does not say where to publish."""
        if self.lookupd_http_address:
            raise ConfigError("lookupd-http-address: publishing needs --nsqd-tcp-address instead")


@option_class
class PubOptions(RecordOptions):
    """What ``pub`` reads and how it sends."""

    title: ClassVar[str] = "Input and publishing"

    file: tuple[str, ...] = option(
        (),
        "path",
        "File to read messages from, - for stdin; may be repeated.",
        multiple=True,
        metavar="FILE",
    )
    whole: bool = option(
        False,
        "flag",
        "Each file, or all of stdin, is one message.",
        excludes=("delimiter", "null", "length_prefix", "json"),
    )
    keep_empty: bool = option(
        False, "flag", "An empty message is an error; else it is skipped, as nsqd takes none."
    )
    rate: float = option(0.0, "number", "Most messages per second; 0 for no limit.", minimum=0.0)
    defer: float = option(
        0.0, "duration", "Let nsqd deliver only after this time.", minimum=0.0, maximum=3600.0
    )
    tee: bool = option(False, "flag", "Copy to stdout what was read.")
    from_archive: bool = option(
        False,
        "flag",
        "The arguments are archive files, decompressed by the end of their names.",
        excludes=("file", "whole"),
    )
    pace: str = option(
        "max",
        "text",
        "Speed of --from-archive --json against that of first publishing: 1x, 10x, or max.",
        metavar="SPEED",
    )
