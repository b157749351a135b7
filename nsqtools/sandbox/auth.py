"""AUTH with the one secret of --auth-secret-file, which may do everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from nsqtools.config import NsqdOptions


def read_secret(options: NsqdOptions) -> bytes:
    """The secret, empty where no client has to send AUTH; raises ConfigError."""
    if not options.auth_secret_file:
        return b""
    try:
        secret = Path(options.auth_secret_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"--auth-secret-file {options.auth_secret_file}: {error.strerror}"
        ) from None
    if not secret:
        raise ConfigError(f"--auth-secret-file {options.auth_secret_file}: is empty")
    return secret
