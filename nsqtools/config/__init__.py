"""Every option, declared once.

A concern is a frozen dataclass and an option is a field of it. The field's name gives the flag
(``--max-in-flight``), the TOML key, the environment variable and, for the classes that mirror
go-nsq's ``Config`` (``config.go``), the name that ``--consumer-opt`` and ``--producer-opt`` take.
Durations are seconds, sizes are bytes.

This file is over 400 lines because it is a table, and a table in two places is two tables.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self

from nsqtools import __version__
from nsqtools.config.option import (
    URL_SECRETS,
    Options,
    addresses,
    flag_name,
    format_duration,
    option,
    option_class,
    texts,
    urls,
)
from nsqtools.errors import ConfigError
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT, NSQD_TCP_PORT, Address, is_ephemeral


def _hostname() -> str:
    from socket import gethostname

    return gethostname()


def _listening(text: str) -> Address | None:
    """Where to listen: ``:PORT`` is one of 127.0.0.1, and the port may be 0."""
    text = text.strip()
    if not text:
        return None
    if text.startswith(":") and text.count(":") == 1:
        text = f"127.0.0.1{text}"
    return Address.parse(text, 0 if text.endswith(":0") else None)


def _threshold(help: str, kind: Literal["integer", "number"] = "number") -> Any:  # noqa: A002
    """A number that is not to be exceeded; -1 is none, for 0 is one."""
    return option(-1, kind, help, minimum=-1, default_note="-1, not checked")


def _max_msg_size() -> Any:
    """The bound of what one message may take in memory, from nsqd or from a file."""
    return option(
        64 << 20, "size", "Maximum message size; a larger message is an error.", minimum=1
    )


@option_class
class ClientConfig(Options):
    """A connection to nsqd: go-nsq's names, defaults and bounds, but TLS is at least 1.2."""

    title: ClassVar[str] = "Connection options"
    shared: ClassVar[bool] = True

    dial_timeout: float = option(
        1.0, "duration", "Limit for a TCP connection to be made.", minimum=0.001, flag=False
    )
    read_timeout: float = option(
        60.0,
        "duration",
        "A connection that stays silent this long is dropped.",
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    write_timeout: float = option(
        1.0,
        "duration",
        "A connection that takes no byte of ours for this long is dropped.",
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    local_addr: str = option(
        "", "text", "Local address to connect from.", metavar="HOST:PORT", flag=False
    )
    client_id: str = option(
        "", "text", "Name of this client in /stats; the short host name unless set."
    )
    hostname: str = option("", "text", "Host name shown in /stats; this host's.", flag=False)
    user_agent: str = option(
        f"nsqtools/{__version__}", "text", "User agent shown in /stats.", flag=False
    )
    heartbeat_interval: float = option(
        30.0, "duration", "Time between nsqd's heartbeats.", minimum=1.0, flag=False
    )
    output_buffer_size: int = option(
        65536,
        "size",
        "Bytes nsqd gathers before it writes; -1 for none.",
        minimum=-1,
        flag=False,
    )
    output_buffer_timeout: float = option(
        0.25,
        "duration",
        "Longest nsqd holds gathered bytes; 0 for its own default.",
        minimum=0.0,
        flag=False,
    )
    max_msg_size: int = _max_msg_size()
    tls_v1: bool = option(False, "flag", "Use TLS.")
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust instead of the system's (PEM)."
    )
    tls_cert: str = option("", "path", "Client certificate (PEM).")
    tls_key: str = option("", "path", "Key of the client certificate (PEM).")
    tls_insecure_skip_verify: bool = option(
        False, "flag", "Do not verify the server's certificate."
    )
    tls_min_version: str = option(
        "tls1.2",
        "choice",
        "Lowest TLS version accepted.",
        choices=("ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3"),
    )
    snappy: bool = option(
        False, "flag", "Compress the connection with snappy.", excludes=("deflate",)
    )
    deflate: bool = option(False, "flag", "Compress the connection with deflate.")
    deflate_level: int = option(6, "integer", "Level of deflate.", minimum=1, maximum=9)
    auth_secret: str = option(
        "",
        "text",
        "Secret for an nsqd that requires AUTH.",
        flag=False,
        secret=True,
        excludes=("auth_secret_file",),
    )
    auth_secret_file: str = option("", "path", "File that holds the AUTH secret.")
    topology_region: str = option("", "text", "Region sent to nsqd.", flag=False)
    topology_zone: str = option("", "text", "Zone sent to nsqd.", flag=False)

    def validate(self) -> None:
        """Refuse what nsqd would refuse, before any connection is made."""
        if self.snappy and self.deflate:
            raise ConfigError("--snappy and --deflate exclude each other: choose one")
        if self.heartbeat_interval > self.read_timeout:
            raise ConfigError(
                f"heartbeat_interval {format_duration(self.heartbeat_interval)} is longer than "
                f"read_timeout {format_duration(self.read_timeout)}: a healthy connection would "
                "be dropped"
            )
        if 0 < self.output_buffer_timeout < 0.025:
            raise ConfigError("output_buffer_timeout: nsqd takes 0 or at least 25ms")
        if self.local_addr:
            Address.parse(self.local_addr, 0)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together: give both or neither")

    @property
    def uses_tls(self) -> bool:
        """Whether TLS was asked for: any tls option does, as in go-nsq (``config.go``)."""
        return bool(
            self.tls_v1 or self.tls_root_ca_file or self.tls_cert or self.tls_insecure_skip_verify
        )

    def spelled(self, name: str) -> str:
        """How a command line sets an option: by its flag, or by that for many."""
        if self.declared()[name].flag or not self.opt_flag:
            return f"--{flag_name(name)}"
        return f"--{self.opt_flag} {name}"

    def beside_producer(self) -> Self:
        """For a command that publishes as well, whose --max-msg-size is first of all for that.

        A low one keeps a message from being published, and not from being read.
        """
        least = self.default("max_msg_size", {})
        return self.with_values(max_msg_size=max(self.max_msg_size, least))

    def identify(self) -> dict[str, Any]:
        """The body of IDENTIFY (tcp_protocol_spec, IDENTIFY); times in milliseconds."""
        return {
            "client_id": self.client_id or _hostname().partition(".")[0],
            "hostname": self.hostname or _hostname(),
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": round(self.heartbeat_interval * 1000),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": round(self.output_buffer_timeout * 1000),
            "tls_v1": self.uses_tls,
            "snappy": self.snappy,
            "deflate": self.deflate,
            **({"deflate_level": self.deflate_level} if self.deflate else {}),
            **({"topology_region": self.topology_region} if self.topology_region else {}),
            **({"topology_zone": self.topology_zone} if self.topology_zone else {}),
        }


@option_class
class ConsumerConfig(ClientConfig):
    """A consumer: go-nsq's names, defaults and bounds, plus what its library leaves out."""

    title: ClassVar[str] = "Consumer options"
    opt_flag: ClassVar[str] = "consumer-opt"

    max_in_flight: int = option(
        1, "integer", "Most messages in flight, for each topic over all connections.", minimum=0
    )
    max_in_flight_bytes: int = option(
        64 << 20, "size", "Most bytes of bodies in flight, by their mean size.", minimum=1
    )
    sample_rate: int = option(
        0,
        "integer",
        "Percent of the messages to receive, the rest is discarded by nsqd; 0 for all.",
        minimum=0,
        maximum=99,
    )
    msg_timeout: float = option(
        0.0,
        "duration",
        "nsqd delivers a message again after this time; 0 for its own default.",
        minimum=0.0,
    )
    max_attempts: int = option(
        5,
        "integer",
        "Deliveries before a message is given up; 0 for no limit.",
        minimum=0,
        maximum=65535,
    )
    default_requeue_delay: float = option(
        90.0,
        "duration",
        "Delay of a requeued message, times its attempts.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    max_requeue_delay: float = option(
        900.0,
        "duration",
        "Longest delay of a requeued message.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    backoff_strategy: str = option(
        "exponential",
        "choice",
        "How backoff grows.",
        choices=("exponential", "full_jitter"),
        flag=False,
    )
    backoff_multiplier: float = option(
        1.0,
        "duration",
        "Unit of backoff: the first wait is twice this.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    max_backoff_duration: float = option(
        120.0,
        "duration",
        "Longest backoff; 0 for none at all.",
        minimum=0.0,
        maximum=3600.0,
        flag=False,
    )
    low_rdy_idle_timeout: float = option(
        10.0,
        "duration",
        "With fewer slots than connections: an idle one gives up its RDY after this.",
        minimum=1.0,
        maximum=300.0,
        flag=False,
    )
    low_rdy_timeout: float = option(
        30.0,
        "duration",
        "With fewer slots than connections: a busy one gives up its RDY after this.",
        minimum=1.0,
        maximum=300.0,
        flag=False,
    )
    rdy_redistribute_interval: float = option(
        5.0,
        "duration",
        "How often RDY is looked at.",
        minimum=0.001,
        maximum=5.0,
        flag=False,
    )
    lookupd_poll_interval: float = option(
        60.0,
        "duration",
        "Time between rounds of nsqlookupd.",
        minimum=0.01,
        maximum=300.0,
        flag=False,
    )
    lookupd_poll_jitter: float = option(
        0.3,
        "number",
        "Random part of that time.",
        minimum=0.0,
        maximum=1.0,
        flag=False,
    )
    lookupd_poll_timeout: float = option(
        60.0, "duration", "Limit for an answer of nsqlookupd.", minimum=0.001, flag=False
    )
    lookupd_authorization: bool = option(
        True,
        "flag",
        "Send the AUTH secret to nsqlookupd as a bearer token. go-nsq's name for it, "
        "skip_lookupd_authorization, does the same: true sends.",
        flag=False,
        alias="skip_lookupd_authorization",
    )
    reconnect_delay: float = option(
        8.0,
        "duration",
        "First delay before a fixed nsqd is dialled again; it doubles each time.",
        minimum=0.0,
        flag=False,
    )
    max_reconnect_delay: float = option(
        120.0, "duration", "Longest such delay.", minimum=0.0, flag=False
    )
    drain_timeout: float = option(
        30.0, "duration", "Limit for finishing what is in flight when stopping.", minimum=0.0
    )

    def validate(self) -> None:
        """As the base's, and what only a consumer negotiates."""
        ClientConfig.validate(self)
        if 0 < self.msg_timeout < 1:
            raise ConfigError("--msg-timeout: nsqd takes 0, for its own, or at least 1s")

    def identify(self) -> dict[str, Any]:
        """As the base's, with what only a consumer negotiates."""
        body = ClientConfig.identify(self)
        if self.sample_rate:
            body["sample_rate"] = self.sample_rate
        if self.msg_timeout:
            body["msg_timeout"] = round(self.msg_timeout * 1000)
        return body


@option_class
class ProducerConfig(ClientConfig):
    """A producer of messages."""

    title: ClassVar[str] = "Producer options"
    opt_flag: ClassVar[str] = "producer-opt"

    heartbeat_interval: float = option(
        10.0, "duration", "Time between nsqd's heartbeats.", minimum=1.0, flag=False
    )
    read_timeout: float = option(
        25.0,
        "duration",
        "A connection that stays silent this long is dropped, and its batches go elsewhere.",
        minimum=0.1,
        maximum=300.0,
        flag=False,
    )
    mode: str = option(
        "round-robin",
        "choice",
        "Which of several nsqds gets a batch: the next one, the next one of those that answer, "
        "more often a faster one; another if that fails. Or all of them get a copy.",
        choices=("round-robin", "hostpool", "epsilon-greedy", "all"),
    )
    max_msg_size: int = option(
        1 << 20, "size", "Largest message, as nsqd's option of that name.", minimum=1
    )
    max_body_size: int = option(
        5 << 20, "size", "Largest batch, as nsqd's option of that name.", minimum=64
    )
    reconnect_delay: float = option(
        0.25,
        "duration",
        "First delay before an nsqd is dialled again; it doubles each time.",
        minimum=0.001,
        flag=False,
    )
    max_reconnect_delay: float = option(
        8.0, "duration", "Longest such delay.", minimum=0.001, flag=False
    )
    publish_timeout: float = option(
        60.0,
        "duration",
        "A batch that no nsqd has taken within this time is given up.",
        minimum=0.001,
    )


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
class LogOptions(Options):
    """What goes to stderr."""

    title: ClassVar[str] = "Logging"
    shared: ClassVar[bool] = True

    verbose: int = option(0, "count", "Say what is going on; -vv says everything.", short="v")
    quiet: bool = option(False, "flag", "Say nothing but errors.", short="q")
    log_format: str = option(
        "text", "choice", "Form of log lines on stderr.", choices=("text", "json")
    )


@option_class
class FileOptions(Options):
    """Which configuration file is read, and which of its profiles."""

    title: ClassVar[str] = "Configuration"
    shared: ClassVar[bool] = True

    config: str = option(
        "",
        "path",
        "Configuration file, or none.",
        default_note="$XDG_CONFIG_HOME/nsqtools/config.toml or /etc/nsqtools/config.toml",
        in_file=False,
    )
    profile: tuple[str, ...] = texts(
        "Profile of that file, or none.",
        metavar="NAME",
        default_note="its default_profile",
        values="profile",
        in_file=False,
    )

    def validate(self) -> None:
        """There is one profile at a time."""
        if len(self.profile) > 1:
            names = " and ".join(map(repr, self.profile))
            raise ConfigError(f"--profile: give one profile, not {names}")


@option_class
class RecordOptions(Options):
    """How messages stand in a stream of bytes, for ``tail`` out and for ``pub`` in."""

    title: ClassVar[str] = "Format"

    delimiter: str = option(
        "\\n", "text", "Bytes after each message: text, \\n, \\t, \\0, \\xNN.", metavar="BYTES"
    )
    null: bool = option(
        False,
        "flag",
        "A NUL after each message, as for xargs -0.",
        short="0",
        excludes=("delimiter",),
    )
    length_prefix: bool = option(
        False,
        "flag",
        "Four bytes of length, big-endian, before each message.",
        excludes=("delimiter", "null"),
    )
    json: bool = option(
        False,
        "flag",
        "One JSON object a line, with metadata, as tail writes and pub reads it.",
        excludes=("delimiter", "null", "length_prefix"),
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


@option_class
class ArchiveSourceOptions(SourceOptions):
    """Which topics ``to-file`` archives: by name, by pattern, or those of the names that match."""

    topic: tuple[str, ...] = texts(
        "Topic to archive; may be repeated.", metavar="TOPIC", values="topic", own=True
    )
    topic_pattern: str = option(
        "",
        "text",
        "Archive every topic whose name has a match of this regular expression.",
        metavar="REGEX",
        own=True,
    )
    topic_refresh: float = option(
        60.0, "duration", "Time between looks for topics of --topic-pattern.", minimum=0.1, own=True
    )
    http_client_connect_timeout: float = option(
        2.0,
        "duration",
        "Limit for a connection to nsqlookupd, for the list of topics.",
        minimum=0.001,
        own=True,
    )
    http_client_request_timeout: float = option(
        5.0, "duration", "Limit for that answer.", minimum=0.001, own=True
    )

    def validate(self) -> None:
        """A pattern is a regular expression."""
        if not self.topic_pattern:
            return
        import re

        try:
            re.compile(self.topic_pattern)
        except re.error as error:
            raise ConfigError(
                f"--topic-pattern {self.topic_pattern!r}: not a regular expression: {error}"
            ) from None

    def check_complete(self) -> None:
        """A topic or a pattern is needed, and a pattern needs somebody to ask."""
        if self.topic:
            return
        if not self.topic_pattern:
            raise ConfigError("--topic or --topic-pattern is required")
        if not self.lookupd_http_address:
            raise ConfigError("--topic-pattern: needs --lookupd-http-address, which knows topics")


@option_class
class ArchiveRecordOptions(Options):
    """How records stand in archives, for ``to-file`` out and for ``verify`` in."""

    title: ClassVar[str] = "Records"

    format: str = option(
        "raw",
        "choice",
        "Bodies, each followed by the delimiter; one JSON object a line, with metadata, as "
        "tail --json; or bodies with four bytes of length, big-endian, before each.",
        choices=("raw", "json", "length-prefixed"),
    )
    delimiter: str = option(
        "\\n", "text", "Bytes after each body: text, \\n, \\t, \\0, \\xNN.", metavar="BYTES"
    )

    def validate(self) -> None:
        """A delimiter stands in raw files alone."""
        if self.format != "raw" and self.delimiter != "\\n":
            raise ConfigError(f"--delimiter: --format {self.format} has none")
        if not self.delimiter:
            raise ConfigError("--delimiter: empty, records could not be told apart")


@option_class
class ArchiveOptions(ArchiveRecordOptions):
    """What ``to-file`` writes: nsq_to_file's names, and what it lacks."""

    title: ClassVar[str] = "Archive files"

    output_dir: str = option(".", "path", "Directory of published files.", metavar="DIR")
    work_dir: str = option(
        "",
        "path",
        "Directory of files that are still written to.",
        metavar="DIR",
        default_note="beside the published file, with .part after its name",
    )
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "text",
        "Name of a file: <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are replaced; "
        "/ makes directories.",
        metavar="TEXT",
    )
    datetime_format: str = option(
        "%Y-%m-%d_%H", "text", "strftime format of <DATETIME>.", metavar="TEXT"
    )
    host_identifier: str = option(
        "",
        "text",
        "Text of <HOST>; <SHORT_HOST> and <HOSTNAME> are replaced.",
        default_note="the host name up to its first dot",
    )
    name_by: str = option(
        "clock",
        "choice",
        "Time in <DATETIME>: when a message came, or when it was published.",
        choices=("clock", "message"),
    )
    utc: bool = option(False, "flag", "Name and rotate files by UTC, not by local time.")
    max_open_files: int = option(
        64,
        "integer",
        "Most files of a topic open at once with --name-by message.",
        minimum=1,
        maximum=10000,
    )
    close_idle: float = option(
        300.0,
        "duration",
        "With --name-by message: publish a file that got no record for this long.",
        minimum=0.001,
    )
    compress: str = option(
        "none",
        "choice",
        "Compression of files; its suffix is appended to names.",
        choices=("none", "gzip", "zstd"),
    )
    gzip: bool = option(False, "flag", "As --compress gzip.", excludes=("compress",))
    gzip_level: int = option(
        6, "integer", "Level of gzip; the package isal speeds up 1 to 3.", minimum=1, maximum=9
    )
    zstd_level: int = option(3, "integer", "Level of zstd.", minimum=1, maximum=19)
    skip_empty_files: bool = option(False, "flag", "Make no file for a time without messages.")
    rotate_size: int = option(
        0,
        "size",
        "Begin another file when this much was written, before compression.",
        minimum=0,
        default_note="no limit",
    )
    rotate_compressed_size: int = option(
        0,
        "size",
        "Begin another file when the file is larger than this.",
        minimum=0,
        default_note="no limit",
    )
    rotate_interval: float = option(
        0.0,
        "duration",
        "Begin another file this long after the last one was begun.",
        minimum=0.0,
        default_note="no limit",
    )
    rotate_boundary: float = option(
        0.0,
        "duration",
        "Begin another file whenever the clock shows a multiple of this since midnight.",
        minimum=0.0,
        maximum=86400.0,
        default_note="no limit",
    )
    sync_interval: float = option(
        30.0,
        "duration",
        "Longest time until a message is on disk and finished; at most half of nsqd's msg_timeout.",
        minimum=0.001,
    )
    on_rotate: str = option(
        "",
        "text",
        "Shell command to run with each published file: {} is its quoted path, which is else "
        "appended.",
        metavar="COMMAND",
    )
    on_rotate_timeout: float = option(
        600.0,
        "duration",
        "Limit for that command, which has failed when it is killed.",
        minimum=0.001,
    )
    latest_link: str = option(
        "",
        "path",
        "Symbolic link to keep on the newest published file, relative to --output-dir; <TOPIC> is "
        "replaced.",
        metavar="FILE",
    )
    keep: int = option(
        0,
        "integer",
        "Most published files of a topic; older ones are deleted.",
        minimum=0,
        default_note="all",
    )
    max_age: float = option(
        0.0,
        "duration",
        "Delete published files that are older than this.",
        minimum=0.0,
        default_note="no limit",
    )
    max_total: int = option(
        0,
        "size",
        "Most bytes of a topic's published files; the oldest are deleted.",
        minimum=0,
        default_note="no limit",
    )
    manifest: str = option(
        "",
        "path",
        "File, relative to --output-dir, that gets one JSON line per published file: name, "
        "records, bytes, times, sha256.",
        metavar="FILE",
    )
    lock: str = option(
        "", "path", "File to lock, so that one such command runs at a time.", metavar="FILE"
    )
    wait_lock: bool = option(
        False, "flag", "Wait for a lock that another process holds; else exit with 75."
    )
    fail_fast: bool = option(
        False, "flag", "Exit with 1 when a file cannot be written; else wait and try again."
    )
    log_level: str = option(
        "",
        "choice",
        "nsq_to_file's name for -v and -q.",
        choices=("", "debug", "info", "warn", "error", "fatal"),
    )
    log_prefix: str = option("", "text", "Text before each log line.")

    @property
    def compression(self) -> str:
        """What ``--compress`` and ``--gzip`` amount to."""
        return "gzip" if self.gzip else self.compress

    def validate(self) -> None:
        """What is asked of the clock, and what cannot be one file."""
        ArchiveRecordOptions.validate(self)
        if self.lock and self.lock == self.manifest:
            raise ConfigError("--lock and --manifest: one file cannot be both")
        if self.rotate_boundary % 1:
            raise ConfigError("--rotate-boundary: expected whole seconds")


@option_class
class VerifyOptions(ArchiveRecordOptions):
    """How ``verify`` reads and reports."""

    max_msg_size: int = _max_msg_size()
    json: bool = option(False, "flag", "Print one JSON object per file.")


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


_STATUS = re.compile("[1-5]([0-9]{2}(-[1-5][0-9]{2})?|[xX]{2})")


@option_class
class HttpOptions(Options):
    """What ``to-http`` sends where: nsq_to_http's names, and what it lacks."""

    title: ClassVar[str] = "Delivery"

    post: tuple[str, ...] = option(
        (),
        "text",
        "URL to POST each message to; may be repeated.",
        multiple=True,
        metavar="URL",
        hides=URL_SECRETS,
        excludes=("get",),
    )
    get: tuple[str, ...] = option(
        (),
        "text",
        "URL to GET for each message, which stands escaped for %s; may be repeated.",
        multiple=True,
        metavar="URL",
        hides=URL_SECRETS,
    )
    mode: str = option(
        "hostpool",
        "choice",
        "Which of several URLs gets a message: the next one of those that answer, the next one, "
        "more often a faster one, or all of them.",
        choices=("hostpool", "round-robin", "epsilon-greedy", "all"),
    )
    concurrency: int = option(
        100, "integer", "Most requests at a time.", minimum=1, maximum=10000, short="n"
    )
    endpoint_concurrency: int = option(
        0, "integer", "Most requests at a time to one URL; 0 for no limit.", minimum=0
    )
    rate: float = option(
        0.0,
        "number",
        "Most deliveries per second, of a message or of a batch; 0 for no limit.",
        minimum=0.0,
    )
    sample: float = option(
        1.0,
        "number",
        "Part of the messages to deliver; the others are finished at once.",
        minimum=0.0,
        maximum=1.0,
    )
    batch: int = option(
        1,
        "integer",
        "Most messages of a request, of which twice as many may be in flight.",
        minimum=1,
        maximum=10000,
        metavar="N",
    )
    batch_wait: float = option(
        0.2, "duration", "Longest wait for as many messages.", minimum=0.0, maximum=60.0
    )
    batch_format: str = option(
        "ndjson",
        "choice",
        "How messages share a body: one JSON text a line, a JSON array, or with four bytes of "
        "length, big-endian, before each.",
        choices=("ndjson", "json-array", "length-prefixed"),
    )
    header: tuple[str, ...] = texts(
        "Header of every request; may be repeated.",
        metavar="'NAME: VALUE'",
        hides=r"(?<=:).*",
        lines=True,
    )
    header_file: tuple[str, ...] = option(
        (),
        "path",
        "File of such headers, one a line, so that secrets stay off the command line; may be "
        "repeated.",
        multiple=True,
        metavar="FILE",
    )
    content_type: str = option(
        "",
        "text",
        "Content-Type of POSTs.",
        metavar="TYPE",
        default_note="application/octet-stream, or that of the batch format",
    )
    compress: str = option("none", "choice", "Compression of bodies.", choices=("none", "gzip"))
    sign_secret_file: str = option(
        "",
        "path",
        "File of a secret that requests are signed with as Standard Webhooks does; with several "
        "lines they have a signature of each.",
        metavar="FILE",
    )
    success_on: str = option(
        "2xx",
        "text",
        "Statuses that finish a message, as in 2xx,304 or 200-204.",
        metavar="STATUSES",
    )
    drop_on: str = option(
        "",
        "text",
        "Statuses that make it a dead letter at once; 410 only if it is named itself.",
        metavar="STATUSES",
    )
    retry_on: str = option(
        "",
        "text",
        "Exceptions from both; all other statuses are tried again, too.",
        metavar="STATUSES",
    )
    follow_redirects: bool = option(
        False,
        "flag",
        "Follow redirects that leave a request what it is: a POST 307 and 308. Else they are "
        "failures.",
    )
    http_client_connect_timeout: float = option(
        2.0, "duration", "Limit for a connection to be made.", minimum=0.001
    )
    http_client_request_timeout: float = option(
        20.0, "duration", "Limit for all of a request, from the connection on.", minimum=0.001
    )
    proxy: str = option(
        "",
        "text",
        "HTTP proxy, or none; that of the environment is not for this host.",
        metavar="URL",
        hides=URL_SECRETS,
        default_note="$http_proxy, $https_proxy and $no_proxy",
    )
    http_tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )
    http_tls_cert: str = option("", "path", "Client certificate for https (PEM).")
    http_tls_key: str = option("", "path", "Key of that certificate (PEM).")
    http_tls_insecure_skip_verify: bool = option(
        False, "flag", "Do not verify certificates of https."
    )
    status_every: int = option(
        0,
        "integer",
        "Tell counts and latencies of each URL on stderr, after so many requests and at the end.",
        minimum=0,
        default_note="never",
    )
    dry_run: bool = option(
        False,
        "flag",
        "Print requests for messages published from now on, and send and finish nothing.",
    )

    def validate(self) -> None:
        """What belongs together."""
        if bool(self.http_tls_cert) != bool(self.http_tls_key):
            raise ConfigError(
                "--http-tls-cert and --http-tls-key belong together: give both or neither"
            )
        for flag in ("success-on", "drop-on", "retry-on"):
            text = getattr(self, flag.replace("-", "_"))
            for word in map(str.strip, text.split(",") if text.strip() else ()):
                if not _STATUS.fullmatch(word):
                    raise ConfigError(
                        f"--{flag}: {word!r} is not a status: write 429, 200-204 or 5xx, with "
                        "commas between"
                    )
        if self.get and self.batch > 1:
            raise ConfigError("--batch: needs --post, as a request of --get has no body")

    def check_complete(self) -> None:
        """A URL is needed."""
        if not self.post and not self.get:
            raise ConfigError("--post or --get is required")


