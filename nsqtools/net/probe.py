"""Finds out the protocol of a port, for errors about wrong addresses."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Literal

from nsqtools.net.hosts import first_dialled

if TYPE_CHECKING:
    from nsqtools.names import Address

Speaks = Literal["", "nsqd", "nsqlookupd", "http", "tls"]
"""The kind of port: the TCP port of nsqd or nsqlookupd, an HTTP server, or a server requiring TLS;
empty if unknown."""

# A PING to nsqlookupd (nsqlookupd/lookup_protocol_v1.go). Other servers do not understand it: nsqd
# answers with an error frame, an HTTP server with status 400, and a TLS server hangs up.
_QUESTION = b"  V1PING\n"
_BEGINNINGS: tuple[tuple[bytes, Speaks], ...] = (
    (b"\0\0\0\x02OK", "nsqlookupd"),
    (b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL", "nsqd"),
    (b"HTTP/", "http"),
)
_ENOUGH = 64


async def what_speaks(address: Address, *, limit: float) -> Speaks:
    """Ask for up to ``limit`` seconds; return empty without a known answer."""
    try:
        async with asyncio.timeout(limit):
            answer = await _ask(address)
            return _recognized(answer) or ("" if answer else await _shake_hands(address))
    except (OSError, UnicodeError):  # TimeoutError is an OSError
        return ""


async def _ask(address: Address) -> bytes:
    reader, writer = await first_dialled(
        address.host, lambda host: asyncio.open_connection(host, address.port)
    )
    received = b""
    try:
        writer.write(_QUESTION)
        while not _recognized(received) and len(received) < _ENOUGH:
            data = await reader.read(_ENOUGH)
            if not data:
                break
            received += data
    except ConnectionError:  # the server closed the connection before reading everything
        pass
    finally:
        writer.transport.abort()
    return received


def _recognized(received: bytes) -> Speaks:
    return next((kind for begin, kind in _BEGINNINGS if received.startswith(begin)), "")


async def _shake_hands(address: Address) -> Speaks:
    """Return "tls" if the server completes a TLS handshake, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await first_dialled(
            address.host,
            lambda host: asyncio.open_connection(
                host, address.port, ssl=context, server_hostname=address.host
            ),
        )
    except (ssl.SSLError, ConnectionError):
        return ""
    writer.transport.abort()
    return "tls"
