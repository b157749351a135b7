"""Compression of a connection: nsqd's snappy and deflate (tcp_protocol_spec, IDENTIFY).

A codec decompresses received bytes into pieces of the plain stream, and compresses bytes to send.
The size of a piece is bounded: a few hostile bytes cannot expand past the parser's limit.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 1 << 20


class Codec(Protocol):
    """Compresses and decompresses one connection."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed ``data`` in pieces. Raises ProtocolError."""

    def encode(self, data: bytes) -> bytes:
        """Compress and flush, so that the peer can read all of ``data``."""


class Deflate:
    """Raw deflate, flushed with every write, as in Go's ``compress/flate``."""

    def __init__(self, level: int = 6) -> None:
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed ``data`` in pieces. Raises ProtocolError."""
        try:
            while data:
                piece = self._inflate.decompress(data, _PIECE)
                data = self._inflate.unconsumed_tail
                if piece:
                    yield piece
        except zlib.error as error:
            raise ProtocolError(f"corrupt deflate stream: {error}") from error
        if self._inflate.eof:
            raise ProtocolError("the deflate stream ended")

    def encode(self, data: bytes) -> bytes:
        """Compress and flush, so that the peer can read all of ``data``."""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


class Snappy:
    """The snappy framing format. A chunk holds at most 64 KiB, so a read's size bounds a piece."""

    def __init__(self) -> None:
        import snappy

        self._decompressor = snappy.StreamDecompressor()
        self._compressor = snappy.StreamCompressor()

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed ``data`` in pieces. Raises ProtocolError."""
        try:
            piece: bytes = self._decompressor.decompress(data)
        except Exception as error:  # cramjam raises OSError, python-snappy an error of its own
            raise ProtocolError(f"corrupt snappy stream: {error}") from error
        if piece:
            yield piece

    def encode(self, data: bytes) -> bytes:
        """Compress and flush, so that the peer can read all of ``data``."""
        encoded: bytes = self._compressor.add_chunk(data)
        return encoded