@option_class
class DeliveryStopOptions(StopOptions):
    """``-n`` is nsq_to_http's number of requests at a time."""

    count: int = option(
        0,
        "integer",
        "Stop after this many messages, all topics together.",
        minimum=0,
        default_note="no limit",
    )


@option_class
class RelayOptions(Options):
    """What ``relay`` sends where: nsq_to_nsq's names, and what it lacks."""

    title: ClassVar[str] = "Destination and rules"

    destination_nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to publish to; may be repeated.",
        required=True,
    )
    destination_nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of such an nsqd, by which a loop is noticed; may be repeated.",
        default_note="the port after the TCP port",
    )
    destination_topic: str = option(
        "",
        "text",
        "Topic to publish to.",
        metavar="TOPIC",
        values="topic",
        default_note="the name of the topic that is consumed",
        excludes=("map",),
    )
    map: tuple[str, ...] = texts(
        "Name of the destination topic by that of the topic, which REGEX matches as a whole; "
        "TEMPLATE has \\1 and \\g<name>. May be repeated: the first match counts.",
        metavar="REGEX=TEMPLATE",
        lines=True,
    )
    require_json_field: str = option(
        "", "text", "Relay only JSON objects that have this field.", metavar="FIELD"
    )
    require_json_value: str = option(
        "",
        "text",
        "Relay only those in which the field has this value: text, number, true, false or null.",
        metavar="VALUE",
    )
    whitelist_json_field: tuple[str, ...] = texts(
        "Relay only this field of JSON objects, as it is written; may be repeated.", metavar="FIELD"
    )
    where: str = option(
        "",
        "text",
        "Relay only JSON of which this jq expression is neither false nor null.",
        metavar="JQ",
    )
    set: tuple[str, ...] = texts(
        "Edit JSON by this jq expression, such as '.seen = true'; may be repeated.",
        metavar="JQ",
        lines=True,
    )
    pass_invalid: bool = option(
        False,
        "flag",
        "Relay what is not JSON as it is; else it is a dead letter or, without a place for those, "
        "goes back to nsqd.",
    )
    defer: float = option(
        0.0,
        "duration",
        "Let the destination deliver only after this time.",
        minimum=0.0,
        maximum=3600.0,
    )
    rate: float = option(0.0, "number", "Most messages per second; 0 for no limit.", minimum=0.0)
    status_every: int = option(
        0,
        "integer",
        "Tell the counts of each topic on stderr, after so many messages, at most once a second, "
        "and at the end.",
        minimum=0,
        default_note="never, but at the end with --until-empty",
    )

    def validate(self) -> None:
        """A value is one of a field."""
        if self.require_json_value and not self.require_json_field:
            raise ConfigError("--require-json-value: needs --require-json-field")


