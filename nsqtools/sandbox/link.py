"""One client's connection below the commands: layers, pace, liveness (protocol_v2.go, IOLoop).

A read is worked off in one loop and answered in one write. While a command waits for something (an
authd, a TLS handshake), the ones behind it wait too, and nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nsqtools.errors import ProtocolError, ServerError
from nsqtools.names import Address
from nsqtools.sandbox import wire
from nsqtools.sandbox.server import peer_address
from nsqtools.sandbox.tls import TLS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from nsqtools.proto.codecs import Codec
    from nsqtools.sandbox.nsqd import Nsqd
    from nsqtools.sandbox.wire import Command, CommandParser

log = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT = 5.0
_LINGER = 5.0
"""Seconds that the last words may take to leave."""
_GRACE = 0.005
"""Seconds by which the second heartbeat unanswered comes before the end."""
_HEARTBEAT = wire.response(b"_heartbeat_")


class Owner(Protocol):
    """Whose link it is."""

    def introduced(self) -> None:
        """The peer speaks our protocol."""

    def obey(self, command: Command) -> bool:
        """Deal with what the parser gave; whether that was the end of a command.

        May raise ServerError: the peer is told, and hung up on.
        """

    def pace_changed(self) -> None:
        """``Link.blocked`` has changed."""

    def left(self) -> None:
        """Nothing can be sent or heard any more."""


class Link(asyncio.Protocol):
    """One connection, whose ``owner`` decides what it is told and what it answers."""

    def __init__(self, nsqd: Nsqd, owner: Owner, parser: CommandParser) -> None:
        self.address = Address("", 0)
        self.tls: ssl.SSLObject | None = None
        """Once its handshake is complete."""
        self.codec: Codec | None = None
        self.blocked = False
        """Whether the peer does not take what was sent."""
        self._nsqd = nsqd
        self._owner = owner
        self._parser = parser
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tls: TLS | None = None
        self._codec_to_come: Codec | None = None  # after the handshake under way
        self._interval = 0.0  # of heartbeats
        self._magic: bytes | None = b""  # what has come of it, None when all has
        self._answers: list[bytes] = []
        self._busy = False  # a command waits for something
        self._choked = False  # an answer waits for the peer to read
        self._stuck = False  # it has waited too long
        self._ended = False  # the peer will say no more
        self._closed = False
        self._heard = self._beat_due = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client has dialled."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = peer_address(transport)
        self._nsqd.links.add(self)
        if self._nsqd.stopped:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the connection is gone."""
        self._leave()
        self._nsqd.links.discard(self)
        for timer in self._timers.values():
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes."""
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
        """asyncio's: nothing more will come. What has come is worked off and answered."""
        self._ended = True
        if not self._busy:
            self._end()
        return self._busy

    def pause_writing(self) -> None:
        """asyncio's: the peer does not take what was sent. It has one heartbeat interval."""
        self.blocked = True
        self._owner.pace_changed()
        if self._interval and not self._closed:
            self._after(self._interval, "write", partial(self._give_up, self._unsent()))

    def resume_writing(self) -> None:
        """asyncio's: the peer goes on."""
        if self._stuck or self._closed:
            return
        self._cancel("write")
        self.blocked = False
        self._owner.pace_changed()
        if self._choked:
            self._choked = False
            self._resume_reading()
            self._work()

    def close(self) -> None:
        """Hang up, once what was said has left."""
        self.flush()
        if not self._closed and self._transport:
            self._leave()
            self._transport.close()
            self._cancel("write")
            self._after(_LINGER, "linger", self.abort)

    def abort(self) -> None:
        """Cut the connection."""
        self._leave()
        if self._transport:
            self._transport.abort()

    def answer(self, frame: bytes) -> None:
        """Send a frame at the end of this turn, or with ``flush``."""
        self._answers.append(frame)

    def flush(self) -> None:
        """Send the answers so far."""
        if not self._answers or self._closed:
            return
        data = b"".join(self._answers)
        self._answers.clear()
        if self._stuck:
            self.abort()
            return
        self.write(data)
        if self.blocked and self._transport:
            # nsqd's loop of commands waits in its write until the peer reads.
            self._choked = True
            self._transport.pause_reading()

    def write(self, data: bytes) -> None:
        """Send frames now."""
        if self.codec:
            data = self.codec.encode(data)
        if self.tls and self._tls:
            data = self._tls.encode(data)
        if self._transport:
            self._transport.write(data)

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the commands behind this one wait for some work, which may raise ServerError."""
        assert self._transport
        self._busy = True
        self._transport.pause_reading()
        self._nsqd.run(self._carry_out(work))

    def start_clocks(self, interval: float) -> None:
        """Begin to send heartbeats every so many seconds, if any, and to expect commands."""
        self._interval = interval
        self._heard = self._loop.time()
        self._cancel("heartbeat")
        self._cancel("eviction")
        if interval:
            self._beat_due = self._heard + interval
            self._after(interval, "heartbeat", self._beat)
            self._after(2 * interval + _GRACE, "eviction", self._check_heard)

    def secure(self, context: ssl.SSLContext, codec: Codec | None) -> None:
        """Put TLS under what follows, and in it compression, if any."""
        self.flush()
        self._parser.clear()
        self._busy = True
        self._tls, self._codec_to_come = TLS(context), codec
        self._after(_HANDSHAKE_TIMEOUT, "handshake", self.abort)

    def compress(self, codec: Codec | None) -> None:
        """Put compression under what follows, if any."""
        if codec:
            self.flush()
            self._parser.clear()
            self.codec = codec
            self.answer(wire.response(b"OK"))

    def _decode(self, data: bytes) -> None:
        """Take off the layers; raises ProtocolError."""
        for plain in self._tls.decode(data) if self._tls else (data,):
            for piece in self.codec.decode(plain) if self.codec else (plain,):
                self._parser.feed(piece)
        if self._tls and self._tls.ended:
            self._ended = True

    def _shake_hands(self, tls: TLS, data: bytes) -> None:
        """Go on with the TLS handshake; raises ProtocolError from what is encrypted behind it.

        A client that it fails for reads why in TLS's words, and then in nsqd's.
        """
        assert self._transport
        try:
            complete = tls.shake_hands(data)
        except ProtocolError as error:
            self._transport.write(tls.take_pending())
            self._refuse(ServerError(f"E_IDENTIFY_FAILED IDENTIFY failed {error}"))
            return
        self._transport.write(tls.take_pending())
        if complete:
            self._cancel("handshake")
            self.tls = tls.connection
            self.answer(wire.response(b"OK"))
            self.compress(self._codec_to_come)
            self._busy = False
            self._decode(b"")

    def _introduce(self, data: bytes) -> bytes:
        """Check the magic; returns what is behind it."""
        held = self._magic or b""
        missing = len(wire.MAGIC) - len(held)
        self._magic = held + data[:missing]
        if len(data) < missing:
            return b""
        if self._magic != wire.MAGIC:
            log.warning("%s: bad protocol magic %r", self.address, self._magic)
            self.answer(wire.error("E_BAD_PROTOCOL"))
            self.close()
            return b""
        self._magic = None
        self._owner.introduced()
        return data[missing:]

    def _work(self) -> None:
        """Work off the commands that are complete, and answer them at once."""
        worked = False
        try:
            while not (self._busy or self._choked or self._closed):
                if not (command := self._parser.next()):
                    break
                worked |= self._owner.obey(command)
        except ServerError as error:
            self._refuse(error)
        except ProtocolError as error:
            log.warning("%s: %s", self.address, error)
            self.close()
        if worked:
            self._heard = self._loop.time()
        if not self._busy:
            self.flush()
            if self._ended and not self._choked:
                self._end()

    async def _carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ServerError as error:
            self._refuse(error)
        self._busy = False
        self._heard = self._loop.time()
        self._resume_reading()
        self._work()

    def _refuse(self, error: ServerError) -> None:
        """Say why, and hang up."""
        log.warning("%s: %s", self.address, error.text)
        self.answer(wire.error(error.text))
        self.close()

    def _end(self) -> None:
        if not self._closed and (text := self._parser.end()):
            self.answer(wire.error(text))
        self.close()

    def _leave(self) -> None:
        if not self._closed:
            self._closed = True
            self._owner.left()

    def _after(self, delay: float, name: str, act: Callable[[], None]) -> None:
        """Set a timer, instead of another of that name."""
        self._cancel(name)
        self._timers[name] = self._loop.call_later(delay, act)

    def _cancel(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _resume_reading(self) -> None:
        if self._transport and not self._closed:
            self._transport.resume_reading()

    def _unsent(self) -> int:
        """Bytes that the peer has still to take."""
        assert self._transport
        return self._transport.get_write_buffer_size()

    def _give_up(self, unsent: int) -> None:
        """A write has reached its deadline: no message or heartbeat is sent ever again.

        The connection lives on until there is something to answer (protocol_v2.go, Send).
        """
        left = self._unsent()
        if left < unsent:
            self._after(self._interval, "write", partial(self._give_up, left))
            return
        self._stuck = True
        if self._choked:
            self.abort()

    def _beat(self) -> None:
        now = self._loop.time()
        self._beat_due = max(now, self._beat_due + self._interval)
        self._after(self._beat_due - now, "heartbeat", self._beat)
        if not (self._busy or self.blocked or self._closed):
            self.write(_HEARTBEAT)

    def _check_heard(self) -> None:
        """End a connection without a command for two intervals."""
        patience = 2 * self._interval + _GRACE
        now = self._loop.time()
        if self._busy or self._choked:
            self._heard = now
        if now >= self._heard + patience:
            log.warning("%s: no command for %.3g s", self.address, patience)
            self.abort()
        else:
            self._after(self._heard + patience - now, "eviction", self._check_heard)
