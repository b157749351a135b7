"""TLS of the embedded nsqd, and what ``/stats`` says of it (nsqd.go, client_v2.go).

The layer is sans-IO, for asyncio's ``start_tls`` closes on a failed handshake before the client has
been told why.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from nsqtools.errors import ProtocolError
from nsqtools.net.tls import load_certificates, load_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.config import NsqdOptions

_PIECE = 1 << 16


def server_context(options: NsqdOptions) -> ssl.SSLContext | None:
    """The context of these options, None without a certificate; raises ConfigError.

    Python's ssl verifies any certificate a client shows, so ``require`` means what
    ``require-verify`` does.
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
    """The server's side of TLS on one connection, between the wire's bytes and plain ones."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._received, self._pending = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._received, self._pending, server_side=True)
        self.ended = False
        """Whether the peer has said that nothing more will come."""

    def shake_hands(self, data: bytes) -> bool:
        """Go on with the handshake; whether it is complete. Raises ProtocolError if it fails."""
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
        """Encrypt."""
        for start in range(0, len(data), _PIECE):
            self.connection.write(data[start : start + _PIECE])
        return self.take_pending()

    def take_pending(self) -> bytes:
        """What the peer must be sent of the protocol's own accord, alerts too."""
        return self._pending.read()


def _reason(error: ssl.SSLError) -> str:
    return f"tls: {(error.reason or str(error)).lower().replace('_', ' ')}"


def describe(connection: ssl.SSLObject | None) -> dict[str, Any]:
    """The TLS fields of a client in ``/stats``; nsqd has other names for cipher suites."""
    version = connection.version() if connection else None
    suite = connection.cipher() if connection else None
    return {
        "tls": connection is not None,
        "tls_cipher_suite": suite[0] if suite else "",
        "tls_version": (version or "").replace("v", ""),
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": connection is not None,
    }
