"""Rules that the archives of all topics share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC
from socket import gethostname
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import REV, NamePattern
from nsqtools.policy.rotation import Rotation
from nsqtools.records.compression import METHODS, Encoder, make_encoder
from nsqtools.records.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from nsqtools.config.files import ArchiveOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The options of ``to-file`` and values derived from them; directories are absolute paths.

    ``max_msg_size`` is the size in bytes of the largest message that is read back.
    """

    options: ArchiveOptions
    output_dir: str
    work_dir: str
    pattern: NamePattern
    layout: Layout
    hostname: str
    pid: int
    zone: tzinfo | None
    max_msg_size: int = 64 << 20
    max_open_files: int = 64
    """Maximum open files per topic with --name-by message, as old times may occur again."""

    @classmethod
    def of(cls, options: ArchiveOptions, max_msg_size: int) -> Rules:
        """Return the rules for these options on this host; raises ConfigError."""
        output_dir = os.path.abspath(options.output_dir)
        work_dir = os.path.abspath(options.work_dir) if options.work_dir else output_dir
        rules = cls(
            options=options,
            output_dir=output_dir,
            work_dir=work_dir,
            pattern=NamePattern(
                filename_format=_filename_format(options),
                datetime_format=options.datetime_format,
                host_identifier=options.host_identifier,
                suffix=METHODS[_compression(options)].suffix,
                repeated_by=next(_repeating(options, same_place=work_dir == output_dir), ""),
            ),
            layout=Layout.parse(options.format, options.delimiter),
            hostname=gethostname(),
            pid=os.getpid(),
            zone=UTC if options.utc else None,
            max_msg_size=max_msg_size,
        )
        rules.encoder()  # raises ConfigError if the library is missing
        return rules

    def rotation(self) -> Rotation:
        """Return the policy that decides when files of a topic are rotated."""
        options = self.options
        return Rotation(
            size=options.rotate_size,
            interval=options.rotate_interval,
            boundary=options.rotate_boundary,
            zone=self.zone,
            skip_empty=options.skip_empty_files,
            sync_interval=options.sync_interval,
        )

    def encoder(self) -> Encoder:
        """Return an encoder for one file; raises ConfigError."""
        options = self.options
        levels = {"gzip": options.gzip_level, "zstd": options.zstd_level}
        return make_encoder(self.compression, levels.get(self.compression, 0))

    @property
    def compression(self) -> str:
        """The name of the compression method."""
        return _compression(self.options)

    @property
    def by_message(self) -> bool:
        """Whether file names use the times of messages instead of the clock."""
        return self.options.name_by == "message"

    @property
    def makes_empty(self) -> bool:
        """Whether a file is made for a period without messages."""
        return not (self.options.skip_empty_files or self.by_message)

    @property
    def host(self) -> str:
        """The value of ``<HOST>``."""
        return self.pattern.host(self.hostname)

    @property
    def own_work_dir(self) -> str:
        """The directory of work files; empty if it is the output directory."""
        return self.work_dir if self.work_dir != self.output_dir else ""

    def target_path(self, relative: str) -> str:
        """Return the path of a completed file."""
        return os.path.join(self.output_dir, relative)

    def check_several_topics(self) -> None:
        """Raise ConfigError if files of several topics would get the same names."""
        options = self.options
        if "<TOPIC>" in options.filename_format:
            return
        limits = options.keep or options.max_age or options.max_total
        if limits or "<REV>" not in options.filename_format:
            raise ConfigError(
                f"--filename-format {options.filename_format!r}: the files of several topics "
                f"{'could not be told apart' if limits else 'would have the same name'}: add "
                "<TOPIC>"
            )


def _compression(options: ArchiveOptions) -> str:
    return "gzip" if options.gzip else options.compress


def _filename_format(options: ArchiveOptions) -> str:
    """Return the format of file names, with ``<REV>`` for --on-rotate.

    A command may move or delete its file, or still be reading it: the next file is another one.
    """
    given = options.filename_format
    if not options.on_rotate or REV in given:
        return given
    root, suffix = os.path.splitext(given)
    return f"{root}{REV}{suffix}"


def _repeating(options: ArchiveOptions, *, same_place: bool) -> Iterator[str]:
    """Yield the flags that can give several files the same name."""
    if _compression(options) != "none":
        yield "--gzip" if options.gzip else "--compress"
    for flag, given in (
        ("--rotate-size", options.rotate_size),
        ("--rotate-interval", options.rotate_interval),
        ("--rotate-boundary", options.rotate_boundary),
        ("--name-by message", options.name_by == "message"),
        ("--work-dir", not same_place),
        ("--upload", options.upload),
    ):
        if given:
            yield flag
