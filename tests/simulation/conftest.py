"""Directories in memory: thousands of lives write to them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = "/dev/shm"


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where there is such a place."""
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)
