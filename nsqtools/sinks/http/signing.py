"""Signatures of requests, as in the Standard Webhooks specification 1.0.0 (symmetric, v1)."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from nsqtools.config.connection import without_waiting
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADERS = (b"webhook-id", b"webhook-timestamp", b"webhook-signature")

_FLAG = "--sign-secret-file"
_MAX_FILE = 1 << 16
_PREFIX = "whsec_"
_SIZES = range(24, 65)


def read_lines(path: str, flag: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file that a flag names, each preceded by its position.

    Blank lines and lines that begin with # are skipped. Raises ConfigError, which names flag and
    file.
    """
    file = f"{flag} {path}"
    try:
        with open(path, encoding="utf-8-sig", newline="", opener=without_waiting) as opened:
            text = opened.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{file}: {reason}") from error
    if len(text) > _MAX_FILE:
        raise ConfigError(f"{file}: more than {_MAX_FILE} characters")
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{file}, line {number}", line


class Signer:
    """Signs with each of its secrets, so that receivers may have the old or the new one.

    ``secrets`` are the raw keys, at least one.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    @classmethod
    def from_file(cls, path: str) -> Signer:
        """Read the secrets of a file of ``--sign-secret-file``, one per line.

        Raises ConfigError, which names flag, file and line, but never shows a secret.
        """
        secrets = [_parse_secret(where, line) for where, line in read_lines(path, _FLAG)]
        if not secrets:
            raise ConfigError(f"{_FLAG} {path}: contains no secret")
        return cls(secrets)

    def sign(self, identity: bytes, now: float, body: bytes) -> list[tuple[bytes, bytes]]:
        """Return the three headers for this body; ``now`` is in seconds since the epoch.

        ``identity`` is the same for each delivery. It must not contain a full stop, so that it
        cannot be confused with the start of the body.
        """
        timestamp = b"%d" % now
        signed = b"%b.%b.%b" % (identity, timestamp, body)
        signatures = [
            b"v1," + binascii.b2a_base64(hmac.digest(secret, signed, "sha256"), newline=False)
            for secret in self._secrets
        ]
        return list(zip(HEADERS, (identity, timestamp, b" ".join(signatures)), strict=True))


def _parse_secret(where: str, text: str) -> bytes:
    """Return the key in ``whsec_BASE64`` or BASE64; padding may be missing.

    Raises ConfigError, which does not show the key.
    """
    encoded = text.strip().removeprefix(_PREFIX)
    if encoded.startswith(("whsk_", "whpk_")):
        raise ConfigError(
            f"{where}: this is the key of an asymmetric signature; only whsec_ secrets are "
            "supported"
        )
    try:
        secret = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise ConfigError(f"{where}: not a valid secret: expected whsec_ and base64") from None
    if len(secret) not in _SIZES:
        raise ConfigError(
            f"{where}: the secret has {len(secret)} bytes, expected {_SIZES.start} to "
            f"{_SIZES.stop - 1} (openssl rand -base64 32 makes one)"
        )
    return secret
