"""How messages stand in streams of bytes and in files."""

from __future__ import annotations

from nsqtools.config.option import Options, choice, flag, text
from nsqtools.errors import ConfigError


def _not_empty(value: str) -> None:
    if not value:
        raise ConfigError("empty, records could not be told apart")


DELIMITER = text(
    "Bytes after each body of a raw file: text, \\n, \\t, \\0, \\xNN.",
    "\\n",
    metavar="BYTES",
    rule=_not_empty,
)


class RecordOptions(Options):
    """How messages stand in a stream of bytes, for ``tail`` out and for ``pub`` in."""

    title = "Format"

    delimiter: str = text(
        "Bytes after each message: text, \\n, \\t, \\0, \\xNN.", "\\n", metavar="BYTES"
    )
    null: bool = flag(
        "A NUL after each message, as for xargs -0.", short="0", excludes=("delimiter",)
    )
    length_prefix: bool = flag(
        "Four bytes of length, big-endian, before each message.", excludes=("delimiter", "null")
    )
    json: bool = flag(
        "One JSON object a line, with metadata, as tail writes and pub reads it.",
        excludes=("delimiter", "null", "length_prefix"),
    )


class ArchiveRecordOptions(Options):
    """How records stand in archives, for ``to-file`` out and for ``verify`` in."""

    title = "Records"

    format: str = choice(
        "Bodies, each followed by the delimiter; one JSON object a line, with metadata, as "
        "tail --json; or bodies with four bytes of length, big-endian, before each.",
        *("raw", "json", "length-prefixed"),
    )
    delimiter: str = DELIMITER

    def validate(self) -> None:
        """A delimiter stands in raw files alone."""
        if self.format != "raw" and self.delimiter != "\\n":
            raise ConfigError(f"--delimiter: --format {self.format} has none")
