"""Places: local paths, and URLs of file systems within Spark's reach.

A path without a scheme is local, or on a file system shared by all machines, whatever Spark's
default file system is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

OURS = "_nsqtools"
"""The directory for nsqtools' own files in an output; readers skip it because of the underscore."""

ICEBERG = "iceberg"
"""The scheme of tables that a catalog knows: iceberg:CATALOG/NAMESPACE.TABLE."""

HADOOP = frozenset({"hdfs", "viewfs"})
"""Schemes of file systems reached by pyarrow through libhdfs."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_S3 = re.compile(r"^s3n?://", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[{]")
_WILD = re.compile(r"([\\{}\[\]*?])")


def local(place: str) -> Path | None:
    """Return the absolute path of a path or ``file:`` URL; None for any other URL."""
    found = _SCHEME.match(place)
    if not found:
        return Path(place).absolute()
    if found[1].lower() != "file":
        return None
    return Path("/" + place[found.end() :].lstrip("/"))


def in_object_store(place: str) -> bool:
    """Whether a path or URL is neither on a mounted file system nor on HDFS, nor a table's name."""
    scheme = place.partition(":")[0].lower()
    return local(place) is None and scheme not in HADOOP and not is_named(place)


def is_named(place: str) -> bool:
    """Whether a place is the name of a table that a catalog knows."""
    return place.startswith(f"{ICEBERG}:")


def is_s3(place: str) -> bool:
    """Whether a place is in S3."""
    return local(place) is None and place.partition(":")[0].lower() in ("s3", "s3a", "s3n")


def as_url(place: str) -> str:
    """Return a path or URL for Spark, independent of its default file system.

    Hadoop's name for S3 is ``s3a``.
    """
    path = local(place)
    return _S3.sub("s3a://", place) if path is None else f"file://{path}"


def literal(place: str) -> str:
    """Return ``as_url`` with wildcards escaped, for parameters with patterns."""
    return _WILD.sub(r"\\\1", as_url(place))


def is_pattern(place: str) -> bool:
    """Whether a place has wildcards and does not exist literally as a local file or directory."""
    path = local(place)
    return bool(_PATTERN.search(place)) and not (path is not None and os.path.lexists(path))


def below(place: str, *names: str) -> str:
    """Return a place within a place."""
    return "/".join((place.rstrip("/"), *names))


def s3_server() -> tuple[str, str]:
    """Return S3's endpoint and region from AWS_* variables; empty for AWS's own."""
    variable = os.environ.get
    endpoint = variable("AWS_ENDPOINT_URL_S3") or variable("AWS_ENDPOINT_URL") or ""
    region = variable("AWS_REGION") or variable("AWS_DEFAULT_REGION") or ""
    return endpoint, region or ("us-east-1" if endpoint else "")
