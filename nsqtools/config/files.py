"""Archive files: what to-file writes and verify reads."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.connection import _max_msg_size
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.option import option, option_class, texts
from nsqtools.config.records import ArchiveRecordOptions
from nsqtools.errors import ConfigError


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
