"""TLS below the HTTP server.

asyncio's own closes on a failed handshake before the client has been told why; here it gets the
alert, and one that speaks plain HTTP gets net/http's answer (Go's ``net/http/server.go``, serve).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqtools.errors import ProtocolError
from nsqtools.sandbox.server import peer_address
from nsqtools.sandbox.tls import TLS

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 5.0
"""Longest time for a handshake, in seconds."""

_READ = 64 << 10
_PLAIN_HTTP = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")
_ANSWER = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class SecureStream:
    """Reads and writes as asyncio's streams do, plain bytes on this side and TLS on the other."""

    def __init__(
        self,
        context: ssl.SSLContext,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._tls = TLS(context)
        self._reader = reader
        self._writer = writer
        self._plain = b""

    async def shake_hands(self) -> bool:
        """Whether that worked; if not, the client was told. Raises OSError or TimeoutError."""
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            while data := await self._reader.read(_READ):
                if data.startswith(_PLAIN_HTTP):
                    self._writer.write(_ANSWER)
                    return False
                try:
                    if self._tls.shake_hands(data):
                        self._plain = self._decode(b"")
                        return True
                except ProtocolError as error:
                    log.debug("%s: %s", peer_address(self._writer), error)
                    return False
                finally:
                    self._writer.write(self._tls.take_pending())
        return False

    async def read(self, count: int) -> bytes:
        """Up to ``count`` bytes, none at the end; raises OSError."""
        while not (self._plain or self._tls.ended):
            if not (data := await self._reader.read(_READ)):
                break
            self._plain = self._decode(data)
        found, self._plain = self._plain[:count], self._plain[count:]
        return found

    def write(self, data: bytes) -> None:
        """As StreamWriter."""
        self._writer.write(self._tls.encode(data))

    async def drain(self) -> None:
        """As StreamWriter."""
        await self._writer.drain()

    def _decode(self, data: bytes) -> bytes:
        try:
            return b"".join(self._tls.decode(data))
        except ProtocolError as error:
            raise ConnectionError(str(error)) from None
        finally:
            self._writer.write(self._tls.take_pending())
