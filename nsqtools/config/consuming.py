"""Where consuming commands read, when they stop, and what becomes of what they give up."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.option import (
    URL_SECRETS,
    Options,
    addresses,
    option,
    option_class,
    texts,
    urls,
)
from nsqtools.config.records import RecordOptions
from nsqtools.errors import ConfigError
from nsqtools.names import NSQD_TCP_PORT, Address


def _listening(text: str) -> Address | None:
    """Where to listen: ``:PORT`` is one of 127.0.0.1, and the port may be 0."""
    text = text.strip()
    if not text:
        return None
    if text.startswith(":") and text.count(":") == 1:
        text = f"127.0.0.1{text}"
    return Address.parse(text, 0 if text.endswith(":0") else None)


@option_class
class SourceOptions(Options):
    """Where a consuming command reads."""

    title: ClassVar[str] = "Source"
    shared: ClassVar[bool] = True

    topic: tuple[str, ...] = texts(
        "Topic to consume; may be repeated.",
        metavar="TOPIC",
        values="topic",
        own=True,
        required=True,
    )
    channel: str = option(
        "", "text", "Channel to consume it on.", metavar="CHANNEL", values="channel", own=True
    )
    nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to consume from; may be repeated.",
        default=(f"127.0.0.1:{NSQD_TCP_PORT}",),
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = urls(
        "nsqlookupd to ask for nsqds instead; may be repeated."
    )


@option_class
class StopOptions(Options):
    """When a consuming command is done; 0 is no limit."""

    title: ClassVar[str] = "When to stop"

    count: int = option(
        0,
        "integer",
        "Stop after this many messages, all topics together.",
        minimum=0,
        short="n",
        default_note="no limit",
    )
    max_duration: float = option(
        0.0, "duration", "Stop after this time.", minimum=0.0, default_note="no limit"
    )
    idle_timeout: float = option(
        0.0,
        "duration",
        "Stop when no message came for this long.",
        minimum=0.0,
        default_note="no limit",
    )
    until_empty: bool = option(
        False,
        "flag",
        "Stop when depth, in flight and deferred are 0 on every nsqd, seen twice.",
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, for --until-empty; may be repeated.",
        default_note="what nsqlookupd says, or the port after the TCP port",
    )


@option_class
class TailOptions(RecordOptions):
    """What ``tail`` prints."""

    print_topic: bool = option(
        False,
        "flag",
        "Print 'topic | ' before each message.",
        excludes=("json", "length_prefix"),
    )
    timestamps: bool = option(
        False,
        "flag",
        "Print the time of publishing before each message.",
        excludes=("json", "length_prefix"),
    )
    format: str = option(
        "",
        "text",
        "Template: %s body, %S its size, %R its size in 4 bytes, %t topic, %c channel, %i id, "
        "%a attempts, %T ns since the epoch, %d{strftime}, %h nsqd, %%, \\n, \\t, \\0, \\xNN.",
        short="f",
        metavar="TEMPLATE",
        excludes=(
            "delimiter",
            "null",
            "length_prefix",
            "json",
            "print_topic",
            "timestamps",
        ),
    )


@option_class
class DeadLetterOptions(Options):
    """Where messages go that are given up or refused for good."""

    title: ClassVar[str] = "Dead letters"

    dead_letter_topic: str = option(
        "",
        "text",
        "Publish messages that are given up to this topic, as they are.",
        metavar="TOPIC",
        values="topic",
        excludes=("dead_letter_dir", "dead_letter_url"),
    )
    dead_letter_dir: str = option(
        "",
        "path",
        "Append messages that are given up to TOPIC.dead.jsonl in this directory, which "
        "pub --json reads.",
        metavar="DIR",
        excludes=("dead_letter_url",),
    )
    dead_letter_url: str = option(
        "",
        "text",
        "POST messages that are given up to this URL, as JSON.",
        metavar="URL",
        hides=URL_SECRETS,
    )

    def validate(self) -> None:
        """The URL is one that can be posted to."""
        url = self.dead_letter_url
        if not url:
            return
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url)
            has_host = parts.hostname and parts.port != 0
        except ValueError:
            has_host = False
        plain = url.isprintable() and " " not in url
        if not (has_host and plain and parts.scheme in ("http", "https")):
            raise ConfigError("--dead-letter-url: expected http:// or https:// and a host")


@option_class
class MetricsOptions(Options):
    """Where a command that runs for long tells how it fares."""

    title: ClassVar[str] = "Metrics"

    metrics_address: str = option(
        "",
        "text",
        "Serve metrics for Prometheus here, over HTTP: :PORT is one of 127.0.0.1, and port 0 a "
        "free one, which -v tells.",
        metavar="HOST:PORT",
        default_note="not served",
    )

    def validate(self) -> None:
        """The address is one."""
        try:
            _ = self.address
        except ConfigError as error:
            raise ConfigError(f"--metrics-address: {error}") from None

    @property
    def address(self) -> Address | None:
        """Where to listen; the port may be 0."""
        return _listening(self.metrics_address)
