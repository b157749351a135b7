"""The server's side of the protocol: bytes to commands, responses and messages to frames.

Sans-IO. This module checks the syntax of commands, with nsqd's error texts (protocol_v2.go);
protocol.py checks whether the state of the client allows them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from nsqtools.errors import ProtocolError, ServerError
from nsqtools.names import is_valid_name
from nsqtools.proto.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.config.sandbox import NsqdOptions
    from nsqtools.sandbox.nsqd.channel import QueuedMessage

_MAX_LINE = 16 * 1024  # the buffer of nsqd's reader (client_v2.go, defaultBufferSize)
_MAX_DIGITS = 20  # of the largest number that nsqd accepts
_ID_LENGTH = 16

SIZE = Struct(">i")
_FRAME_HEADER = Struct(">ii")
_MESSAGE_HEADER = Struct(">iiqH16s")  # size, type, timestamp, attempts, id
_MESSAGE_SIZE = _MESSAGE_HEADER.size - SIZE.size


def response_frame(data: bytes) -> bytes:
    """Return a response frame."""
    return _FRAME_HEADER.pack(len(data) + 4, FrameType.RESPONSE) + data


def error_frame(text: str) -> bytes:
    """Return an error frame; ``text`` comes from ``show``."""
    data = text.encode("utf-8", "surrogateescape")
    return _FRAME_HEADER.pack(len(data) + 4, FrameType.ERROR) + data


def message_frames(batch: Sequence[QueuedMessage]) -> bytes:
    """Return a frame for each message, joined."""
    pack, kind = _MESSAGE_HEADER.pack, FrameType.MESSAGE.value
    parts = [b""] * (2 * len(batch))
    parts[::2] = [
        pack(_MESSAGE_SIZE + len(m.body), kind, m.timestamp, m.attempts, m.id) for m in batch
    ]
    parts[1::2] = [m.body for m in batch]
    return b"".join(parts)


def show(data: bytes) -> str:
    """Decode bytes of a client for an error's text; ``error_frame`` restores the bytes."""
    return data.decode("utf-8", "surrogateescape")


def to_number(word: bytes) -> int | None:
    """Return an unsigned decimal number, None for anything else."""
    return int(word) if word.isdigit() and len(word) <= _MAX_DIGITS else None


PUBLISHING = frozenset({b"PUB", b"MPUB", b"DPUB"})
_WITH_BODY = frozenset({b"IDENTIFY", b"AUTH"}) | PUBLISHING


@dataclass(slots=True, eq=False)
class ClientCommand:
    """A command: the words of its line, and the body, if any."""

    words: list[bytes]
    body: bytes = b""

    @property
    def name(self) -> bytes:
        """The first word."""
        return self.words[0]


class CommandParser:
    """Splits the data of a client into commands.

    ``admit`` is called with each line before its body is read, and may raise ServerError.
    """

    def __init__(self, admit: Callable[[ClientCommand], None], options: NsqdOptions) -> None:
        self._admit = admit
        self._max_msg_size = options.max_msg_size
        self._max_body_size = options.max_body_size
        self._buffer = bytearray()  # a bytearray deletes its beginning cheaply
        self._command: ClientCommand | None = None  # whose body is incomplete

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def clear(self) -> None:
        """Discard unparsed bytes, because another layer follows."""
        self._buffer.clear()

    def next(self) -> ClientCommand | None:
        """Return the next command, None while it is incomplete.

        Raises ServerError for a line or size that nsqd would refuse, and ProtocolError for a line
        that is so long that nsqd would close the connection without a response.
        """
        if not self._command:
            end = self._buffer.find(b"\n", 0, _MAX_LINE)
            if end < 0:
                if len(self._buffer) >= _MAX_LINE:
                    raise ProtocolError("a line without an end")
                return None
            command = ClientCommand(bytes(self._buffer[:end]).removesuffix(b"\r").split(b" "))
            del self._buffer[: end + 1]
            self._admit(command)
            if command.name not in _WITH_BODY:
                return command
            self._command = command
        return self._with_body(self._command)

    def _with_body(self, command: ClientCommand) -> ClientCommand | None:
        if len(self._buffer) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._buffer)
        self._check_size(show(command.name), size)
        end = SIZE.size + size
        if len(self._buffer) < end:
            return None
        command.body = bytes(self._buffer[SIZE.size : end])
        del self._buffer[:end]
        self._command = None
        return command

    def _check_size(self, name: str, size: int) -> None:
        if name in ("PUB", "DPUB"):
            if size <= 0:
                raise ServerError(f"E_BAD_MESSAGE {name} invalid message body size {size}")
            if size > self._max_msg_size:
                limit = f"{size} > {self._max_msg_size}"
                raise ServerError(f"E_BAD_MESSAGE {name} message too big {limit}")
        elif size > self._max_body_size:
            raise ServerError(f"E_BAD_BODY {name} body too big {size} > {self._max_body_size}")
        elif size <= 0:
            raise ServerError(f"E_BAD_BODY {name} invalid body size {size}")


