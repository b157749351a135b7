"""Options for archive files, written by to-file and read by verify."""

from __future__ import annotations

from nsqtools.config.admin import CONNECT_TIMEOUT, REQUEST_TIMEOUT
from nsqtools.config.connection import ClientConfig
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.option import (
    NO_LIMIT,
    USER_INFO,
    choice,
    duration,
    flag,
    integer,
    like,
    path,
    size,
    text,
    topic_pattern,
)
from nsqtools.config.program import JSON, LOCK
from nsqtools.config.records import ArchiveRecordOptions
from nsqtools.errors import ConfigError


def _whole_seconds(value: float) -> None:
    if value % 1:
        raise ConfigError("expected whole seconds")


class ArchiveSourceOptions(SourceOptions):
    """The topics to archive with ``to-file``, by name or by pattern."""

    topic: tuple[str, ...] = like(SourceOptions.topic, instead="topic_pattern")
    channel: str = like(SourceOptions.channel, default="nsq_to_file")
    topic_pattern: str = topic_pattern(
        "Archive all topics with names that match this regular expression, in Go's syntax."
    )
    topic_refresh: float = duration(
        "Time between two looks for topics of --topic-pattern.", 60.0, minimum=0.1, own=True
    )
    http_client_connect_timeout: float = like(
        CONNECT_TIMEOUT,
        own=True,
        hidden=True,
    )
    http_client_request_timeout: float = like(
        REQUEST_TIMEOUT,
        own=True,
        hidden=True,
    )

    def check_complete(self) -> None:
        """Raise ConfigError for a pattern without nsqlookupds: these list the topics."""
        super().check_complete()
        if not (self.topic or self.lookupd_http_address):
            raise ConfigError(
                "--topic-pattern needs --lookupd-http-address: nsqlookupd lists the topics",
                options=("topic_pattern",),
            )


class ArchiveOptions(ArchiveRecordOptions):
    """Options of ``to-file``. Options of nsq_to_file keep their names."""

    title = "Archive files"

    output_dir: str = path(
        "Directory for complete files.", ".", metavar="DIR", default_note="the current directory"
    )
    work_dir: str = path(
        "Directory for incomplete files.",
        metavar="DIR",
        default_note="beside the complete file, with .part after its name",
    )
    filename_format: str = text(
        "Template of file names: <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are "
        "replaced, and / makes directories.",
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
    )
    datetime_format: str = text(
        "Format of <DATETIME>, as in strftime. Each new value of <DATETIME> begins a new file.",
        "%Y-%m-%d_%H",
    )
    host_identifier: str = text(
        "Text for <HOST>; <SHORT_HOST> and <HOSTNAME> in it are replaced.",
        default_note="the host name up to its first dot",
    )
    name_by: str = choice(
        "Time for <DATETIME>: clock is the time of arrival, message is the time of publishing.",
        *("clock", "message"),
    )
    utc: bool = flag("Name and rotate files by UTC instead of local time.")
    close_idle: float = duration(
        "With --name-by message: complete a file after this long without a new record.",
        300.0,
        minimum=0.001,
    )
    compress: str = choice("Compression of files; names get its suffix.", "none", "gzip", "zstd")
    gzip: bool = flag("The same as --compress gzip.", excludes=("compress",))
    gzip_level: int = integer(
        "Compression level of gzip; the package isal makes 1 to 3 faster.", 6, minimum=1, maximum=9
    )
    zstd_level: int = integer("Compression level of zstd.", 3, minimum=1, maximum=19)
    skip_empty_files: bool = flag("Make no file for an interval without messages.")
    rotate_size: int = size(
        "Begin a new file after this many bytes, before compression.", 0, default_note=NO_LIMIT
    )
    rotate_interval: float = duration(
        "Begin a new file after this time.", 0.0, default_note=NO_LIMIT
    )
    rotate_boundary: float = duration(
        "Begin a new file at each multiple of this time since midnight: 1h is every full hour.",
        0.0,
        maximum=86400.0,
        default_note="never",
        rule=_whole_seconds,
    )
    sync_interval: float = duration(
        "Maximum time until a message is synced to disk and finished; at most half of the"
        " message timeout.",
        30.0,
        minimum=0.001,
    )
    upload: str = text(
        "Directory to upload each complete file to, under its name relative to --output-dir: a URL "
        "of s3, gs, az or file, or a path. An existing file is never replaced.",
        metavar="URL",
        hides=USER_INFO,
    )
    delete_uploaded: bool = flag(
        "Delete files after their upload; with --on-rotate, after the command has succeeded.",
        needs="upload",
    )
    on_rotate: str = text(
        "Shell command to run with each complete file. {} stands for its quoted path; without {} "
        "the path is appended.",
        metavar="COMMAND",
    )
    on_rotate_timeout: float = duration(
        "Timeout for the --on-rotate command. It is killed then, and run again later.",
        600.0,
        minimum=0.001,
    )
    keep: int = integer(
        "Maximum complete files per topic; the oldest are deleted.", 0, default_note=NO_LIMIT
    )
    max_age: float = duration(
        "Delete files completed longer ago than this, by the host's uptime.",
        0.0,
        default_note=NO_LIMIT,
    )
    max_total: int = size(
        "Maximum bytes of complete files per topic; the oldest are deleted.",
        0,
        default_note=NO_LIMIT,
    )
    manifest: str = path(
        "File for a line of JSON per complete file: name, records, bytes, times, sha256. Relative "
        "to --output-dir.",
        metavar="FILE",
    )
    lock: str = LOCK
    fail_fast: bool = flag("Exit with 1 when a file cannot be written, instead of trying again.")
    log_level: str = choice(
        "Log level, as in nsq_to_file; the same as -v and -q.",
        "",
        "debug",
        "info",
        "warn",
        "error",
        "fatal",
    )
    log_prefix: str = text("Text before each log line.", hidden=True)

    def validate(self) -> None:
        """Raise ConfigError if one file would be used for two purposes."""
        super().validate()
        if self.lock and self.lock == self.manifest:
            text = "--lock and --manifest name the same file: choose different files"
            raise ConfigError(text, options=("lock", "manifest"))


class VerifyOptions(ArchiveRecordOptions):
    """Options of ``verify``."""

    max_msg_size: int = ClientConfig.max_msg_size
    uploaded: str = text(
        "Check the uploaded files of a manifest in this directory, the --upload of to-file: a URL "
        "of s3, gs, az or file, or a path.",
        metavar="URL",
    )
    below: str = path(
        "Also read files of a manifest outside its directory if they are in this one, such as the "
        "--output-dir of to-file.",
        metavar="DIR",
    )
    json: bool = JSON
