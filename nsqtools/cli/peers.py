"""What a command line says of the servers to connect to."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from nsqtools.cli.configfile import may_be_read_by_others
from nsqtools.config import secrets
from nsqtools.names import NSQD_TCP_PORT, Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config import ClientConfig

log = logging.getLogger(__name__)

C = TypeVar("C", bound="ClientConfig")


def addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """nsqd addresses of ``--nsqd-tcp-address``."""
    return tuple(Address.parse(text, NSQD_TCP_PORT) for text in texts)


def beside_producer(config: C) -> C:
    """The configuration of a command that publishes, too: its --max-msg-size is for that.

    A low --max-msg-size keeps a message from being published, and not from being read.
    """
    least = config.declared()["max_msg_size"].default
    return config.with_values(max_msg_size=max(config.max_msg_size, least))


def warn_if_public(path: str) -> None:
    """Warn if others may read a file, which was read and holds a secret."""
    with suppress(OSError), open(path, "rb") as file:
        if may_be_read_by_others(file):
            log.warning("%s may be read by others: chmod 600 it", path)


def with_secret(config: C) -> C:
    """The configuration with the secret of ``--auth-secret-file`` read.

    Raises ConfigError if it cannot be; warns if others may read it.
    """
    path = config.auth_secret_file
    if not path:
        return config
    secret = secrets.read(path, f"--auth-secret-file {path}")
    warn_if_public(path)
    return config.with_values(auth_secret=secret, auth_secret_file="")
