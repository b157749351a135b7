"""Published archive files on disk, for retention."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.policy.matcher import NameMatcher

log = logging.getLogger(__name__)

_UNPUBLISHED = (".part", ".torn", ".copy")
"""Ends of names that no published file has."""


@dataclass(frozen=True, slots=True)
class Found:
    """A published file; ``size`` is in bytes, ``mtime_ns`` counts from the epoch."""

    path: str
    topic: str
    size: int
    mtime_ns: int


def find(root: str, matcher: NameMatcher) -> Iterator[Found]:
    """Regular files below root whose names match.

    Symbolic links are left alone, as are directories that hold nothing of ours. What cannot be
    read is logged and left out; what is gone, silently.
    """
    directories = [""]
    while directories:
        below = directories.pop()
        prefix = f"{below}/" if below else ""
        try:
            with os.scandir(os.path.join(root, below)) as entries:
                for entry in entries:
                    relative = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if matcher.descend(relative):
                            directories.append(relative)
                    elif found := _look(entry, matcher.match(relative)):
                        yield found
        except FileNotFoundError:
            continue
        except OSError as error:
            path = os.path.join(root, below)
            log.warning("%s: cannot be searched for archives: %s", path, error.strerror)


def _look(entry: os.DirEntry[str], topic: str | None) -> Found | None:
    is_file = topic is not None and entry.is_file(follow_symlinks=False)
    if not is_file or entry.name.endswith(_UNPUBLISHED):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    assert topic is not None
    return Found(entry.path, topic, status.st_size, status.st_mtime_ns)
