"""A transport in memory: the test is the peer, and sees every write."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeTransport(asyncio.Transport):
    """A connection of ``protocol`` to the test, as asyncio's socket transport behaves.

    ``writes`` are the calls of ``write()`` in order. ``on_write``, if set, is called with each
    of them in the next turn of the loop, and may answer with ``deliver()``. While ``stall()``
    holds, the peer takes nothing and the write buffer fills.
    """

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 4150)})
        self.writes: list[bytes] = []
        self.on_write: Callable[[bytes], object] | None = None
        self.aborted = False
        self.eof_written = False
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._reading = True
        self._undelivered: list[bytes | None] = []  # None is the end of the stream
        self._closing = False
        self._lost = False
        self._stalled = False
        self._buffered = 0
        self._low, self._high = 16 << 10, 64 << 10
        self._writing_paused = False

    # The test's side

    def connect(self) -> None:
        self._protocol.connection_made(self)

    def deliver(self, data: bytes) -> None:
        """The peer sent this. Paused reading keeps it back; a closed transport drops it."""
        self._undelivered.append(data)
        self._pass_on()

    def deliver_eof(self) -> None:
        """The peer ended its side: the transport closes, unless the protocol objects."""
        self._undelivered.append(None)
        self._pass_on()

    def lose(self, error: Exception | None = None) -> None:
        """The connection breaks; the protocol hears of it in the next turn of the loop."""
        self._closing = True
        self._end(error)

    def take(self) -> bytes:
        """What was written since the last call."""
        data = b"".join(self.writes)
        self.writes.clear()
        return data

    def stall(self) -> None:
        """From now on written bytes stay in the write buffer."""
        self._stalled = True

    def drain(self, size: int) -> None:
        """The peer takes some bytes of the write buffer."""
        self._buffered = max(0, self._buffered - size)
        self._flow()

    def unstall(self) -> None:
        """The peer takes all that is in the write buffer, and what follows at once."""
        self._stalled = False
        self._buffered = 0
        self._flow()
        if self._closing:
            self._end(None)

    # asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not data:
            return
        copy = bytes(data)
        self.writes.append(copy)
        if self._stalled:
            self._buffered += len(copy)
            self._flow()
        if self.on_write:
            self._loop.call_soon(self.on_write, copy)

    def write_eof(self) -> None:
        self.eof_written = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 << 10 if low is None else 4 * low
        self._low, self._high = high // 4 if low is None else low, high
        self._flow()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._pass_on)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """``connection_lost(None)`` follows once the write buffer is empty."""
        if not self._closing:
            self._closing = True
            if not self._buffered:
                self._end(None)

    def abort(self) -> None:
        self.aborted = True
        self.lose(None)

    def _pass_on(self) -> None:
        while self._undelivered and self.is_reading():
            data = self._undelivered.pop(0)
            if data is not None:
                self._receive(data)
            else:
                assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
                if not self._protocol.eof_received():
                    self.close()

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        assert isinstance(protocol, asyncio.BufferedProtocol)
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    def _flow(self) -> None:
        if self._buffered > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif self._buffered <= self._low and self._writing_paused:
            self._writing_paused = False
            self._protocol.resume_writing()

    def _end(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._buffered = 0
            self._loop.call_soon(self._protocol.connection_lost, error)