_MASTER = r"local(\[\s*(\d+|\*)\s*(,\s*\d+\s*)?\])?|local-cluster\[[\d\s,]+\]|(spark|k8s)://.+|yarn"
"""As Spark's own SparkContext.scala, and the two cluster managers that come with it."""


@option_class
class SparkOptions(Options):
    """The Spark that a pipeline runs in."""

    title: ClassVar[str] = "Spark"
    shared: ClassVar[bool] = True

    master: str = option(
        "local[*]",
        "text",
        "Where Spark runs: local[N] with N threads of this machine, local[*] with one for each of "
        "its cores, spark://HOST:PORT, yarn or k8s://URL.",
        metavar="URL",
    )
    conf: tuple[str, ...] = texts(
        "Property of Spark, such as spark.driver.memory=2g; may be repeated.",
        metavar="KEY=VALUE",
        lines=True,
    )
    spark_log: str = option(
        "",
        "path",
        "File that is appended to with what Spark, Java and Python workers say.",
        metavar="FILE",
        default_note="it is discarded",
    )

    def validate(self) -> None:
        """The master has a form that Spark knows, and a property has a name."""
        if not re.fullmatch(_MASTER, self.master):
            raise ConfigError(
                f"--master {self.master}: expected local, local[N], local[*], spark://HOST:PORT, "
                "yarn or k8s://URL"
            )
        for text in self.conf:
            name, equals, _ = text.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"--conf {text!r}: expected KEY=VALUE")

    @property
    def properties(self) -> dict[str, str]:
        """``conf`` by name; the last one counts."""
        pairs = (text.partition("=") for text in self.conf)
        return {name.strip(): value for name, _, value in pairs}


