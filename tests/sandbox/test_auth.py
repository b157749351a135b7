"""The secret of the embedded nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.errors import ConfigError
from nsqtools.sandbox.auth import read_secret

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("content", [None, "\n"])
def test_a_secret_file_must_hold_a_secret(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"--auth-secret-file {path}: "):
        read_secret(NsqdOptions(auth_secret_file=str(path)))
