"""Directories of file systems that are mounted here, in which one job at a time works."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, OutputError
from nsqtools.sinks.files.disk import make_directory, sync_directory
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.places import local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["held", "real", "replace_json"]


def real(place: str, why: str) -> str:
    """The path of a place, in which no symbolic link is; raises ConfigError if it is elsewhere."""
    path = local(place)
    if path is None:
        raise ConfigError(f"{place}: {why}")
    found = os.path.realpath(path)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{found!r}: its name is not UTF-8: rename it") from None
    return found


@contextlib.contextmanager
def held(folder: str, name: str) -> Iterator[None]:
    """Hold the lock of this name in a directory, which is made.

    Raises LockedError if another process has it, and OutputError for an OSError of the body.
    """
    try:
        make_directory(folder)
        with Lock(os.path.join(folder, name)):
            yield
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: {error.strerror or error}") from error


def replace_json(path: str, value: Mapping[str, Any]) -> None:
    """Replace a file, or make it, and have it last; raises OSError."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    sync_directory(os.path.dirname(path))
