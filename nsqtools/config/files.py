"""Options for archive files, which to-file writes and verify reads."""

from __future__ import annotations

import re

from nsqtools.config.admin import CONNECT_TIMEOUT, REQUEST_TIMEOUT
from nsqtools.config.connection import ClientConfig
from nsqtools.config.consuming import SourceOptions
from nsqtools.config.option import choice, duration, flag, integer, like, path, size, text
from nsqtools.config.program import JSON, LOCK
from nsqtools.config.records import ArchiveRecordOptions
from nsqtools.errors import ConfigError


def _regular_expression(value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(f"{value!r} is not a valid regular expression: {error}") from None


def _whole_seconds(value: float) -> None:
    if value % 1:
        raise ConfigError("expected whole seconds")


class ArchiveSourceOptions(SourceOptions):
    """The topics that ``to-file`` archives, by name or by pattern."""

    topic: tuple[str, ...] = like(
        SourceOptions.topic, help="Topic to archive; may be repeated.", instead="topic_pattern"
    )
    channel: str = like(SourceOptions.channel, default="nsq_to_file")
    topic_pattern: str = text(
        "Archive every topic whose name this regular expression matches.",
        metavar="REGEX",
        own=True,
        rule=_regular_expression,
    )
    topic_refresh: float = duration(
        "Interval at which --topic-pattern looks for topics.", 60.0, minimum=0.1, own=True
    )
    http_client_connect_timeout: float = like(
        CONNECT_TIMEOUT,
        help="Timeout for connecting to nsqlookupd, for the list of topics.",
        own=True,
        hidden=True,
    )
    http_client_request_timeout: float = like(
        REQUEST_TIMEOUT,
        help="Timeout for nsqlookupd's response with the list of topics.",
        own=True,
        hidden=True,
    )

    def check_complete(self) -> None:
        """Raise ConfigError for a pattern without nsqlookupds, which list the topics."""
        super().check_complete()
        if not (self.topic or self.lookupd_http_address):
            raise ConfigError(
                "--topic-pattern needs --lookupd-http-address: nsqlookupd lists the topics",
                options=("topic_pattern",),
            )


class ArchiveOptions(ArchiveRecordOptions):
    """Options of ``to-file``. Those that nsq_to_file has keep their names."""

    title = "Archive files"

    output_dir: str = path("Directory for complete files.", ".", metavar="DIR")
    work_dir: str = path(
        "Directory of files that are being written.",
        metavar="DIR",
        default_note="beside the published file, with .part after its name",
    )
    filename_format: str = text(
        "Template of file names: <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are "
        "replaced, and / makes directories.",
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
    )
    datetime_format: str = text("Format of <DATETIME>, as in strftime.", "%Y-%m-%d_%H")
    host_identifier: str = text(
        "Text for <HOST>; <SHORT_HOST> and <HOSTNAME> in it are replaced.",
        default_note="the host name up to its first dot",
    )
    name_by: str = choice(
        "Time for <DATETIME>: clock is when a message arrives, message is when it was published.",
        *("clock", "message"),
    )
    utc: bool = flag("Name and rotate files by UTC instead of local time.")
    close_idle: float = duration(
        "With --name-by message: publish a file that has received no record for this long.",
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
        "Begin a new file after this many bytes, before compression.", 0, default_note="no limit"
    )
    rotate_interval: float = duration(
        "Begin a new file this long after the last one began.", 0.0, default_note="no limit"
    )
    rotate_boundary: float = duration(
        "Begin a new file at each multiple of this since midnight, such as every full hour.",
        0.0,
        maximum=86400.0,
        default_note="no limit",
        rule=_whole_seconds,
    )
    sync_interval: float = duration(
        "Maximum time until a message is synced to disk and finished; at most half of the"
        " message timeout.",
        30.0,
        minimum=0.001,
    )
    upload: str = text(
        "Upload each published file to this directory, under its name relative to --output-dir: a "
        "URL of s3, gs, az or file, or a path. An existing file is never replaced.",
        metavar="URL",
    )
    delete_uploaded: bool = flag(
        "Delete a file that has been uploaded; with --on-rotate, after the command has succeeded.",
        needs="upload",
    )
    on_rotate: str = text(
        "Shell command to run with each published file. {} stands for its quoted path; without {} "
        "the path is appended.",
        metavar="COMMAND",
    )
    on_rotate_timeout: float = duration(
        "Timeout for the --on-rotate command; it is then killed, and repeated later.",
        600.0,
        minimum=0.001,
    )
    keep: int = integer(
        "Maximum complete files per topic; the oldest are deleted.", 0, default_note="all"
    )
    max_age: float = duration(
        "Delete complete files that are older than this.", 0.0, default_note="no limit"
    )
    max_total: int = size(
        "Maximum bytes of complete files per topic; the oldest are deleted.",
        0,
        default_note="no limit",
    )
    manifest: str = path(
        "File that gets a line of JSON per complete file: name, records, bytes, times, "
        "sha256. Relative to --output-dir.",
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
        "Check the files of a manifest as they are below this directory, the one of to-file "
        "--upload: a URL of s3, gs, az or file, or a path.",
        metavar="URL",
    )
    json: bool = like(JSON, help="Print one JSON object per file.")
