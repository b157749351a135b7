"""Archive files on disk: what a crash left behind, and what was published."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from nsqtools.sinks.files import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsqtools.policy.leftovers import Matcher

log = logging.getLogger(__name__)

_UNPUBLISHED = (".part", ".torn", ".copy")
"""Ends of names that no published file has."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found:
    """A file; ``relative`` is its path below the root, without the suffix looked for.

    ``topic``, ``name`` and ``revision`` are those of ``NameMatcher.match``, ``mtime_ns`` counts
    from the epoch.
    """

    path: str
    relative: str
    topic: str
    name: str
    revision: int
    size: int
    mtime_ns: int


def find(root: str, matcher: Matcher, suffix: str) -> Iterator[Found]:
    """Regular files below root whose names, without the suffix, match; by mtime, then by name.

    No suffix finds published files. Symbolic links are left alone, as are directories that hold
    nothing of ours. What cannot be read is logged and left out; what is gone, silently.
    """
    found = list(_walk(root, matcher, lambda entry, path: _look(entry, path, matcher, suffix)))
    found.sort(key=lambda each: (each.mtime_ns, each.relative))
    yield from found


def sweep(root: str, matcher: Matcher) -> None:
    """Remove copies that were under way when a process was killed, to names below root that match.

    The work files that they were made of are still there. What cannot be removed is logged.
    """
    copies = list(_walk(root, matcher, lambda entry, path: _copy(entry, path, matcher)))
    for path in copies:
        try:
            removed = publish.remove_copy(path)
        except OSError as error:
            log.warning("%s, which a crash left behind, is not removed: %s", path, error.strerror)
        else:
            if removed:
                log.info("removed %s, which a crash left behind", path)


def _walk(
    root: str, matcher: Matcher, look: Callable[[os.DirEntry[str], str], _T | None]
) -> Iterator[_T]:
    """What ``look`` finds in entries, with their paths below root, that are no directories."""
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
                    elif (found := look(entry, relative)) is not None:
                        yield found
        except FileNotFoundError:
            continue
        except OSError as error:
            path = os.path.join(root, below)
            log.warning("%s: cannot be searched for archives: %s", path, error.strerror)


def _copy(entry: os.DirEntry[str], relative: str, matcher: Matcher) -> str | None:
    name = publish.copied_name(entry.name)
    if not name or not matcher.match(relative.removesuffix(entry.name) + name):
        return None
    return entry.path if entry.is_file(follow_symlinks=False) else None


def _look(entry: os.DirEntry[str], relative: str, matcher: Matcher, suffix: str) -> Found | None:
    if not relative.endswith(suffix) or (not suffix and relative.endswith(_UNPUBLISHED)):
        return None
    relative = relative.removesuffix(suffix)
    match = matcher.match(relative)
    if not match or not entry.is_file(follow_symlinks=False):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return Found(
        path=entry.path,
        relative=relative,
        topic=match.topic,
        name=match.name,
        revision=match.revision,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
    )
