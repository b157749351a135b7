"""Options for the format of records in streams and files."""

from __future__ import annotations

from nsqtools.config.option import Options, choice, flag, text
from nsqtools.errors import ConfigError


def _not_empty(value: str) -> None:
    if not value:
        raise ConfigError("the delimiter is empty: records could not be separated")


FORMATS = ("raw", "json", "length-prefixed")
"""The names of ``records.forms.FORMS``."""

DELIMITER = text(
    "Delimiter after each raw body: text with \\n, \\t, \\0 and \\xNN.",
    "\\n",
    metavar="BYTES",
    rule=_not_empty,
)


class RecordOptions(Options):
    """Format of messages in a stream: output of ``tail`` and input of ``pub``."""

    title = "Format"

    delimiter: str = text(
        "Delimiter after each message: text with \\n, \\t, \\0 and \\xNN.", "\\n", metavar="BYTES"
    )
    null: bool = flag(
        "End each message with NUL, as for xargs -0.", short="0", excludes=("delimiter",)
    )
    length_prefix: bool = flag(
        "Put the length of each message before it: 4 bytes, big-endian.",
        excludes=("delimiter", "null"),
    )
    json: bool = flag(
        "JSON objects with metadata, one per line.", excludes=("delimiter", "null", "length_prefix")
    )


class ArchiveRecordOptions(Options):
    """Format of records in archives, which ``to-file`` writes and ``verify`` reads."""

    title = "Records"

    format: str = choice(
        "Format of records: raw bodies with a delimiter after each, JSON objects as of "
        "tail --json, or bodies with their length before them.",
        *FORMATS,
    )
    delimiter: str = DELIMITER

    def validate(self) -> None:
        """Raise ConfigError for a delimiter with a format that has none."""
        if self.format != "raw" and self.delimiter != "\\n":
            text = f"--delimiter cannot be used with --format {self.format}"
            raise ConfigError(text, options=("delimiter", "format"))
