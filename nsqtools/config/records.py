"""How messages stand in streams of bytes and in files."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.option import Options, option, option_class
from nsqtools.errors import ConfigError


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
