"""Secrets, which stand in files or in the environment: options only say where, so few lines do."""

from __future__ import annotations

from nsqtools.errors import ConfigError

_MOST = 65536


def read(path: str, where: str) -> str:
    """The secret in a file; raises ConfigError, which names it as ``where``."""
    try:
        with open(path, encoding="utf-8") as file:
            return checked(file.read(_MOST + 1), where)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{where}: {reason}") from error


def checked(text: str, where: str) -> str:
    """The text without white space around it, if it can be a secret; raises ConfigError."""
    secret = text.strip()
    if not secret:
        raise ConfigError(f"{where}: empty")
    if len(secret) > _MOST:
        raise ConfigError(f"{where}: more than {_MOST} characters")
    return secret
