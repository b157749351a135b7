"""Dead letters of the simulation, and what programs do with their files."""

from __future__ import annotations

import fcntl
import gzip
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """A dead letter for ``topic``."""

    number: int
    body: bytes
    topic: str
    reason: str
    born: float


def plain(path: str) -> bytes:
    """The content of a file of letters."""
    with open(path, "rb") as file:
        content = file.read()
    return gzip.decompress(content) if path.endswith(".gz") else content


def compress(path: str) -> None:
    """As gzip does, but for nobody who writes to the file."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        packed = gzip.compress(os.pread(fd, os.fstat(fd).st_size, 0))
        hidden = os.path.join(os.path.dirname(path), ".packed")
        to = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(to, packed)
            os.fsync(to)
        finally:
            os.close(to)
        os.rename(hidden, f"{path}.gz")
        os.unlink(path)
    finally:
        os.close(fd)
