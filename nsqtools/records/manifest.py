"""The manifest: one line of JSON for each completed file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsqtools.checksum import sealed, unsealed
from nsqtools.clock import wall
from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.compression import METHODS
from nsqtools.records.forms import FORMS
from nsqtools.records.layout import Layout

if TYPE_CHECKING:
    from typing import BinaryIO

LINE = 1 << 20
"""Maximum bytes of a line. to-file's lines have a few hundred bytes."""
_NEEDED = {"name", "records", "bytes", "sha256"}
"""Members by which a line is recognised."""
_MEMBERS = (*_NEEDED, "topic", "format", "delimiter", "compression")
_LEAST = 6
"""Minimum number of ``_MEMBERS`` by which a damaged line is recognised."""
_HEAD = 1 << 14
"""Bytes in which to look for a line if the first one is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedFile:
    """A complete file under its final name.

    ``name`` is relative to the output directory, ``path`` is absolute. ``size`` is in bytes on
    disk. Times are in ns since the epoch. After a crash times and ids are unknown and None.
    ``delimiter`` is the text of the option, such as ``\\n`` in two characters, or empty if the
    format has no delimiter.
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
        """The format of the file's records; raises ConfigError for an invalid delimiter."""
        return Layout.parse(self.format, self.delimiter)

    def line(self, name: str) -> bytes:
        """Return the line for a manifest, with a checksum; ``name`` is relative to the manifest,
        the file is completed now.
        """
        line = {"bytes" if key == "size" else key: value for key, value in asdict(self).items()}
        del line["path"]
        line |= {
            "name": name,
            "published": f"{datetime.fromtimestamp(wall(), UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        return sealed(line) + b"\n"

    @classmethod
    def parse(cls, line: bytes, folder: str) -> CompletedFile:
        """Parse a line of a manifest in this directory, except for times and ids.

        If the line does not give the number of records, ``records`` is -1. Raises RecordError.
        """
        try:
            value = unsealed(line)
        except ValueError as error:
            raise RecordError(str(error)) from None
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


def _check(completed: CompletedFile) -> None:
    """Raise RecordError for values never written by to-file."""
    for key, value, known in (
        ("format", completed.format, FORMS),
        ("compression", completed.compression, METHODS),
    ):
        if value not in known:
            raise RecordError(f"{key} is {value!r}, expected {', '.join(known)}")
    try:
        is_missing = completed.format == "raw" and not completed.layout.delimiter
    except ConfigError as error:
        raise RecordError(str(error)) from None
    if is_missing:
        raise RecordError("delimiter is empty")
    try:
        possible = b"\0" not in os.fsencode(completed.name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise RecordError(f"name is {completed.name!r}, which is not a valid file name")


def _get(value: dict[str, Any], key: str, kind: type[Any]) -> Any:
    found = value.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        expected = "a string" if kind is str else "a whole number"
        raise RecordError(f"{key} is {'missing' if found is None else f'not {expected}'}")
    return found


def is_manifest(file: BinaryIO) -> bool:
    """Whether the file begins with lines of a manifest, the first of which may be damaged."""
    for line in file.read(_HEAD).split(b"\n"):
        found = _object_of(line)
        if found.keys() >= _NEEDED:
            return True
        if sum(b'"%b":' % key.encode() in line for key in _MEMBERS) >= _LEAST:
            return True
        if found:
            return False
    return False


def _object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line, or an empty one if the line is anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