@option_class
class StreamSourceOptions(SourceOptions):
    """Where a pipeline reads; messages wait there between its batches, so the channel must stay."""

    channel: str = option(
        "",
        "text",
        "Channel to consume it on.",
        metavar="CHANNEL",
        values="channel",
        own=True,
        required=True,
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of each --nsqd-tcp-address, in their order, which tells how much waits; may "
        "be repeated.",
        own=True,
        default_note="what nsqlookupd says, or the port after the TCP port",
    )

    def validate(self) -> None:
        """HTTP addresses have their TCP addresses, and names stay when nobody consumes them."""
        count = len(self.nsqd_http_address)
        if count and self.lookupd_http_address:
            raise ConfigError("--nsqd-http-address: nsqlookupd tells them; give one of the two")
        if count and count != len(self.nsqd_tcp_address):
            raise ConfigError(
                f"--nsqd-http-address: there are {count}, for {len(self.nsqd_tcp_address)} of "
                "--nsqd-tcp-address: give one for each, in their order"
            )
        for kind, names in (("topic", self.topic), ("channel", (self.channel,))):
            for name in filter(is_ephemeral, names):
                raise ConfigError(
                    f"--{kind} {name}: it is gone, with its messages, whenever nobody consumes "
                    "it, as between two batches: name another"
                )


