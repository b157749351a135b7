"""The protocol of one connection to nsqd, without I/O: a state table from bytes to events.

    IDENTIFYING -> [SECURING -> TLS_CONFIRMING] -> [COMPRESSING] -> [AUTHENTICATING]
                -> [SUBSCRIBING] -> READY -> [CLOSING] -> CLOSED

Steps in brackets happen if requested and negotiated. The meaning of a response depends only on the
state; see the table at the end. ``receive_data`` takes received bytes. Messages, events and output
wait in a list each until the owner takes them. ``receive_data`` never raises: a failure ends the
session and is its last event, after everything received before it.

The owner is responsible for time (the session answers heartbeats, the owner notices missing ones)
and for matching replies to publishes (replies come in order, so the owner keeps a queue).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from nsqtools.errors import (
    AUTH_CODES,
    AuthError,
    ConnectionLostError,
    PeerError,
    ProtocolError,
    RefusedError,
    ServerError,
    UnreachableError,
    show,
)
from nsqtools.proto import commands
from nsqtools.proto.codecs import Deflate, Snappy
from nsqtools.proto.frames import FrameParser, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsqtools.names import Address
    from nsqtools.proto.codecs import Codec
    from nsqtools.proto.messages import Message

DEFAULT_MAX_RDY = 2500
"""Used if nsqd does not report it (building_client_libraries, nsqd Max RDY Count)."""

_HEARTBEAT = b"_heartbeat_"


class State(Enum):
    """The state of a session; the module's docstring has the order of the states."""

    IDENTIFYING = auto()
    SECURING = auto()
    TLS_CONFIRMING = auto()
    COMPRESSING = auto()
    AUTHENTICATING = auto()
    SUBSCRIBING = auto()
    READY = auto()
    CLOSING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Features:
    """nsqd's response to IDENTIFY; the defaults apply if nsqd responds only OK.

    ``msg_timeout`` and ``max_msg_timeout`` are seconds.
    """

    version: str = ""
    max_rdy_count: int = DEFAULT_MAX_RDY
    msg_timeout: float = 60.0
    max_msg_timeout: float = 900.0
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    auth_required: bool = False

    @property
    def counts_rdy_down(self) -> bool:
        """Whether RDY falls with each message and must be renewed: nsqd before 0.3 (nsq#404)."""
        major, minor = [*self.version.split(".", 2), "", ""][:2]
        try:
            return (int(major), int(minor)) < (0, 3)
        except ValueError:
            return True


@dataclass(frozen=True, slots=True)
class TLSRequested:
    """Upgrade the transport now; then call ``tls_established``."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The handshake is complete."""

    features: Features


@dataclass(frozen=True, slots=True)
class CommandReply:
    """The response to the oldest unanswered publish."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """nsqd refused a FIN, REQ or TOUCH; the connection continues."""

    error: ServerError


@dataclass(frozen=True, slots=True)
class CloseWait:
    """The response to CLS: no more messages will arrive."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The session has ended; the error is None after an ordered close with CLS."""

    error: PeerError | None


Event = TLSRequested | Ready | CommandReply | CommandFailed | CloseWait | Closed


