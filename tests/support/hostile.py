"""An nsqd that shakes hands as it should, and then sends what a test wants sent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Self

import snappy

from nsqtools.names import Address
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MIB = 1 << 20
PATIENCE = 30.0


def header(size: int, kind: int) -> bytes:
    """The beginning of a frame that claims this size."""
    return struct.pack(">II", size, kind)


def endless(start: bytes, size: int) -> Iterator[bytes]:
    """A beginning, and so many bytes of nothing behind it."""
    yield start
    for _ in range(size // MIB):
        yield bytes(MIB)


class Hostile:
    """A context manager; every connection gets ``attack()``, compressed if it ``compresses``.

    The attack comes when the client has said ``cue``.
    """

    def __init__(
        self, attack: Callable[[], Iterable[bytes]], *, cue: str, compresses: str = ""
    ) -> None:
        self._attack = attack
        self._cue = cue
        self._compresses = compresses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(PATIENCE)
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        encode: Callable[[bytes], bytes] = bytes
        decode: Callable[[bytes], bytes] = bytes
        unread = b""
        with client, contextlib.suppress(OSError):
            while data := client.recv(65536):
                found, unread = wire.split_commands(unread + decode(data))
                for command in found:
                    name = command.partition(" ")[0]
                    if name == "IDENTIFY":
                        agreed = {self._compresses: True} if self._compresses else {}
                        client.sendall(wire.negotiated(**agreed))
                        if self._compresses:
                            encode, decode = _codec(self._compresses)
                            client.sendall(encode(wire.OK))
                    elif name == "SUB":
                        client.sendall(encode(wire.OK))
                    if name == self._cue:
                        for piece in self._attack():
                            client.sendall(encode(piece))


def _codec(name: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    if name == "snappy":
        return snappy.StreamCompressor().add_chunk, snappy.StreamDecompressor().decompress
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    return lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH), unpacker.decompress