@option_class
class QuerySourceOptions(StreamSourceOptions):
    """Where ``pipeline sql`` reads, unless it reads archives."""

    topic: tuple[str, ...] = texts(
        "Topic to consume; may be repeated.", metavar="TOPIC", values="topic", own=True
    )
    channel: str = option(
        "", "text", "Channel to consume it on.", metavar="CHANNEL", values="channel", own=True
    )


@option_class
class StreamConfig(ClientConfig):
    """The connections of a pipeline's source: of a consumer's options those that Spark leaves."""

    title: ClassVar[str] = "Consumer options"
    opt_flag: ClassVar[str] = "consumer-opt"

    max_in_flight: int = option(
        5_000,
        "integer",
        "Most messages in flight from an nsqd, of each topic and for each of --connections.",
        minimum=1,
    )
    max_in_flight_bytes: int = option(
        64 << 20, "size", "Most bytes of bodies in flight, by their mean size.", minimum=1
    )
    msg_timeout: float = option(
        0.0,
        "duration",
        "nsqd delivers a message again after this time; 0 for its own default.",
        minimum=0.0,
    )

    lookupd_poll_timeout: float = option(
        60.0, "duration", "Limit for an answer of nsqlookupd.", minimum=0.001, flag=False
    )
    lookupd_authorization: bool = option(
        True, "flag", "Send the AUTH secret to nsqlookupd as a bearer token.", flag=False
    )
    auth_secret_env: str = option(
        "",
        "text",
        "Environment variable of Spark's executors that holds the AUTH secret.",
        metavar="NAME",
        flag=False,
        excludes=("auth_secret", "auth_secret_file"),
    )

    def validate(self) -> None:
        """As the base's, and what only a consumer negotiates."""
        ClientConfig.validate(self)
        if 0 < self.msg_timeout < 1:
            raise ConfigError("--msg-timeout: nsqd takes 0, for its own, or at least 1s")