def split_bodies(body: bytes, options: NsqdOptions) -> list[bytes]:
    """Return the bodies of an MPUB; data after the last is ignored (protocol_v2.go, readMPUB).

    Raises ServerError.
    """
    if len(body) < SIZE.size:
        raise ServerError("E_BAD_BODY MPUB failed to read message count")
    (count,) = SIZE.unpack_from(body)
    if not 0 < count <= (options.max_body_size - 4) // 5:
        raise ServerError(f"E_BAD_BODY MPUB invalid message count {count}")
    bodies: list[bytes] = []
    start, unpack, limit = SIZE.size, SIZE.unpack_from, options.max_msg_size
    for number in range(count):
        if len(body) - start < SIZE.size:
            raise ServerError(f"E_BAD_MESSAGE MPUB failed to read message({number}) body size")
        (size,) = unpack(body, start)
        if size <= 0:
            raise ServerError(f"E_BAD_MESSAGE MPUB invalid message({number}) body size {size}")
        if size > limit:
            raise ServerError(f"E_BAD_MESSAGE MPUB message too big {size} > {limit}")
        start += SIZE.size + size
        if start > len(body):
            raise ServerError("E_BAD_MESSAGE MPUB failed to read message body")
        bodies.append(body[start - size : start])
    return bodies


def check_publish(command: ClientCommand, max_req_timeout: float) -> None:
    """Check the line of PUB, MPUB or DPUB; raises ServerError."""
    name, words = show(command.name), command.words
    if len(words) < (3 if name == "DPUB" else 2):
        raise ServerError(f"E_INVALID {name} insufficient number of parameters")
    twice = "E_BAD_TOPIC " if name == "MPUB" else ""
    check_name(words[1], f"{twice}{name}", "topic")
    if name == "DPUB":
        delay, longest = to_number(words[2]), round(max_req_timeout * 1000)
        if delay is None:
            raise ServerError(f"E_INVALID DPUB could not parse timeout {show(words[2])}")
        if delay > longest:
            raise ServerError(f"E_INVALID DPUB timeout {delay} out of range 0-{longest}")


def check_name(word: bytes, command: str, kind: str) -> None:
    """Check the name of a topic or channel; raises ServerError."""
    text = show(word)
    if not is_valid_name(text):
        quoted = json.dumps(text, ensure_ascii=False)
        raise ServerError(f"E_BAD_{kind.upper()} {command} {kind} name {quoted} is not valid")


def message_id(words: list[bytes], count: int) -> bytes:
    """Return the id of a FIN, REQ or TOUCH with at least ``count`` words; raises ServerError."""
    if len(words) < count:
        raise ServerError(f"E_INVALID {show(words[0])} insufficient number of params")
    if len(words[1]) != _ID_LENGTH:
        raise ServerError("E_INVALID invalid message ID")
    return words[1]
