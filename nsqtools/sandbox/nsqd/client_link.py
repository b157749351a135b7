"""A client's connection below the commands: TLS, compression, heartbeats (protocol_v2.go, IOLoop).

The commands in one read are executed in one loop and answered in one write. While a command waits
(for nsqlookupds or a TLS handshake), or the client does not read its responses, later commands wait
too, and nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from nsqtools.errors import ProtocolError, ServerError
from nsqtools.names import Address
from nsqtools.net.tcp import peer_address
from nsqtools.proto.commands import MAGIC
from nsqtools.sandbox.nsqd.parser import error_frame, response_frame
from nsqtools.sandbox.nsqd.tls_layer import TLS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from nsqtools.proto.codecs import Codec
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.nsqd.parser import CommandParser
    from nsqtools.sandbox.nsqd.protocol import Client

log = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT = 5.0
_LINGER = 5.0
"""Maximum seconds for sending the last responses before closing."""
_HEARTBEAT = response_frame(b"_heartbeat_")


class ClientLink(asyncio.Protocol):
    """One connection; its ``client`` executes the commands."""

    def __init__(self, nsqd: Nsqd, client: Client, parser: CommandParser) -> None:
        self.address = Address("", 0)
        self.tls: ssl.SSLObject | None = None
        """Set after the TLS handshake."""
        self.codec: Codec | None = None
        self.blocked = False
        """Whether the client does not read what was sent."""
        self._nsqd = nsqd
        self._client = client
        self._parser = parser
        self._loop = asyncio.get_running_loop()
        self._tls: TLS | None = None
        self._codec_to_come: Codec | None = None  # set after the current handshake
        self._magic: bytes | None = b""  # received part of the magic, None after all of it
        self._answers: list[bytes] = []
        self._busy = False  # a command is waiting
        self._ended = False  # the client will send no more
        self._closed = False
        self._interval = 0.0  # seconds between heartbeats
        self._heard = 0.0  # time of the last data from the client
        self._unsent: float = 0  # unsent bytes at the last heartbeat
        self._heartbeat: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None  # timeout of the handshake or of closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio for a new connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base class
        self.address = peer_address(self._transport)
        self._nsqd.links.add(self)
        if self._nsqd.stopped:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        self._leave()
        self._nsqd.links.discard(self)
        for timer in (self._heartbeat, self._end):
            if timer:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with received bytes."""
        self._heard = self._loop.time()
        if self._magic is not None:
            data = self._introduce(data)
        if self._closed or not data:
            return
        try:
            if self._tls and not self.tls:
                self._shake_hands(self._tls, data)
            else:
                self._decode(data)
        except ProtocolError as error:
            log.warning("%s: %s", self.address, error)
            self.close()
        self._work()

    def eof_received(self) -> bool:
        """Called by asyncio at the end of input; commands received so far are still answered."""
        self._ended = True
        if self._tls and not self.tls:  # the handshake will never be completed
            self._busy = False
        if not self._busy:
            self.close()
        return self._busy

    def pause_writing(self) -> None:
        """Called by asyncio when the client does not read fast enough."""
        self.blocked, self._unsent = True, float("inf")
        self._transport.pause_reading()
        self._client.pace_changed()

    def resume_writing(self) -> None:
        """Called by asyncio when the client has caught up."""
        if not self._closed:
            self.blocked = False
            self._client.pace_changed()
            self._go_on()

    def close(self) -> None:
        """Close the connection after sending pending responses."""
        self.flush()
        if not self._closed:
            self._leave()
            self._transport.close()
            self._give_up_after(_LINGER)

    def abort(self) -> None:
        """Close the connection at once."""
        self._leave()
        self._transport.abort()

    def answer(self, frame: bytes) -> None:
        """Send a frame at the end of this turn, or with ``flush``."""
        self._answers.append(frame)

    def flush(self) -> None:
        """Send pending responses."""
        if self._answers and not self._closed:
            data = b"".join(self._answers)
            self._answers.clear()
            self.write(data)

    def write(self, data: bytes) -> None:
        """Send frames now."""
        if self.codec:
            data = self.codec.encode(data)
        if self.tls and self._tls:
            data = self._tls.encode(data)
        self._transport.write(data)

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Make later commands wait until this work is done."""
        self._busy = True
        self._transport.pause_reading()
        self._nsqd.run(self._carry_out(work))

    def start_heartbeats(self, interval: float) -> None:
        """Send heartbeats at this interval in seconds, 0 for none, and expect commands."""
        self._interval, self._heard = interval, self._loop.time()
        if self._heartbeat:
            self._heartbeat.cancel()
        if interval:
            self._heartbeat = self._loop.call_at(self._heard + interval, self._beat)

    def secure(self, context: ssl.SSLContext, codec: Codec | None) -> None:
        """Continue with TLS and, within TLS, optional compression."""
        self.flush()
        self._parser.clear()
        self._busy = True
        self._tls, self._codec_to_come = TLS(context), codec
        self._give_up_after(_HANDSHAKE_TIMEOUT)

    def compress(self, codec: Codec | None) -> None:
        """Continue with compression, if any."""
        if codec:
            self.flush()
            self._parser.clear()
            self.codec = codec
            self.answer(response_frame(b"OK"))

    def _introduce(self, data: bytes) -> bytes:
        """Check the magic; return the data after it."""
        held = self._magic or b""
        missing = len(MAGIC) - len(held)
        self._magic = held + data[:missing]
        if len(data) < missing:
            return b""
        if self._magic != MAGIC:
            log.warning("%s: bad protocol magic %r", self.address, self._magic)
            self.answer(error_frame("E_BAD_PROTOCOL"))
            self.close()
            return b""
        self._magic = None
        self._client.introduced()
        return data[missing:]

    def _shake_hands(self, tls: TLS, data: bytes) -> None:
        """Continue the TLS handshake; raises ProtocolError for invalid data after it.

        If the handshake fails, the client receives the TLS alert and then nsqd's error.
        """
        try:
            complete = tls.shake_hands(data)
        except ProtocolError as error:
            self._transport.write(tls.take_pending())
            self._refuse(ServerError(f"E_IDENTIFY_FAILED IDENTIFY failed {error}"))
            return
        self._transport.write(tls.take_pending())
        if complete:
            if self._end:
                self._end.cancel()
            self.tls = tls.connection
            self.answer(response_frame(b"OK"))
            self.compress(self._codec_to_come)
            self._busy = False
            self._decode(b"")

    def _decode(self, data: bytes) -> None:
        """Decrypt and decompress; raises ProtocolError."""
        for plain in self._tls.decode(data) if self._tls else (data,):
            for piece in self.codec.decode(plain) if self.codec else (plain,):
                self._parser.feed(piece)
        if self._tls and self._tls.ended:
            self._ended = True

    def _work(self) -> None:
        """Execute complete commands and send the responses."""
        try:
            while not (self._busy or self.blocked or self._closed):
                if not (command := self._parser.next()):
                    break
                self._client.obey(command)
        except ServerError as error:
            self._refuse(error)
        except ProtocolError as error:
            log.warning("%s: %s", self.address, error)
            self.close()
        if not self._busy:
            self.flush()
            if self._ended and not self.blocked:
                self.close()

    async def _carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        self._busy = False
        self._heard = self._loop.time()
        self._go_on()

    def _go_on(self) -> None:
        """Read again, and execute commands that have arrived."""
        if not (self._busy or self.blocked or self._closed):
            self._transport.resume_reading()
        self._work()

    def _refuse(self, error: ServerError) -> None:
        """Send the error and close the connection."""
        log.warning("%s: %s", self.address, error.text)
        self.answer(error_frame(error.text))
        self.close()

    def _leave(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.left()

    def _give_up_after(self, delay: float) -> None:
        if self._end:
            self._end.cancel()
        self._end = self._loop.call_later(delay, self.abort)

    def _beat(self) -> None:
        """Send a heartbeat, or drop a client that was silent or read nothing for two intervals."""
        if self._closed or not self._heartbeat:
            return
        now = self._loop.time()
        if self.blocked:
            unsent = self._transport.get_write_buffer_size()
            if unsent >= self._unsent:
                log.warning(
                    "%s: the client has read nothing for %.3g s", self.address, self._interval
                )
                self.abort()
                return
            self._unsent = unsent
        if self._busy or self.blocked:
            self._heard = now
        elif now >= self._heard + 2 * self._interval:
            log.warning("%s: no command for %.3g s", self.address, now - self._heard)
            self.abort()
            return
        else:
            self.write(_HEARTBEAT)
        due = max(now, self._heartbeat.when() + self._interval)
        self._heartbeat = self._loop.call_at(due, self._beat)
