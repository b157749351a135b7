"""Options for the format of records in streams and files."""

from __future__ import annotations

from nsqtools.config.option import Options, choice, flag, like, text
from nsqtools.errors import ConfigError


def _not_empty(value: str) -> None:
    if not value:
        raise ConfigError("the delimiter is empty: records could not be separated")


FORMATS = ("raw", "json", "length-prefixed")
"""The names of ``records.forms.FORMS``."""

DECODERS = ("msgpack", "avro:", "protobuf:", "cmd:")
"""The kinds of ``records.bodies.decoders.PACKAGES``, with a colon if an argument follows."""


def _decoder(value: str) -> None:
    kind, colon, argument = value.partition(":")
    path, mark, name = argument.rpartition("#")
    is_whole = bool(colon) == bool(argument) and (kind != "protobuf" or (path and mark and name))
    if kind + colon not in DECODERS or not is_whole:
        raise ConfigError(
            f"{value!r}: expected msgpack, avro:SCHEMA, protobuf:DESCRIPTOR#TYPE or cmd:PROGRAM"
        )


DECODE = text(
    "Print bodies as JSON: msgpack, avro:SCHEMA, protobuf:DESCRIPTOR#TYPE or cmd:PROGRAM.",
    metavar="DECODER",
    values="decoder",
    rule=_decoder,
)

DELIMITER = text(
    "Delimiter after each raw body: text with \\n, \\t, \\0 and \\xNN.",
    "\\n",
    metavar="BYTES",
    rule=_not_empty,
)


class RecordOptions(Options):
    """Format of messages in the output of ``tail`` and ``queue cat``."""

    title = "Format"

    delimiter: str = text(
        "Print this delimiter after each message: text with \\n, \\t, \\0 and \\xNN.",
        "\\n",
        metavar="BYTES",
    )
    null: bool = flag(
        "Print NUL after each message, as for xargs -0.", short="0", excludes=("delimiter",)
    )
    length_prefix: bool = flag(
        "Print the length before each message: 4 bytes, big-endian.",
        excludes=("delimiter", "null"),
    )
    json: bool = flag(
        "Print JSON objects with metadata, one per line.",
        excludes=("delimiter", "null", "length_prefix"),
    )


class RecordInputOptions(RecordOptions):
    """Format of messages in the input of ``pub`` and ``queue push``."""

    title = "Input"

    delimiter: str = like(
        RecordOptions.delimiter,
        help="Delimiter after each message of the input: text with \\n, \\t, \\0 and \\xNN.",
    )
    null: bool = like(
        RecordOptions.null, help="Read messages delimited by NUL, as of find -print0."
    )
    length_prefix: bool = like(
        RecordOptions.length_prefix,
        help="Read the length before each message: 4 bytes, big-endian.",
    )
    json: bool = like(
        RecordOptions.json, help="Read JSON objects with metadata, one per line, as of tail --json."
    )


class ArchiveRecordOptions(Options):
    """Format of records in archives, written by ``to-file`` and read by ``verify``."""

    title = "Records"

    format: str = choice(
        "Format of records: raw bodies with a delimiter after each, JSON objects as of "
        "tail --json, or bodies with their length before them.",
        *FORMATS,
    )
    delimiter: str = DELIMITER

    def validate(self) -> None:
        """Raise ConfigError for a delimiter with a format other than raw."""
        if self.format != "raw" and self.delimiter != "\\n":
            text = f"--delimiter cannot be used with --format {self.format}"
            raise ConfigError(text, options=("delimiter", "format"))
