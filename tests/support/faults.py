"""Disks that are full or broken, for root and for anybody."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.binaries import give_up

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Another program takes all space of a file system, and gives it back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert not shutil.disk_usage(folder).free
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file gets larger meanwhile, for nobody: what is written beyond is EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def broken(call: str, code: int = errno.EIO, *, of: Any = os) -> Iterator[None]:
    """A call to the system fails meanwhile."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, call, fail)
        yield


@contextmanager
def other_disk(folder: Path) -> Iterator[Path]:
    """A directory on another file system than the folder; skipped where there is none."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == folder.stat().st_dev:
        reason = "/dev/shm is no other file system"
        give_up("/dev/shm", "files that go to another file system", reason, "TOOLS")
    other = Path(tempfile.mkdtemp(dir=shm))
    try:
        yield other
    finally:
        shutil.rmtree(other)