class Session:
    """The client's side of the protocol.

    ``identify`` is the body of IDENTIFY; ``subscription`` is (topic, channel), or None for a
    producer, for which any message is an error; ``max_msg_size`` is in bytes.
    """

    def __init__(
        self,
        identify: Mapping[str, Any],
        *,
        subscription: tuple[str, str] | None = None,
        auth_secret: str = "",
        max_msg_size: int = 64 << 20,
        address: Address | None = None,
    ) -> None:
        self.state = State.IDENTIFYING
        self.features = Features()
        self._identify = identify
        self._subscription = subscription
        self._auth_secret = auth_secret
        self._address = address
        self._max_msg_size = max_msg_size
        self._parser = FrameParser(0, address)
        self._codec: Codec | None = None
        self._messages: list[Message] = []
        self._events: list[Event] = []
        self._replies: list[tuple[FrameType, bytes]] = []
        self._output = [commands.MAGIC, commands.identify(identify)]

    def receive_data(self, data: bytes | memoryview) -> None:
        """Process bytes from the transport. Never raises, and keeps no reference to a view."""
        if self.state is State.CLOSED:
            return
        try:
            if self._codec is None:
                self._parse(data)
            else:
                for piece in self._codec.decode(bytes(data)):
                    self._parse(piece)
        except PeerError as error:
            error.address = self._address
            self._close(error)

    def receive_eof(self) -> None:
        """Process the end of the peer's bytes."""
        if self.state is State.CLOSING:
            self._close(None)
        elif self.state is not State.CLOSED:
            self._close(
                ConnectionLostError("closed by nsqd", self._address)
                if self.state is State.READY
                else UnreachableError("closed by the server during the handshake", self._address)
            )

    def tls_established(self) -> None:
        """Continue after the TLS upgrade requested by TLSRequested."""
        if self.state is State.SECURING:
            self.state = State.TLS_CONFIRMING

    def send(self, command: bytes) -> None:
        """Queue an encoded command."""
        if self.state is not State.CLOSED:
            self._output.append(command)

    def stop_messages(self) -> None:
        """Send CLS; CloseWait follows. Only valid for a consumer that is READY."""
        if self.state is State.READY and self._subscription:
            self._output.append(commands.CLS)
            self.state = State.CLOSING

    def take_messages(self) -> list[Message]:
        """Return all messages since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def take_events(self) -> list[Event]:
        """Return all events since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def take_output(self) -> bytes:
        """Return all bytes to write since the last call, encoded for the wire."""
        if not self._output:
            return b""
        output, self._output = self._output, []
        data = b"".join(output)
        return self._codec.encode(data) if self._codec else data

    def _parse(self, data: bytes | memoryview) -> None:
        if self.state not in _STREAMING:
            self._parse_handshake(bytes(data))
            return
        replies = self._replies
        try:
            self._parser.parse(data, self._messages, replies)
        finally:
            if replies:
                self._replies = []
                for kind, reply in replies:
                    self._receive(kind, reply)

    def _parse_handshake(self, data: bytes) -> None:
        """Process one reply at a time: a reply may change the encoding of the following bytes."""
        if self.state is State.SECURING and data:
            raise ProtocolError("sent bytes before the TLS handshake")
        while (reply := self._parser.parse_reply(data)) is not None:
            codec = self._codec
            self._receive(*reply)
            data = b""
            if self.state is State.SECURING:
                self._parse_handshake(self._parser.take_rest())
                return
            if self._codec is not codec:
                self.receive_data(self._parser.take_rest())
                return
            if self.state in _STREAMING:
                self._parse(self._parser.take_rest())
                return

    def _receive(self, kind: FrameType, data: bytes) -> None:
        if kind is FrameType.ERROR:
            self._receive_error(show(data))
        elif data == _HEARTBEAT:
            self._output.append(commands.NOP)
        elif (on_response := _ON_RESPONSE.get(self.state)) is None:
            raise ProtocolError(f"unexpected response {data[:40]!r}")
        else:
            on_response(self, data)

    def _receive_error(self, text: str) -> None:
        if "TLS required" in text:  # nsqd/protocol_v2.go, enforceTLSPolicy
            text += ": give --tls-v1, and --tls-root-ca-file for a CA that the system does not know"
        elif self.state is State.AUTHENTICATING and not self._auth_secret:
            raise AuthError("nsqd requires AUTH: set --auth-secret-file")
        error = ServerError(text, self._address)
        if not error.fatal:
            self._events.append(CommandFailed(error))
        elif error.code in AUTH_CODES:
            verb = "forbids it" if error.code == "E_UNAUTHORIZED" else "refused the AUTH secret"
            raise AuthError(f"nsqd {verb}: {text}")
        elif self.state in _STREAMING:
            raise error
        else:
            raise RefusedError(f"nsqd refused the connection: {text}")

    def _close(self, error: PeerError | None) -> None:
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self._output.clear()
            self._events.append(Closed(error))

    def _identified(self, data: bytes) -> None:
        self.features = _read_features(data)
        if self._identify.get("tls_v1"):
            if not self.features.tls:
                raise RefusedError(
                    "nsqd does not offer TLS (start it with --tls-cert)", reason="tls"
                )
            self.state = State.SECURING
            self._events.append(TLSRequested())
        else:
            self._start_compression()

    def _tls_confirmed(self, data: bytes) -> None:
        _expect_ok(data, "the TLS handshake")
        self._start_compression()

    def _start_compression(self) -> None:
        if self.features.snappy and self._identify.get("snappy"):
            self._codec = Snappy()
        elif self.features.deflate and self._identify.get("deflate"):
            self._codec = Deflate(self._identify.get("deflate_level", 6))
        if self._codec:
            self.state = State.COMPRESSING
        else:
            self._authenticate()

    def _compressed(self, data: bytes) -> None:
        _expect_ok(data, "compression was agreed")
        self._authenticate()

    def _authenticate(self) -> None:
        if not self.features.auth_required:
            self._subscribe()
        else:
            # nsqd refuses an empty secret; if it requires TLS, it reports the missing TLS first.
            self._output.append(commands.auth(self._auth_secret.encode()))
            self.state = State.AUTHENTICATING

    def _authenticated(self, _data: bytes) -> None:
        self._subscribe()

    def _subscribe(self) -> None:
        if self._subscription:
            self._output.append(commands.subscribe(*self._subscription))
            self.state = State.SUBSCRIBING
        else:
            self._ready()

    def _subscribed(self, data: bytes) -> None:
        _expect_ok(data, "SUB")
        self._parser.max_msg_size = self._max_msg_size
        self._ready()

    def _ready(self) -> None:
        self.state = State.READY
        self._events.append(Ready(self.features))

    def _replied(self, data: bytes) -> None:
        if not self._subscription:
            _expect_ok(data, "a publish")
        self._events.append(CommandReply(data))

    def _closing(self, data: bytes) -> None:
        if data != b"CLOSE_WAIT":
            raise ProtocolError(f"answered CLS with {data[:40]!r}")
        self._events.append(CloseWait())


