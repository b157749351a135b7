"""What is told of a published file: a line of a manifest."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.compression import METHODS
from nsqtools.records.layout import FORMATS, Layout

if TYPE_CHECKING:
    from typing import BinaryIO

LINE = 1 << 20
"""Bytes of the longest line of a manifest; ours have some hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A file that is whole and has its final name.

    ``name`` is relative to the output directory, ``path`` absolute. Times are in ns since the
    epoch, and None, as ids are, where messages are not known any more: after a crash. ``size`` is
    in bytes as on disk. ``delimiter`` is the option's text, such as ``\\n`` in two characters, and
    empty where there is none.
    """

    path: str
    name: str
    topic: str
    records: int
    size: int
    sha256: str
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    first_id: str | None = None
    last_id: str | None = None
    format: str
    delimiter: str
    compression: str

    @property
    def layout(self) -> Layout:
        """How its records stand; raises ConfigError for a delimiter that is none."""
        return Layout.parse(self.format, self.delimiter)

    def line(self, name: str) -> bytes:
        """The line of a manifest; ``name`` is relative to that, the time of publishing is now."""
        line = {
            "name": name,
            "topic": self.topic,
            "records": self.records,
            "bytes": self.size,
            "sha256": self.sha256,
            "first_timestamp": self.first_timestamp,
            "last_timestamp": self.last_timestamp,
            "first_id": self.first_id,
            "last_id": self.last_id,
            "format": self.format,
            "delimiter": self.delimiter,
            "compression": self.compression,
            "published": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        return json.dumps(line).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes, folder: str) -> Published:
        """What a line of a manifest in this folder tells of its file, but for times and ids.

        Where it does not tell how many records there are, they are -1. Raises RecordError.
        """
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise RecordError("not JSON") from None
        if not isinstance(value, dict):
            raise RecordError("not an object")
        name = _get(value, "name", str)
        found = cls(
            path=os.path.join(folder, name),
            name=name,
            topic=_get(value, "topic", str),
            records=-1 if value.get("records") is None else _get(value, "records", int),
            size=_get(value, "bytes", int),
            sha256=_get(value, "sha256", str),
            format=_get(value, "format", str),
            delimiter=_get(value, "delimiter", str),
            compression=_get(value, "compression", str),
        )
        _check(found)
        return found


def _check(published: Published) -> None:
    """Raise RecordError for what no file of ours has."""
    for key, value, known in (
        ("format", published.format, FORMATS),
        ("compression", published.compression, METHODS),
    ):
        if value not in known:
            raise RecordError(f"{key} is {value!r}, expected {', '.join(known)}")
    try:
        is_missing = published.format == "raw" and not published.layout.delimiter
    except ConfigError as error:
        raise RecordError(str(error)) from None
    if is_missing:
        raise RecordError("delimiter is empty")
    try:
        possible = b"\0" not in os.fsencode(published.name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise RecordError(f"name is {published.name!r}, which no file can have")


def _get(value: dict[str, Any], key: str, kind: type[Any]) -> Any:
    found = value.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        expected = "a string" if kind is str else "a whole number"
        raise RecordError(f"{key} is {'missing' if found is None else f'not {expected}'}")
    return found


def is_manifest(file: BinaryIO) -> bool:
    """Whether its first line is that of a manifest."""
    return {"name", "records", "bytes", "sha256"} <= object_of(file.readline(LINE)).keys()


def object_of(line: bytes) -> dict[str, Any]:
    """The JSON object that a line is; empty for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
