"""Signatures of requests, as the Standard Webhooks specification 1.0.0 has them (symmetric, v1)."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HEADERS", "Signer"]

HEADERS = (b"webhook-id", b"webhook-timestamp", b"webhook-signature")

_PREFIX = "whsec_"
_SIZES = range(24, 65)
_MAX_FILE = 1 << 16


class Signer:
    """Signs with each of its secrets, so that receivers may have the old or the new one.

    ``secrets`` are the keys themselves. Raises ConfigError if there is none.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets:
            raise ConfigError("no secret to sign with")
        self._secrets = tuple(secrets)

    @classmethod
    def from_file(cls, path: str, flag: str = "--sign-secret-file") -> Signer:
        """The secrets of a file, one a line; blank lines and those that begin with # are skipped.

        Raises ConfigError naming flag, file and line, never a secret.
        """
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read(_MAX_FILE + 1)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{flag} {path}: {getattr(error, 'strerror', None) or 'not text'}"
            ) from error
        if len(text) > _MAX_FILE:
            raise ConfigError(f"{flag} {path}: more than {_MAX_FILE} characters")
        secrets = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                secrets.append(_parse_secret(line))
            except ConfigError as error:
                raise ConfigError(f"{flag} {path}, line {number}: {error}") from None
        if not secrets:
            raise ConfigError(f"{flag} {path}: holds no secret")
        return cls(secrets)

    def sign(self, identity: bytes, now: float, body: bytes) -> list[tuple[bytes, bytes]]:
        """The three headers for this body, sent at ``now``, in seconds since the epoch.

        ``identity`` stays the same when it is sent again; it must not hold a full stop, which
        would let the start of a body pass for a part of it.
        """
        timestamp = b"%d" % now
        signed = b"%b.%b.%b" % (identity, timestamp, body)
        signatures = [
            b"v1," + binascii.b2a_base64(hmac.digest(secret, signed, "sha256"), newline=False)
            for secret in self._secrets
        ]
        return list(zip(HEADERS, (identity, timestamp, b" ".join(signatures)), strict=True))


def _parse_secret(text: str) -> bytes:
    """The key in ``whsec_BASE64``, or BASE64 alone; padding may be missing.

    Raises ConfigError, which does not show it.
    """
    encoded = text.strip().removeprefix(_PREFIX)
    if encoded.startswith(("whsk_", "whpk_")):
        raise ConfigError("a key of an asymmetric signature; only whsec_ secrets are supported")
    try:
        secret = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise ConfigError("not a secret: expected whsec_ and base64") from None
    if len(secret) not in _SIZES:
        raise ConfigError(
            f"the secret has {len(secret)} bytes, expected {_SIZES.start} to {_SIZES.stop - 1} "
            "(openssl rand -base64 32 makes one)"
        )
    return secret
