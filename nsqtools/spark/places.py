"""Where things are: paths of this machine, and URLs of file systems that Spark knows.

A path without a scheme is one of this machine, or of a file system that all machines share,
whatever Spark's default file system is.
"""

from __future__ import annotations

import re
from pathlib import Path

OURS = "_nsqtools"
"""The directory of an output that has our own files; readers skip it for its underscore."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_WILD = re.compile(r"([\\{}\[\]*?])")


def local(place: str) -> Path | None:
    """The absolute path of a path or ``file:`` URL; None for a URL of another file system."""
    found = _SCHEME.match(place)
    if not found:
        return Path(place).absolute()
    if found[1].lower() != "file":
        return None
    return Path("/" + place[found.end() :].lstrip("/"))


def as_url(place: str) -> str:
    """A path or URL as Spark takes it, whatever its default file system is."""
    path = local(place)
    return place if path is None else f"file://{path}"


def literal(place: str) -> str:
    """As ``as_url``, for what takes patterns: what would be a wildcard is none."""
    return _WILD.sub(r"\\\1", as_url(place))


def below(place: str, *names: str) -> str:
    """A place within a place."""
    return "/".join((place.rstrip("/"), *names))
