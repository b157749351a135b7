"""An nsqd that shakes hands as it should, and then sends what a test wants sent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

from snappy import StreamCompressor, StreamDecompressor

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
    """A context manager; every connection gets ``attack()``, compressed with ``snappy``.

    The attack comes when the client has said ``cue``.
    """

    def __init__(
        self, attack: Callable[[], Iterable[bytes]], *, cue: str, snappy: bool = False
    ) -> None:
        self._attack = attack
        self._cue = cue
        self._snappy = snappy
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
                        client.sendall(wire.negotiated(snappy=self._snappy))
                        if self._snappy:
                            encode = StreamCompressor().add_chunk
                            decode = StreamDecompressor().decompress
                            client.sendall(encode(wire.OK))
                    elif name == "SUB":
                        client.sendall(encode(wire.OK))
                    if name == self._cue:
                        for piece in self._attack():
                            client.sendall(encode(piece))