_STREAMING = frozenset({State.READY, State.CLOSING})

_ON_RESPONSE: Mapping[State, Callable[[Session, bytes], None]] = {
    State.IDENTIFYING: Session._identified,
    State.TLS_CONFIRMING: Session._tls_confirmed,
    State.COMPRESSING: Session._compressed,
    State.AUTHENTICATING: Session._authenticated,
    State.SUBSCRIBING: Session._subscribed,
    State.READY: Session._replied,
    State.CLOSING: Session._closing,
}


def refused_option(text: str) -> str:
    """Return IDENTIFY's field refused by nsqd (``nsqd/client_v2.go``); empty for other errors."""
    found = re.search(r"E_BAD_BODY IDENTIFY (.+) \(-?\d+\) is invalid", text)
    return found[1].replace(" ", "_") if found else ""


def _expect_ok(data: bytes, what: str) -> None:
    if data != b"OK":
        raise ProtocolError(f"expected OK after {what}, got {data[:40]!r}")


def _read_features(data: bytes) -> Features:
    """Parse the response to IDENTIFY: JSON, or OK from an nsqd without negotiation."""
    if data == b"OK":
        return Features()
    try:
        reply = json.loads(data)
        return Features(
            version=str(reply.get("version", "")),
            max_rdy_count=_positive(reply.get("max_rdy_count"), DEFAULT_MAX_RDY),
            msg_timeout=_positive(reply.get("msg_timeout"), 60_000) / 1000,
            max_msg_timeout=_positive(reply.get("max_msg_timeout"), 900_000) / 1000,
            tls=bool(reply.get("tls_v1")),
            snappy=bool(reply.get("snappy")),
            deflate=bool(reply.get("deflate")),
            auth_required=bool(reply.get("auth_required")),
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"unreadable reply to IDENTIFY: {data[:40]!r}") from error


def _positive(value: Any, default: int) -> int:
    number = int(value or 0)
    return number if number > 0 else default