@option_class
class StreamOptions(Options):
    """How a stream is cut into batches, and where its state is."""

    title: ClassVar[str] = "Batches"

    continuous: bool = option(
        False, "flag", "Go on until a signal; else stop when all is done that waited at the start."
    )
    trigger: float = option(
        5.0, "duration", "Time between batches of --continuous.", minimum=0.0, maximum=86400.0
    )
    max_per_trigger: int = option(
        500_000, "integer", "Most messages of a batch; 0 for no limit.", minimum=0, metavar="N"
    )
    connections: int = option(
        2,
        "integer",
        "Tasks that receive from an nsqd at the same time, each over connections of its own.",
        minimum=1,
        maximum=256,
        metavar="N",
    )
    checkpoint: str = option(
        "",
        "path",
        "Directory, or URL of one, of Spark's state: a run goes on where the last one ended.",
        metavar="DIR",
        default_note="_nsqtools/checkpoint in the output",
    )
    staging: str = option(
        "",
        "path",
        "Directory of messages that were received, until their batch is done; all executors must "
        "see it.",
        metavar="DIR",
        default_note="_nsqtools/staging in the output",
    )
    lock: str = option(
        "", "path", "File to lock, so that one such command runs at a time.", metavar="FILE"
    )


@option_class
class BodyOptions(Options):
    """What is in messages."""

    title: ClassVar[str] = "Bodies"

    schema: str = option(
        "",
        "text",
        "Columns of bodies that are JSON objects, as in SQL: 'user INT, at TIMESTAMP'; or a file "
        "of them, or of Spark's JSON for them.",
        metavar="COLUMNS",
    )


@option_class
class LakeOptions(Options):
    """What ``pipeline archive`` writes."""

    title: ClassVar[str] = "Archive"

    output: str = option(
        "",
        "path",
        "Directory, or URL of one, to write to, in DIR/date=*/hour=*/batch=*.",
        metavar="DIR",
        required=True,
    )
    format: str = option(
        "parquet",
        "choice",
        "Format of files; delta needs its package, by --conf.",
        choices=("parquet", "json", "delta"),
    )
    where: str = option(
        "",
        "text",
        "Write only messages of which this SQL condition is true; the others are finished, too.",
        metavar="SQL",
    )
    select: str = option(
        "",
        "text",
        "Columns to write, as in SQL: 'user, upper(name) AS name'.",
        metavar="SQL",
        default_note="all",
    )


@option_class
class InputOptions(Options):
    """Archives that a pipeline reads."""

    title: ClassVar[str] = "Input"

    input: tuple[str, ...] = option(
        (),
        "path",
        "Archive to read: a file, or a directory of pipeline archive, pipeline compact or to-file; "
        "may be repeated.",
        multiple=True,
        metavar="PATH",
        required=True,
    )
    input_format: str = option(
        "",
        "choice",
        "How records stand in files of to-file, as its --format.",
        choices=("", "raw", "json", "length-prefixed"),
        default_note="there are none",
    )
    delimiter: str = option(
        "\\n",
        "text",
        "Bytes after each body of raw files: text, \\n, \\t, \\0, \\xNN.",
        metavar="BYTES",
    )

    def validate(self) -> None:
        """A delimiter stands in raw files alone."""
        if self.delimiter != "\\n" and self.input_format != "raw":
            raise ConfigError("--delimiter: needs --input-format raw")
        if not self.delimiter:
            raise ConfigError("--delimiter: empty, records could not be told apart")


@option_class
class QueryInputOptions(InputOptions):
    """Archives that ``pipeline sql`` reads, unless it consumes topics."""

    input: tuple[str, ...] = option(
        (),
        "path",
        "Archive to read instead of topics: a file, or a directory of pipeline archive, pipeline "
        "compact or to-file; may be repeated.",
        multiple=True,
        metavar="PATH",
    )


@option_class
class QueryOptions(Options):
    """What ``pipeline sql`` does."""

    title: ClassVar[str] = "Query"

    query: str = option(
        "",
        "text",
        "SELECT from the table nsq, or @FILE to read it from a file.",
        metavar="SQL",
        required=True,
    )
    watermark: float = option(
        0.0,
        "duration",
        "Longest that a message may come late, by its timestamp, to be in its window.",
        minimum=0.0,
        default_note="no limit",
    )
    format: str = option(
        "",
        "choice",
        "Where the result goes: files, a table on standard output, or a topic.",
        choices=("", "parquet", "json", "console", "topic"),
        default_note="parquet with --output, topic with --destination-topic, else console",
    )
    output: str = option("", "path", "Directory, or URL of one, for files.", metavar="DIR")
    output_mode: str = option(
        "append",
        "choice",
        "Which rows of a streaming aggregation to write after a batch: those that are final, those "
        "that changed, or all.",
        choices=("append", "update", "complete"),
    )
    destination_topic: str = option(
        "",
        "text",
        "Topic for the column body, or without one for rows as JSON objects.",
        metavar="TOPIC",
        values="topic",
        excludes=("output",),
    )
    destination_nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd of that topic; may be repeated.",
        default_note="those of --nsqd-tcp-address",
    )
    explain: bool = option(False, "flag", "Print Spark's plan, and consume nothing.")

    @property
    def kind(self) -> str:
        """Where the result goes: ``parquet``, ``json``, ``console`` or ``topic``."""
        if self.format:
            return self.format
        return "parquet" if self.output else "topic" if self.destination_topic else "console"

    def validate(self) -> None:
        """A format and a place belong together."""
        wanted = {"parquet": "output", "json": "output", "topic": "destination_topic"}
        need = wanted.get(self.kind, "")
        for name in ("output", "destination_topic"):
            given = bool(getattr(self, name))
            if given and name != need:
                raise ConfigError(f"--{flag_name(name)}: --format {self.kind} has no use for it")
            if not given and name == need:
                raise ConfigError(f"--format {self.kind}: needs --{flag_name(name)}")


