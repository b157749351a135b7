"""File systems that are small enough to be filled."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.binaries import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(folder: Path, size: int = 1 << 20) -> Iterator[Path]:
    """A file system of so many bytes in a new directory; the test is skipped without the right."""
    mount, umount = (needs(name, "files on a full disk") for name in ("mount", "umount"))
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", f"size={size}", "nsqtools-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no right to mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([umount, "--lazy", str(folder)], check=True)
