"""Directories of mounted file systems, with one job at a time."""

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
    """Return the path of a place without symbolic links; raises ConfigError if it is not local."""
    path = local(place)
    if path is None:
        raise ConfigError(f"{place}: {why}")
    found = os.path.realpath(path)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{found!r}: the name is not UTF-8: rename it") from None
    return found


@contextlib.contextmanager
def held(folder: str, name: str) -> Iterator[None]:
    """Hold a lock with this name in a directory, which is created if necessary.

    Raises LockedError if another process holds the lock, and OutputError for an OSError in the
    body.
    """
    try:
        make_directory(folder)
        with Lock(os.path.join(folder, name)):
            yield
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: {error.strerror or error}") from error


def replace_json(path: str, value: Mapping[str, Any]) -> None:
    """Replace or create a file durably; raises OSError."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    sync_directory(os.path.dirname(path))
