"""A TCP connection to nsqd. It moves bytes between a transport and a Session."""

# size: each error of the handshake has its own advice

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from nsqtools.config.option import flag_name
from nsqtools.errors import (
    ConnectionLostError,
    NSQError,
    PeerError,
    ProtocolError,
    RefusedError,
    ServerError,
    UnreachableError,
)
from nsqtools.names import Address
from nsqtools.net.hosts import first_dialled
from nsqtools.net.identity import identify_body
from nsqtools.net.tls import (
    client_context,
    explain,
    http_context,
    plain,
    uses_tls,
    warn_of_no_tls,
    warn_of_secret_in_clear,
)
from nsqtools.proto import commands
from nsqtools.proto.session import (
    Closed,
    CloseWait,
    CommandFailed,
    CommandReply,
    Event,
    Ready,
    Session,
    TLSRequested,
    refused_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config.connection import ClientConfig
    from nsqtools.proto.messages import Message

log = logging.getLogger(__name__)

# nsqd queries nsqlookupd and an AUTH server before it responds, and allows 5 s for TLS alone.
_HANDSHAKE_TIMEOUT = 20.0

# For an nsqd with an unknown heartbeat interval, 30 s by default.
_UNKNOWN_HEARTBEAT_TIMEOUT = 120.0

# Size of the read buffer: at first, and at most; it grows after each read that fills it.
_FIRST_READ = 16 << 10
_LARGEST_READ = 1 << 20

# Seconds for nsqd to read the last commands and close its side of a clean close.
_CLOSE_TIMEOUT = 2.0


class Listener:
    """Receives the events of a connection. Every method may be overridden."""

    __slots__ = ()

    def messages_received(self, connection: Connection, messages: list[Message]) -> None:
        """Handle the messages of one read."""

    def command_failed(self, connection: Connection, error: ServerError) -> None:
        """Handle the refusal of a late FIN, REQ or TOUCH."""

    def connection_lost(self, connection: Connection, error: PeerError | None) -> None:
        """Handle the end of the connection, reported once and only after ``open`` has returned.

        ``error`` is None if we closed the connection.
        """


class Dial(Protocol):
    """Opens a connection: ``Connection.open``, or a replacement in tests."""

    async def __call__(
        self,
        address: Address,
        config: Any,
        listener: Listener,
        *,
        subscription: tuple[str, str] | None,
        auth_secret: str,
    ) -> Connection:
        """Open a connection, with the arguments and errors of ``Connection.open``."""


@dataclass(slots=True)
class _PendingCommand:
    """A command waiting for responses."""

    future: asyncio.Future[bytes]
    replies: int
    answered: int = 0


class Connection(asyncio.BufferedProtocol):
    """One connection, made by ``open``.

    ``ready`` is the RDY last sent; ``in_flight`` counts unsettled messages, and ``received``
    messages since the last RDY. Commands wait in an outbox, written once per turn of the event
    loop.
    """

    def __init__(
        self, address: Address, config: ClientConfig, session: Session, read_timeout: float
    ) -> None:
        self.address = address
        self.features = session.features
        self.ready = 0
        self.in_flight = 0
        self.received = 0
        self.closing = False
        self._config = config
        self._read_timeout = read_timeout
        self._session = session
        self._buffer = memoryview(b"")
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests: deque[_PendingCommand] = deque()
        self._handshake: asyncio.Future[Event] = self._loop.create_future()
        self._close_wait = asyncio.Event()
        self._lost = self._loop.create_future()
        self._error: PeerError | None = None
        self._flushing = False
        self._hung_up = False
        self._aborted = False
        self._written = 0
        self.last_read = self._loop.time()
        """Event loop time of the last read."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._write_watchdog: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        config: ClientConfig,
        listener: Listener | None = None,
        *,
        subscription: tuple[str, str] | None = None,
        auth_secret: str = "",
    ) -> Self:
        """Dial, IDENTIFY, and SUB if there is a subscription (topic, channel).

        Without a ``listener`` messages are dropped, and the loss is not reported. If nsqd refuses
        one of our defaults in IDENTIFY, a new connection omits the field, so nsqd's default counts.
        Raises UnreachableError (timed out, TLS, AUTH, refused, no nsqd), or ConfigError if a TLS
        file cannot be used.
        """
        http_context(config)  # an unusable file is an error even if nsqd does not offer TLS
        warn_of_no_tls(config)
        identify = identify_body(config)
        read_timeout = config.read_timeout
        while True:
            session = Session(
                identify,
                subscription=subscription,
                auth_secret=auth_secret,
                max_msg_size=config.max_msg_size,
                address=address,
            )
            self = cls(address, config, session, read_timeout)
            try:
                await self._open(session)
            except RefusedError as error:
                name = refused_option(error.text)
                if name not in identify:
                    raise
                if getattr(config, name) != config.declared()[name].default:
                    usual = " (15m by default)" if name == "msg_timeout" else ""
                    fix = f"lower {config.spelled(name)}, or raise nsqd's -max-{flag_name(name)}"
                    raise RefusedError(f"{error.text}: {fix}{usual}", address) from error
                value = identify.pop(name)
                log.info("%s: nsqd refuses %s %s and uses its own value", address, name, value)
                if name == "heartbeat_interval":
                    read_timeout = max(read_timeout, _UNKNOWN_HEARTBEAT_TIMEOUT)
            else:
                self._listener = listener
                self._watch()
                return self
            finally:
                if auth_secret and session.features.auth_required and not uses_tls(config):
                    warn_of_secret_in_clear(address)

    async def _open(self, session: Session) -> None:
        """Complete the handshake; drop the connection on an error. Raises ``open``'s errors."""
        try:
            await self._dial()
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                event = await self._next_handshake_event()
                if isinstance(event, TLSRequested):
                    await self._start_tls()
                    event = await self._next_handshake_event()
        except TimeoutError as error:
            self.abort()
            text = "no answer to IDENTIFY in time"
            raise UnreachableError(text, self.address, reason="silence") from error
        except (OSError, UnicodeError, NSQError) as error:
            self.abort()
            raise self._explain(error) from error
        except BaseException:
            self.abort()
            raise
        self.features = session.features

    def set_ready(self, count: int) -> None:
        """Send RDY."""
        self.ready = count
        self.received = 0
        self._send(commands.ready(count))

    def settle(
        self,
        finish: Sequence[bytes] = (),
        requeue: Sequence[tuple[bytes, int]] = (),
        touch: Sequence[bytes] = (),
    ) -> None:
        """Send FIN and TOUCH for ids, and REQ for pairs of id and delay in ms."""
        self.in_flight -= len(finish) + len(requeue)
        self._send(commands.finish(finish) + commands.requeue(requeue) + commands.touch(touch))

    def forget(self, count: int) -> None:
        """Count ``count`` fewer messages in flight: nsqd has requeued them itself."""
        self.in_flight -= count

    def request(self, command: bytes, *, replies: int = 1) -> asyncio.Future[bytes]:
        """Send one command with an answer, or several joined; return a future of the last answer.

        Requests may overlap; answers come in order. The future raises ServerError if nsqd refused
        the request. It raises ConnectionLostError if the connection ended before the answer: the
        outcome is then unknown. ``answered`` of either error counts the commands answered before.
        Without an open connection ``request`` itself raises ConnectionLostError.
        """
        if self._transport is None or self.closing:
            raise ConnectionLostError("connection is closed", self.address)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._requests.append(_PendingCommand(future, replies))
        self._send(command)
        return future

    def stop_messages(self) -> None:
        """Send CLS."""
        self.closing = True
        self.ready = 0
        self._session.stop_messages()
        self._schedule_flush()

    async def wait_closing(self) -> None:
        """Wait for the response to CLS, or for the end of the connection."""
        await self._close_wait.wait()

    async def wait_lost(self) -> None:
        """Wait for the end of the connection."""
        await asyncio.shield(self._lost)

    @property
    def answered_cls(self) -> bool:
        """Whether nsqd has answered CLS."""
        return self._close_wait.is_set()

    @property
    def unanswered(self) -> int:
        """The number of requests not answered yet."""
        return len(self._requests)

    @property
    def certificate(self) -> bytes:
        """nsqd's certificate in DER; empty without TLS."""
        found = self._transport and self._transport.get_extra_info("ssl_object")
        return (found and found.getpeercert(binary_form=True)) or b""

    async def close(self, *, drain: float = _CLOSE_TIMEOUT) -> None:
        """Write queued commands and close; wait up to ``drain`` seconds for nsqd to read them."""
        self.closing = True
        if self._transport is None:
            return
        self._flush()
        self._hung_up = True
        # Closing both directions at once could reset the connection before nsqd reads the last FIN.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain):
                    await asyncio.shield(self._lost)
        finally:  # even when cancelled
            self.abort()

    def abort(self, error: PeerError | None = None) -> None:
        """Drop the connection now; nsqd requeues the messages in flight."""
        self._error = self._error or error
        self.closing = self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended or is ending; commands then no longer reach nsqd."""
        return self._hung_up or self._aborted or self._lost.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is established."""
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=1 << 20)
        self._buffer = memoryview(bytearray(_FIRST_READ))
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: the buffer for the next read; the previous read has been parsed."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes were read. This is the hot path."""
        self.last_read = self._loop.time()
        session = self._session
        session.receive_data(self._buffer[:nbytes])
        if nbytes == len(self._buffer) < _LARGEST_READ:
            self._buffer = memoryview(bytearray(4 * nbytes))
        self._dispatch_messages()
        if events := session.take_events():
            for event in events:
                self._dispatch(event)
        self._schedule_flush()

    def eof_received(self) -> bool:
        """asyncio: nsqd closed its side; the transport closes itself."""
        self._session.receive_eof()
        for event in self._session.take_events():
            self._dispatch(event)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the connection has ended."""
        if self._lost.done():
            return
        self._transport = None
        for timer in (self._watchdog, self._write_watchdog):
            if timer:
                timer.cancel()
        if self._error is None and error is not None:
            text = plain(error) if isinstance(error, OSError) else str(error)
            self._error = ConnectionLostError(text or type(error).__name__, self.address)
            self._error.__cause__ = error
        self._lost.set_result(None)
        self._close_wait.set()
        lost = reason = self._error or ConnectionLostError("connection closed", self.address)
        if not self._handshake.done():
            self._handshake.set_exception(reason)
            self._handshake.exception()  # open() may have given up waiting
        # An error of nsqd answers the oldest command, even if nobody awaits its response any more.
        behind = ConnectionLostError(f"connection lost: {reason.text}", self.address)
        if self._requests and isinstance(reason, ConnectionLostError):
            reason.answered = self._requests[0].answered
        for number, request in enumerate(self._requests):
            if not request.future.done():
                request.future.set_exception(behind if number else reason)
        self._requests.clear()
        if self._listener:
            self._listener.connection_lost(self, None if self._hung_up else lost)

    def pause_writing(self) -> None:
        """asyncio: nsqd does not read. Begin to check for progress in writing."""
        self._watch_write(self._taken())

    def resume_writing(self) -> None:
        """asyncio: nsqd reads again."""
        if self._write_watchdog:
            self._write_watchdog.cancel()
            self._write_watchdog = None

    def _dispatch_messages(self) -> None:
        if self._listener and (messages := self._session.take_messages()):
            self.in_flight += len(messages)
            self.received += len(messages)
            self._listener.messages_received(self, messages)

    def _dispatch(self, event: Event) -> None:
        match event:
            case CommandReply(data):
                self._replied(data)
            case CommandFailed(error):
                if self._listener:
                    self._listener.command_failed(self, error)
            case CloseWait():
                self._close_wait.set()
            case Closed(error):
                self._error = self._error or error
                self.abort()
            case TLSRequested() | Ready():
                if not self._handshake.done():
                    self._handshake.set_result(event)

    def _replied(self, data: bytes) -> None:
        if not self._requests:
            return
        request = self._requests[0]
        request.answered += 1
        if request.answered == request.replies:
            self._requests.popleft()
            if not request.future.done():
                request.future.set_result(data)

    async def _dial(self) -> None:
        local = Address.parse(self._config.local_addr, 0) if self._config.local_addr else None
        try:
            async with asyncio.timeout(self._config.dial_timeout):
                await first_dialled(
                    self.address.host,
                    lambda host: self._loop.create_connection(
                        lambda: self, host, self.address.port, local_addr=local
                    ),
                )
        except TimeoutError as error:
            raise UnreachableError("connection timed out", self.address, reason="dial") from error

    async def _start_tls(self) -> None:
        assert self._transport is not None
        # From here on reads come through TLS, possibly before start_tls returns. Writes must wait
        # for its return.
        self._session.tls_established()
        self._flushing = True
        transport = await self._loop.start_tls(
            self._transport, self, client_context(self._config), server_hostname=self.address.host
        )
        if transport is None:
            text = "closed by the server during the TLS handshake"
            raise UnreachableError(text, self.address, reason="tls")
        self._transport = transport
        self._flush()

    async def _next_handshake_event(self) -> Event:
        event = await self._handshake
        self._handshake = self._loop.create_future()
        if self._lost.done():
            raise self._error or ConnectionLostError("connection closed", self.address)
        return event

    def _explain(self, error: BaseException) -> NSQError:
        """Convert the error to an NSQError with the address and, for TLS, the fix."""
        cause = error.__cause__ if isinstance(error, ConnectionLostError) else error
        if isinstance(cause, UnicodeError | socket.gaierror):  # the IDNA codec raises UnicodeError
            text = f"cannot resolve {self.address.host!r}"
            return UnreachableError(text, self.address, reason="name")
        if isinstance(cause, OSError):
            if uses_tls(self._config) and self._written:
                kind = RefusedError if isinstance(cause, ssl.SSLError) else UnreachableError
                return kind(explain(cause), self.address, reason="tls")
            return UnreachableError(
                plain(cause), self.address, reason="" if self._written else "dial"
            )
        if isinstance(error, ProtocolError):
            return RefusedError(error.text, self.address, reason="protocol")
        if type(error) is ConnectionLostError:
            return UnreachableError(error.text, self.address)
        return error if isinstance(error, NSQError) else UnreachableError(str(error), self.address)

    def _send(self, command: bytes) -> None:
        self._session.send(command)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._hung_up:
            return
        if data := self._session.take_output():
            self._written += len(data)
            self._transport.write(data)

    def _watch(self) -> None:
        """Drop the connection if nothing, not even a heartbeat, was read for ``read_timeout``."""
        due = self.last_read + self._read_timeout
        now = self._loop.time()
        if now < due:
            self._watchdog = self._loop.call_at(due, self._watch)
        else:
            silent = f"silent for {now - self.last_read:.0f} s, not even a heartbeat"
            self.abort(ConnectionLostError(silent, self.address))

    def _taken(self) -> int:
        """The number of bytes accepted by the operating system so far."""
        waiting = self._transport.get_write_buffer_size() if self._transport else 0
        return self._written - waiting

    def _watch_write(self, last: int) -> None:
        """Drop the connection if no byte could be written for ``write_timeout``."""

        def check() -> None:
            if (taken := self._taken()) == last:
                self.abort(ConnectionLostError("takes no more data", self.address))
            else:
                self._watch_write(taken)

        self._write_watchdog = self._loop.call_later(self._config.write_timeout, check)
