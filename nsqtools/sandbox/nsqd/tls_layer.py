"""TLS of the embedded nsqd, and its description in ``/stats`` (nsqd.go, client_v2.go).

The layer is sans-IO, because after a failed handshake asyncio's ``start_tls`` closes the connection
before the client has received the reason.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ProtocolError
from nsqtools.net.tls import load_certificates, load_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.config.sandbox import NsqdOptions

_PIECE = 1 << 16


def server_context(options: NsqdOptions) -> ssl.SSLContext | None:
    """Return the context for these options, None without a certificate; raises ConfigError.

    Python's ssl verifies every client certificate, so that ``require`` has the effect of
    ``require-verify``.
    """
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, "--tls", options.tls_cert, options.tls_key)
    if options.tls_root_ca_file:
        load_certificates(context, "--tls-root-ca-file", options.tls_root_ca_file)
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TLS:
    """The server's side of TLS on one connection; converts between encrypted and plain bytes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._received, self._pending = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._received, self._pending, server_side=True)
        self.ended = False
        """Whether the client has announced the end of its data."""

    def shake_hands(self, data: bytes) -> bool:
        """Continue the handshake; return whether it is complete. Raises ProtocolError."""
        self._received.write(data)
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise ProtocolError(_reason(error)) from None
        return True

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the plain bytes of ``data`` in pieces; raises ProtocolError."""
        self._received.write(data)
        try:
            while piece := self.connection.read(_PIECE):
                yield piece
            self.ended = True
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise ProtocolError(_reason(error)) from None

    def encode(self, data: bytes) -> bytes:
        """Return the encrypted data."""
        for start in range(0, len(data), _PIECE):
            self.connection.write(data[start : start + _PIECE])
        return self.take_pending()

    def take_pending(self) -> bytes:
        """Return the bytes of TLS itself that must be sent, such as alerts."""
        return self._pending.read()


def _reason(error: ssl.SSLError) -> str:
    return f"tls: {(error.reason or str(error)).lower().replace('_', ' ')}"


def describe(connection: ssl.SSLObject | None) -> dict[str, Any]:
    """Return the TLS fields of a client in ``/stats``; nsqd names cipher suites differently."""
    version = connection.version() if connection else None
    suite = connection.cipher() if connection else None
    return {
        "tls": connection is not None,
        "tls_cipher_suite": suite[0] if suite else "",
        "tls_version": (version or "").replace("v", ""),
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": connection is not None,
    }
