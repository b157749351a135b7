"""Everything that can go wrong, as one tree.

    NSQError
     +-- ConfigError          an option has a value it cannot have (exit 2)
     |    +-- ConfigFileError     ... because the configuration file is wrong
     +-- UnreachableError     nothing usable answered (exit 3)
     |    +-- ConnectError        dialling, TLS or IDENTIFY failed
     |    |    +-- RefusedError        ... because the peer would not have us, or we not it
     |    +-- AuthError           AUTH is required, or was refused
     |    +-- HTTPError           an HTTP API gave no usable reply
     +-- ConnectionLostError  an established connection ended
     |    +-- ProtocolError       ... because the peer broke the protocol
     |    +-- ServerError         ... or nsqd said so: an E_* frame (three are not fatal)
     +-- PublishError         a publish was refused, or nobody took it in time
     +-- RecordError          input data is malformed
     +-- LockedError          another process holds a lock (exit 75)
     +-- OutputError          the output could not be written
          +-- OutputClosedError   ... because its reader is gone (exit 141)

An error about a peer names its address, so a log line with nothing but ``str(error)`` is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.names import Address

Reason = Literal["", "name", "dial", "silence", "tls"]
"""Why a peer cannot be talked to: its name is not known, no connection is to be had, nothing is
answered in time, TLS fails; or something else."""


def show(text: str | bytes) -> str:
    """What a server says, as one line of at most 200 characters that is safe on a terminal."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    line = " ".join(text[:1000].split())
    safe = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return "".join(safe)[:200]


class NSQError(Exception):
    """Base of all errors of this package; anything else that escapes is a bug.

    For example::

        try:
            asyncio.run(consumer.run())
        except NSQError as error:
            print("failed:", error)
    """

    def bare(self) -> Self:
        """This error without traceback and cause, which hold much: for whoever keeps many."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class ConfigError(NSQError):
    """An argument or an option has a wrong value; the message names it and says what is expected.

    For example::

        try:
            ConsumerConfig(max_attempts=-1)
        except ConfigError as error:
            print(error)
    """


class ConfigFileError(ConfigError):
    """The configuration file is wrong or missing; the text names file, table and key."""


class PeerError(NSQError):
    """An error that concerns one peer: ``str()`` reads ``host:port: text``."""

    def __init__(self, text: str, address: Address | None = None, *, reason: Reason = "") -> None:
        super().__init__(text)
        self.text = text
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.text}" if self.address else self.text


class UnreachableError(PeerError):
    """A server could not be reached, or refused the connection; ``address`` says which.

    For example::

        try:
            asyncio.run(consumer.run())
        except UnreachableError as error:
            print(error.address, error.text)
    """


class ConnectError(UnreachableError):
    """Dialling, the TLS handshake or IDENTIFY failed."""


class RefusedError(ConnectError):
    """The peer is there, and one of us refused the other: the next try would end like this one.

    TLS that it does not offer, certificates, and what nsqd says E_* to before a subscription is
    made. A secret that is refused is an AuthError.
    """


class AuthError(UnreachableError):
    """The peer requires AUTH and no secret is set, or it refused the secret."""


class HTTPError(UnreachableError):
    """An HTTP API could not be reached or gave no usable reply; ``status`` is 0 without a reply.

    ``code`` is the server's own word for a refusal, such as TOPIC_NOT_FOUND; empty if it has none.
    """

    def __init__(
        self,
        text: str,
        address: Address | None = None,
        *,
        status: int = 0,
        code: str = "",
        reason: Reason = "",
    ) -> None:
        super().__init__(text, address, reason=reason)
        self.status = status
        self.code = code


class ConnectionLostError(PeerError):
    """A connection ended; what was in flight on it will be delivered again by nsqd.

    ``answered`` counts the replies that a request of several commands had got before.
    """

    answered = 0


class ProtocolError(ConnectionLostError):
    """The peer sent bytes that are not the NSQ protocol (tcp_protocol_spec, Data Format)."""


class UnknownFrameError(ProtocolError):
    """A frame type other than 0, 1 and 2, or a message where nothing was subscribed to."""


class FrameSizeError(ProtocolError):
    """A frame size that is negative, too small for its type, or over ``max_msg_size``."""


class HTTPPortError(ProtocolError):
    """The peer answered in HTTP: this is nsqd's HTTP port (go-nsq ``protocol.go``)."""


class CodecError(ProtocolError):
    """A compressed stream is corrupt."""


NON_FATAL = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
"""Errors after which nsqd keeps the connection (building_client_libraries, "A Brief Interlude")."""

AUTH_CODES = frozenset({"E_AUTH_FAILED", "E_AUTH_FIRST", "E_AUTH_ERROR", "E_UNAUTHORIZED"})
"""Codes by which nsqd refuses a client, now and at the next try (``nsqd/protocol_v2.go``)."""

REFUSED_BODY = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
"""Codes that blame what was published, not the server: another nsqd would say the same."""


class ServerError(ConnectionLostError):
    """An error frame. ``code`` is its first word, the only part that is stable across versions."""

    def __init__(self, text: str, address: Address | None = None) -> None:
        super().__init__(text, address)
        self.code = text.split(None, 1)[0] if text.strip() else "E_UNKNOWN"

    @property
    def fatal(self) -> bool:
        """Whether nsqd closes the connection after it."""
        return self.code not in NON_FATAL


class PublishError(NSQError):
    """Some bodies of a publish were not accepted; all others were.

    ``refused`` are the positions in the published sequence. ``permanent`` says the bodies were
    at fault: publishing them again cannot help::

        async def main() -> None:
            async with Producer([Address("127.0.0.1", 4150)]) as producer:
                try:
                    await producer.publish("events", [b"good", b""])
                except PublishError as error:
                    assert error.refused == [1] and error.permanent

        asyncio.run(main())
    """

    def __init__(self, text: str, refused: Sequence[int], *, permanent: bool) -> None:
        super().__init__(text)
        self.refused = refused
        self.permanent = permanent


class RecordError(NSQError):
    """Input data is malformed; the message names where."""


class LockedError(NSQError):
    """Another process holds the lock; the message names the file, and the process if known."""


class OutputError(NSQError):
    """The output could not be written."""


class OutputClosedError(OutputError):
    """The reader of the output is gone."""