@option_class
class CompactOptions(Options):
    """What ``pipeline compact`` writes."""

    title: ClassVar[str] = "Compaction"

    output: str = option(
        "",
        "path",
        "Directory to write to, in DIR/date=*/hour=*; what was compacted before stays in it.",
        metavar="DIR",
        required=True,
    )
    older_than: float = option(
        0.0,
        "duration",
        "Leave files of --input for a later run that were changed in this time.",
        minimum=0.0,
    )
    file_size: int = option(
        256 << 20, "size", "Bodies of a file, before compression.", minimum=1 << 20
    )
    delete_inputs: bool = option(
        False, "flag", "Delete files of --input once the files made of them were read again."
    )


@option_class
class ReplayOptions(Options):
    """What ``pipeline replay`` publishes, and how."""

    title: ClassVar[str] = "Replay"

    where: str = option(
        "",
        "text",
        "Publish only messages of which this SQL condition is true.",
        metavar="SQL",
    )
    order_by: str = option(
        "",
        "text",
        "Columns to order by, with commas between, such as timestamp, or timestamp DESC.",
        metavar="COLUMNS",
        default_note="by nothing in particular",
    )
    rate: float = option(0.0, "number", "Most messages per second; 0 for no limit.", minimum=0.0)
    staging: str = option(
        "",
        "path",
        "Directory of the chosen messages, and of how far they are published.",
        metavar="DIR",
        default_note="_nsqtools/replay-TOPIC in the first --input",
    )
    lock: str = option(
        "", "path", "File to lock, so that one such command runs at a time.", metavar="FILE"
    )


def _connect_timeout() -> Any:
    return option(2.0, "duration", "Limit for a connection to be made.", minimum=0.001)


def _request_timeout() -> Any:
    return option(5.0, "duration", "Limit for an answer.", minimum=0.001)


def _timeout() -> Any:
    return option(
        8.0,
        "duration",
        "Time limit for the whole command; in stats, for each report. --check adds --interval.",
        minimum=0.1,
    )


@option_class
class LookupOptions(Options):
    """Which nsqlookupds to ask and how to print."""

    title: ClassVar[str] = "Look-up"
    shared: ClassVar[bool] = True

    lookupd_http_address: tuple[str, ...] = urls(
        "nsqlookupd to ask; may be repeated.",
        default=(f"127.0.0.1:{LOOKUPD_HTTP_PORT}",),
    )
    http_client_connect_timeout: float = _connect_timeout()
    http_client_request_timeout: float = _request_timeout()
    timeout: float = _timeout()
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )
    json: bool = option(False, "flag", "Print JSON.", own=True)


@option_class
class ClusterOptions(Options):
    """Which nsqds a command looks at, over HTTP."""

    title: ClassVar[str] = "Cluster"
    shared: ClassVar[bool] = True

    lookupd_http_address: tuple[str, ...] = urls("nsqlookupd to ask for nsqds; may be repeated.")
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd, asked right there; may be repeated, beside nsqlookupds too.",
        outranks=("lookupd_http_address",),
        default_note=f"127.0.0.1:{NSQD_HTTP_PORT}, unless an nsqlookupd is given",
    )
    http_client_connect_timeout: float = _connect_timeout()
    http_client_request_timeout: float = _request_timeout()
    timeout: float = _timeout()
    tls_root_ca_file: str = option(
        "", "path", "CA certificates to trust for https, instead of the system's (PEM)."
    )

    @property
    def nsqds(self) -> tuple[str, ...]:
        """The given nsqds: the one of this host, if neither is given."""
        if self.nsqd_http_address or self.lookupd_http_address:
            return self.nsqd_http_address
        return (f"127.0.0.1:{NSQD_HTTP_PORT}",)


@option_class
class StatsOptions(Options):
    """What ``stats`` reports, how often and how."""

    title: ClassVar[str] = "Report"

    topic: str = option(
        "",
        "text",
        "Only this topic.",
        metavar="TOPIC",
        values="topic",
        default_note="all",
    )
    channel: str = option(
        "",
        "text",
        "Only channels of this name.",
        metavar="CHANNEL",
        values="channel",
        default_note="all",
    )
    interval: float = option(2.0, "duration", "Time between reports.", minimum=0.01)
    count: int = option(
        0,
        "integer",
        "End after this many reports.",
        minimum=0,
        short="n",
        default_note="no limit",
    )
    once: bool = option(
        False, "flag", "Report once and at once, with no rates.", excludes=("count", "watch")
    )
    clients: bool = option(False, "flag", "Report consumers, a row for each.")
    watch: bool = option(
        False,
        "flag",
        "Show a live view: sort with s, filter with /, end with q.",
        excludes=("json", "csv", "clients"),
    )
    json: bool = option(False, "flag", "Print an object for each report.", excludes=("csv",))
    csv: bool = option(False, "flag", "Print rows with commas between, after a header.")


@option_class
class CheckOptions(Options):
    """What monitoring wants of ``stats``: to be told of trouble, or to be served the numbers."""

    title: ClassVar[str] = "Monitoring"

    check: bool = option(
        False,
        "flag",
        "Check once, as monitoring plugins do: the exit status is 0 for OK, 1 for WARNING, 2 for "
        "CRITICAL and 3 for UNKNOWN.",
        in_file=False,
        excludes=("serve",),
    )
    depth_warn: int = _threshold("WARNING if more messages than this wait.", "integer")
    depth_crit: int = _threshold("CRITICAL if more messages than this wait.", "integer")
    inflight_warn: int = _threshold("WARNING if more than this are in flight.", "integer")
    inflight_crit: int = _threshold("CRITICAL if more than this are in flight.", "integer")
    requeue_rate_warn: float = _threshold("WARNING if more than this are requeued per second.")
    requeue_rate_crit: float = _threshold("CRITICAL if more than this are requeued per second.")
    timeout_rate_warn: float = _threshold("WARNING if more than this time out per second.")
    timeout_rate_crit: float = _threshold("CRITICAL if more than this time out per second.")
    age_warn: float = option(
        0.0,
        "duration",
        "WARNING if messages wait longer than this, by an estimate; 0 checks nothing.",
        minimum=0.0,
        default_note="not checked",
    )
    age_crit: float = option(
        0.0,
        "duration",
        "CRITICAL if messages wait longer than this, by an estimate; 0 checks nothing.",
        minimum=0.0,
        default_note="not checked",
    )
    clients_min: int = option(
        0,
        "integer",
        "CRITICAL if a channel has fewer clients, on all nsqds together.",
        minimum=0,
        default_note="not checked",
    )
    nsqds_min: int = option(
        0,
        "integer",
        "CRITICAL if fewer nsqds answer, whatever topics they have.",
        minimum=0,
        default_note="not checked",
    )
    paused: bool = option(False, "flag", "CRITICAL if a topic or channel is paused.")
    serve: str = option(
        "",
        "text",
        "Serve metrics of all nsqds for Prometheus here, over HTTP, until stopped: :PORT is one of "
        "127.0.0.1, and port 0 a free one, which -v tells.",
        metavar="HOST:PORT",
        default_note="not served",
        in_file=False,
    )

    def validate(self) -> None:
        """The address is one, and WARNING comes before CRITICAL."""
        try:
            _ = self.serve_address
        except ConfigError as error:
            raise ConfigError(f"--serve: {error}") from None
        for name in ("depth", "inflight", "requeue_rate", "timeout_rate", "age"):
            warn, crit = getattr(self, f"{name}_warn"), getattr(self, f"{name}_crit")
            unset = 0.0 if name == "age" else -1
            if crit != unset and warn > crit:
                flag = flag_name(name)
                raise ConfigError(f"--{flag}-warn is over --{flag}-crit: it would never be told")

    @property
    def serve_address(self) -> Address | None:
        """Where to listen; the port may be 0."""
        return _listening(self.serve)


