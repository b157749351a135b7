"""All errors of nsqtools, as one tree.

    NSQError
     +-- ConfigError          an option or argument is invalid (exit 2)
     |    +-- ConfigFileError     ... in the configuration file
     +-- UnreachableError     a server cannot be used (exit 3)
     |    +-- RefusedError        ... because one side refused the other
     |    +-- AuthError           AUTH is required, or the secret was refused
     |    +-- HTTPError           an HTTP API gave no usable response
     +-- ConnectionLostError  an established connection ended
     |    +-- ProtocolError       ... because the peer broke the protocol
     |    +-- ServerError         ... because nsqd sent an E_* frame (three codes are not fatal)
     +-- PublishError         nsqd refused messages, or none accepted them in time
     +-- RecordError          input data is malformed
     +-- LockedError          another process holds a lock (exit 75)
     +-- OutputError          the output could not be written
          +-- OutputClosedError   ... because its reader has gone (exit 141)

The text of an error about a peer begins with the peer's address: ``str(error)`` is a complete log
line.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.names import Address

Reason = Literal["", "name", "dial", "silence", "tls", "protocol"]
"""Why a peer cannot be used: its name does not resolve, the connection fails, no response comes in
time, TLS fails, or it is not an nsqd; empty for any other reason."""


def show(text: str | bytes) -> str:
    """Return a server's text as one terminal-safe line of at most 200 characters."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    line = " ".join(text[:1000].split())
    safe = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return "".join(safe)[:200]


def with_fix(number: int | None, text: str) -> str:
    """Return the text of an OSError with this errno; adds the fix if too many files are open."""
    is_full = number in (errno.EMFILE, errno.ENFILE)
    return f"{text}: raise the limit with ulimit -n" if is_full else text


class NSQError(Exception):
    """Base class of all errors raised by nsqtools; any other exception is a bug.

    For example::

        try:
            asyncio.run(consumer.run())
        except NSQError as error:
            print("failed:", error)
    """

    def bare(self) -> Self:
        """Drop traceback and cause, to save memory where many errors are kept; return the error."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class ConfigError(NSQError):
    """An argument or option has a wrong value; the message names it and the expected values.

    For example::

        try:
            ConsumerConfig(max_attempts=-1)
        except ConfigError as error:
            print(error)

    ``options`` has the names of the conflicting options, such as ``max_attempts``, if known.
    """

    def __init__(self, text: str = "", *, options: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.options = tuple(options)


class ConfigFileError(ConfigError):
    """The configuration file is invalid or missing; the text names file, table and key."""


class PeerError(NSQError):
    """An error of one server; ``str()`` is ``host:port: text`` if its address is known."""

    def __init__(self, text: str, address: Address | None = None, *, reason: Reason = "") -> None:
        super().__init__(text)
        self.text = text
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.text}" if self.address else self.text


class UnreachableError(PeerError):
    """A server could not be reached, or refused the connection; ``address`` is its address.

    For example::

        try:
            asyncio.run(consumer.run())
        except UnreachableError as error:
            print(error.address, error.text)
    """


class RefusedError(UnreachableError):
    """The server answers, but one side refused the other; another try would fail the same way.

    The cause is TLS missing on the server, a certificate, an E_* reply before SUB, or a port of a
    program other than nsqd. A refused secret is an AuthError.
    """


class AuthError(UnreachableError):
    """The server requires AUTH and no secret is set, or the server refused the secret."""


class HTTPError(UnreachableError):
    """An HTTP API could not be reached or gave no usable response.

    ``status`` is 0 if there was no response. ``code`` is the server's error code, such as
    TOPIC_NOT_FOUND, or empty.
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
    """A connection ended; nsqd redelivers its messages in flight.

    ``answered`` is the number of a request's commands already answered.
    """

    answered = 0


class ProtocolError(ConnectionLostError):
    """The peer broke the NSQ protocol (tcp_protocol_spec, Data Format)."""


class MessageSizeError(ProtocolError):
    """A message is larger than ``max_msg_size``; nsqd sends it again after each reconnection."""


NON_FATAL = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
"""Error codes after which nsqd keeps the connection open (building_client_libraries, "A Brief
Interlude")."""

AUTH_CODES = frozenset({"E_AUTH_FAILED", "E_AUTH_FIRST", "E_AUTH_ERROR", "E_UNAUTHORIZED"})
"""Error codes for a missing or refused secret; retrying cannot help (``nsqd/protocol_v2.go``)."""

REFUSED_BODY = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
"""Error codes for an invalid message: any other nsqd would refuse it, too."""


class ServerError(ConnectionLostError):
    """An error frame. ``code`` is its first word, stable across nsqd versions."""

    def __init__(self, text: str, address: Address | None = None) -> None:
        super().__init__(text, address)
        self.code = text.split(None, 1)[0] if text.strip() else "E_UNKNOWN"

    @property
    def fatal(self) -> bool:
        """Whether nsqd closes the connection after this error."""
        return self.code not in NON_FATAL


class PublishError(NSQError):
    """Some messages of a publish were not accepted; all others were.

    ``refused`` has the positions of their bodies in the published sequence. ``permanent`` is true
    if the messages are invalid: publishing them again cannot help::

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
    """Input data is malformed; the text gives the place."""


class LockedError(NSQError):
    """Another process holds the lock; the text names the file and, if known, the process."""


class OutputError(NSQError):
    """The output could not be written."""


class OutputClosedError(OutputError):
    """The reader of the output has closed it."""
