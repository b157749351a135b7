"""What the archives of all topics go by."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from nsqtools.policy.filenames import Revisions
from nsqtools.policy.rotation import Rotation
from nsqtools.sinks.files import publish

if TYPE_CHECKING:
    from datetime import tzinfo

    from nsqtools.engine.handler import Batch
    from nsqtools.policy.filenames import NamePattern
    from nsqtools.records.layout import Layout
    from nsqtools.records.manifest import Published
    from nsqtools.sinks.files.journal import Entry

Fate = Literal["", "reopen", "close"]
"""What becomes of open files after a step: rotated as the rules say, or published all."""


class Arrival(NamedTuple):
    """A batch and the clock, in ns since the epoch, when it came."""

    wall: int
    batch: Batch


class Aftercare(Protocol):
    """What is done for a published file."""

    @property
    def owes(self) -> tuple[str, ...]:
        """What a file owes when it is published."""

    def record(self, published: Published) -> None:
        """The file has its name: write down what it holds.

        Called again after a crash, and after it raised OSError.
        """

    def follow(self, entry: Entry) -> None:
        """The file is final. Nothing is raised."""

    def settle(self, entry: Entry) -> None:
        """Begin to do what a published file owes. Nothing is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the archives of all topics have in common; directories are absolute paths."""

    output_dir: str
    work_dir: str
    pattern: NamePattern
    hostname: str
    pid: int
    zone: tzinfo | None
    layout: Layout
    delimiter_text: str
    compression: str = "none"
    level: int | None = None
    by_message: bool = False
    max_open_files: int = 64
    close_idle: float = 300.0
    skip_empty: bool = False
    empty_after: float = 30.0
    """Seconds without a file after which an empty one is begun, unless ``skip_empty``."""
    rotate_size: int = 0
    rotate_compressed_size: int = 0
    rotate_interval: float = 0.0
    rotate_boundary: float = 0.0
    digest: bool = False
    max_msg_size: int = 64 << 20
    """Bytes of the largest message that is read back."""
    revisions: Revisions = field(default_factory=Revisions)

    def rotation(self) -> Rotation:
        """A rule for one topic; raises ConfigError."""
        return Rotation(
            size=self.rotate_size,
            compressed_size=self.rotate_compressed_size,
            interval=self.rotate_interval,
            boundary=self.rotate_boundary,
            zone=self.zone,
            skip_empty=self.skip_empty,
        )

    @property
    def host(self) -> str:
        """What ``<HOST>`` stands for."""
        return self.pattern.host(self.hostname)

    def retire(self, path: str) -> None:
        """Remove a work file that is published, and the directories that it leaves empty."""
        publish.retire(path, root=self.work_dir if self.work_dir != self.output_dir else "")

    def target_path(self, relative: str) -> str:
        """Where it is published."""
        return os.path.join(self.output_dir, relative)