@option_class
class ChangeOptions(ClusterOptions):
    """Which servers ``topic``, ``channel`` and ``node`` change, and how they say so."""

    dry_run: bool = option(False, "flag", "Only print what would be asked of whom.", own=True)
    json: bool = option(False, "flag", "Print JSON.", own=True)


@option_class
class LossOptions(ChangeOptions):
    """As ChangeOptions, where messages are lost."""

    yes: bool = option(
        False,
        "flag",
        "Do not ask; needed where there is no terminal to ask on.",
        short="y",
        own=True,
        in_file=False,
    )


@option_class
class TombstoneOptions(LossOptions):
    """How ``node tombstone`` hides an nsqd."""

    delete: bool = option(
        False,
        "flag",
        "Then delete the topic on that nsqd, with its messages, as nsqadmin does.",
        own=True,
    )

    def check_complete(self) -> None:
        """A tombstone is nsqlookupd's."""
        if not self.lookupd_http_address:
            raise ConfigError("--lookupd-http-address is required: nsqlookupd keeps tombstones")


@option_class
class DoctorOptions(Options):
    """What ``doctor`` looks at: the topic and the servers of a command that sees nothing."""

    title: ClassVar[str] = "Source"
    shared: ClassVar[bool] = True

    topic: str = option(
        "",
        "text",
        "Topic that is consumed.",
        metavar="TOPIC",
        values="topic",
        own=True,
        required=True,
    )
    channel: str = option(
        "", "text", "Channel it is consumed on.", metavar="CHANNEL", values="channel", own=True
    )
    nsqd_tcp_address: tuple[str, ...] = addresses(
        "nsqd to consume from; may be repeated.",
        default=(f"127.0.0.1:{NSQD_TCP_PORT}",),
        excludes=("lookupd_http_address",),
    )
    lookupd_http_address: tuple[str, ...] = urls(
        "nsqlookupd to ask for nsqds instead; may be repeated."
    )
    nsqd_http_address: tuple[str, ...] = urls(
        "HTTP address of an nsqd to look at; may be repeated.",
        default_note="what nsqlookupd says, or the port after the TCP port",
    )
    http_client_connect_timeout: float = _connect_timeout()
    http_client_request_timeout: float = _request_timeout()
    timeout: float = _timeout()
    json: bool = option(False, "flag", "Print JSON.", own=True)


@option_class
class ShowOptions(Options):
    """How settings are printed."""

    title: ClassVar[str] = "Output"

    json: bool = option(False, "flag", "Print JSON.")


@option_class
class NsqdOptions(Options):
    """The embedded nsqd: nsqd's names and defaults (``nsqd/options.go``)."""

    title: ClassVar[str] = "The embedded nsqd"

    msg_timeout: float = option(
        60.0, "duration", "A message is delivered again after this time.", minimum=0.001
    )
    max_msg_timeout: float = option(
        900.0, "duration", "Longest that TOUCH can hold a message.", minimum=0.001
    )
    max_req_timeout: float = option(
        3600.0, "duration", "Longest delay of REQ and DPUB.", minimum=0.0
    )
    max_msg_size: int = option(1 << 20, "size", "Largest message.", minimum=1)
    max_body_size: int = option(5 << 20, "size", "Largest body of a command.", minimum=64)
    max_rdy_count: int = option(2500, "integer", "Highest RDY of a client.", minimum=1)
    max_heartbeat_interval: float = option(
        60.0, "duration", "Longest heartbeat interval of a client.", minimum=1.0
    )
    max_channel_consumers: int = option(
        0, "integer", "Most consumers of a channel; 0 for no limit.", minimum=0
    )
    snappy: bool = option(True, "flag", "Offer snappy.")
    deflate: bool = option(True, "flag", "Offer deflate.")
    tls_cert: str = option("", "path", "Certificate (PEM); with it TLS is offered.")
    tls_key: str = option("", "path", "Key of the certificate (PEM).")
    tls_root_ca_file: str = option("", "path", "CA certificates of clients (PEM).")
    tls_client_auth_policy: str = option(
        "",
        "choice",
        "Whether a client must show a certificate, and one of a known CA.",
        choices=("", "require", "require-verify"),
    )
    tls_required: str = option(
        "false",
        "choice",
        "Refuse TCP clients without TLS; HTTP stays open.",
        choices=("false", "tcp-https"),
    )
    auth_secret_file: str = option(
        "", "path", "File with the one AUTH secret that is accepted, for everything."
    )

    def validate(self) -> None:
        """What belongs together."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together: give both or neither")
        if self.tls_required != "false" and not self.tls_cert:
            raise ConfigError("--tls-required: needs --tls-cert and --tls-key")


@option_class
class SandboxOptions(Options):
    """Where the sandbox listens and what it publishes by itself."""

    title: ClassVar[str] = "Sandbox"

    host: str = option("127.0.0.1", "text", "Address to listen on.", metavar="HOST")
    port: int = option(
        4150,
        "integer",
        "TCP port of nsqd; HTTP is the one after it, and nsqlookupd's ports are ten higher. "
        "0 takes free ports and prints them as JSON.",
        minimum=0,
        maximum=65524,
    )
    i_know: bool = option(
        False, "flag", "Listen on an address that others can reach, although all is in memory."
    )
    seed_topic: str = option(
        "",
        "text",
        "Publish sample events to this topic, while fewer than 100,000 wait there.",
        metavar="TOPIC",
        values="topic",
    )
    rate: float = option(10.0, "number", "Sample events a second.", minimum=0.001, maximum=100000.0)


ALL: tuple[type[Options], ...] = tuple(
    each
    for each in globals().values()
    if isinstance(each, type) and issubclass(each, Options) and each is not Options
)
"""What commands are made of."""
