"""What the archives of all topics go by."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC
from socket import gethostname
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import NamePattern, Revisions
from nsqtools.policy.rotation import Rotation
from nsqtools.records.compression import METHODS, Encoder, make_encoder
from nsqtools.records.layout import Layout
from nsqtools.sinks.files import disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from nsqtools.config import ArchiveOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The options of ``to-file``, and what follows from them; directories are absolute paths.

    ``max_msg_size`` is the bytes of the largest message that is read back.
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
    """Open files of a topic whose messages name them: a time that is long over may come again."""
    revisions: Revisions = field(default_factory=Revisions)

    @classmethod
    def of(cls, options: ArchiveOptions, max_msg_size: int) -> Rules:
        """The rules of these options here and now; raises ConfigError for what cannot be."""
        output_dir = os.path.abspath(options.output_dir)
        work_dir = os.path.abspath(options.work_dir) if options.work_dir else output_dir
        rules = cls(
            options=options,
            output_dir=output_dir,
            work_dir=work_dir,
            pattern=NamePattern(
                filename_format=options.filename_format,
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
        rules.encoder()  # its library may be missing
        return rules

    def rotation(self) -> Rotation:
        """When files of one topic are closed."""
        options = self.options
        return Rotation(
            size=options.rotate_size,
            interval=options.rotate_interval,
            boundary=options.rotate_boundary,
            zone=self.zone,
            skip_empty=options.skip_empty_files,
        )

    def encoder(self) -> Encoder:
        """What compresses one file; raises ConfigError."""
        options = self.options
        levels = {"gzip": options.gzip_level, "zstd": options.zstd_level}
        return make_encoder(self.compression, levels.get(self.compression, 0))

    @property
    def compression(self) -> str:
        """The name of the method."""
        return _compression(self.options)

    @property
    def by_message(self) -> bool:
        """Whether the times of messages name files, and not the clock."""
        return self.options.name_by == "message"

    @property
    def makes_empty(self) -> bool:
        """Whether there is a file for a time without messages."""
        return not (self.options.skip_empty_files or self.by_message)

    @property
    def host(self) -> str:
        """What ``<HOST>`` stands for."""
        return self.pattern.host(self.hostname)

    @property
    def own_work_dir(self) -> str:
        """The directory of work files; empty if it is the output directory."""
        return self.work_dir if self.work_dir != self.output_dir else ""

    def retire(self, path: str) -> None:
        """Remove a work file that is published, and the directories that it leaves empty."""
        disk.retire(path, root=self.own_work_dir)

    def target_path(self, relative: str) -> str:
        """Where it is published."""
        return os.path.join(self.output_dir, relative)

    def check_several_topics(self) -> None:
        """Raise ConfigError for names by which the files of several topics clash."""
        options = self.options
        if "<TOPIC>" in options.filename_format:
            return
        limits = options.keep or options.max_age or options.max_total
        if limits or "<REV>" not in options.filename_format:
            raise ConfigError(
                f"--filename-format {options.filename_format!r}: the files of several topics "
                f"{'could not be told apart' if limits else 'would have one name'}: add <TOPIC>"
            )


def _compression(options: ArchiveOptions) -> str:
    return "gzip" if options.gzip else options.compress


def _repeating(options: ArchiveOptions, *, same_place: bool) -> Iterator[str]:
    """The flags because of which several files may have one name."""
    if _compression(options) != "none":
        yield "--gzip" if options.gzip else "--compress"
    for flag, given in (
        ("--rotate-size", options.rotate_size),
        ("--rotate-interval", options.rotate_interval),
        ("--rotate-boundary", options.rotate_boundary),
        ("--name-by message", options.name_by == "message"),
        ("--work-dir", not same_place),
    ):
        if given:
            yield flag
