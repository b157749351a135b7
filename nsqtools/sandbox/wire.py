"""The server's side of the wire: bytes to commands, replies and messages to frames.

Sans-IO. What a command may say is checked here, in nsqd's order and words (protocol_v2.go); whether
it may be said now is asked of the owner before its body is read, as nsqd does.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from nsqtools.errors import ProtocolError, ServerError
from nsqtools.names import is_valid_name
from nsqtools.proto.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.sandbox.consumer import Message

VERSION = "1.3.0"
MAGIC = b"  V2"

_MAX_LINE = 16 * 1024  # what nsqd's reader holds (client_v2.go, defaultBufferSize)
_ID_LENGTH = 16
_UINT64 = 1 << 64

_SIZE = Struct(">i")
_FRAME_HEADER = Struct(">ii")
_MESSAGE_HEADER = Struct(">iiqH16s")  # size, type, timestamp, attempts, id
_MESSAGE_SIZE = _MESSAGE_HEADER.size - _SIZE.size


def response(data: bytes) -> bytes:
    """A response frame."""
    return _FRAME_HEADER.pack(len(data) + 4, FrameType.RESPONSE) + data


def error(text: str) -> bytes:
    """An error frame; ``text`` as ``show`` made it."""
    data = text.encode("utf-8", "surrogateescape")
    return _FRAME_HEADER.pack(len(data) + 4, FrameType.ERROR) + data


def messages(batch: Sequence[Message]) -> bytes:
    """A message frame for each message."""
    pack, kind = _MESSAGE_HEADER.pack, FrameType.MESSAGE.value
    parts = [b""] * (2 * len(batch))
    parts[::2] = [
        pack(_MESSAGE_SIZE + len(m.body), kind, m.timestamp, m.attempts, m.id) for m in batch
    ]
    parts[1::2] = [m.body for m in batch]
    return b"".join(parts)


def show(data: bytes) -> str:
    """Bytes of a client in an error's text; ``error`` turns them back into what they were."""
    return data.decode("utf-8", "surrogateescape")


def quote(data: bytes) -> str:
    """As Go's ``%q``."""
    return '"' + "".join(map(_quote_character, show(data))) + '"'


_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def _quote_character(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    if 0xDC80 <= code <= 0xDCFF:  # an undecodable byte
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def to_number(text: bytes) -> int | None:
    """An unsigned decimal modulo 2**64, or None (internal/protocol/byte_base10.go)."""
    if not text:
        return 0
    return _fold(text) if text.isdigit() else None


def _fold(digits: bytes) -> int:
    number = 0
    for start in range(0, len(digits), 1000):  # int() refuses thousands of digits at once
        piece = digits[start : start + 1000]
        number = (number * 10 ** len(piece) + int(piece)) % _UINT64
    return number


def to_signed(number: int) -> int:
    """The int64 of the same 64 bits."""
    number %= _UINT64
    return number - _UINT64 if number >> 63 else number


@dataclass(slots=True, eq=False)
class Command:
    """One command: the line's words, and the body or bodies behind it."""

    words: list[bytes]
    body: bytes = b""
    bodies: Sequence[bytes] = ()
    delay: int = 0
    """Of DPUB, in ms."""

    @property
    def name(self) -> bytes:
        """The first word."""
        return self.words[0]


class CommandParser:
    """Splits what a client sends into commands.

    ``admit`` gets the words of each line and raises ServerError if they may not be said now.
    ``begin`` gets a command that is right so far, before its body is read, and may refuse it too.
    Sizes are in bytes, ``max_req_timeout`` in seconds.
    """

    __slots__ = (
        "_admit",
        "_begin",
        "_bodies",
        "_command",
        "_count",
        "_data",
        "_max_body_size",
        "_max_msg_size",
        "_max_req_timeout",
        "_need",
        "_pos",
        "_reads",
        "_size",
        "_step",
    )

    def __init__(
        self,
        admit: Callable[[list[bytes]], None],
        begin: Callable[[Command], None],
        *,
        max_msg_size: int,
        max_body_size: int,
        max_req_timeout: float,
    ) -> None:
        self._admit = admit
        self._begin = begin
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._max_req_timeout = max_req_timeout
        self._data = b""
        self._pos = 0
        self._reads: list[bytes] = []
        self._size = 0  # bytes not taken yet, those of the reads too
        self._need = 1
        self._command: Command | None = None  # whose body is awaited
        self._step: Callable[[Command], Command | None] = self._sized
        self._count = 0  # bodies of MPUB that are still to come
        self._bodies: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._reads.append(data)
        self._size += len(data)

    def clear(self) -> None:
        """Forget bytes that are no command yet: what follows comes over another layer."""
        self._data, self._pos, self._size, self._need = b"", 0, 0, 1
        self._reads.clear()

    def next(self) -> Command | None:
        """The next command, None while it is incomplete.

        Raises ServerError for a command that nsqd would refuse, ProtocolError for a line so long
        that it would hang up without a word. All such errors are final.
        """
        if self._size < self._need:
            return None
        if self._reads:
            rest = self._data[self._pos :]
            self._data = b"".join((rest, *self._reads)) if rest else b"".join(self._reads)
            self._pos = 0
            self._reads.clear()
        if self._command:
            return self._step(self._command)
        start = self._pos
        end = self._data.find(b"\n", start)
        if end < 0 or end - start >= _MAX_LINE:
            if self._size >= _MAX_LINE:
                raise ProtocolError("a line without an end")
            self._need = self._size + 1
            return None
        self._advance(end + 1 - start)
        words = self._data[start:end].removesuffix(b"\r").split(b" ")
        self._admit(words)
        if words[0] not in _SIZED:
            return Command(words)
        command = Command(words)
        if words[0] in _PUBLISHING:
            self._check_publish(command)
        self._begin(command)
        self._command, self._step, self._need = command, self._sized, _SIZE.size
        return self._sized(command)

    def end(self) -> str:
        """What nsqd says of a stream that ends here: an error's text, or nothing."""
        if not self._command:
            return ""
        name = show(self._command.name)
        code = "E_BAD_MESSAGE" if name in ("PUB", "DPUB") else "E_BAD_BODY"
        message = " message" if name in ("PUB", "DPUB") else ""
        if self._step == self._sized:
            size = self._size_known()
            return f"{code} {name} failed to read{message} body{'' if size else ' size'}"
        if self._step == self._counted:
            return "E_BAD_BODY MPUB failed to read message count"
        if self._size_known():
            return "E_BAD_MESSAGE MPUB failed to read message body"
        return f"E_BAD_MESSAGE MPUB failed to read message({len(self._bodies)}) body size"

    def _size_known(self) -> bool:
        return self._size >= _SIZE.size

    def _advance(self, length: int) -> None:
        self._pos += length
        self._size -= length
        self._need = 1

    def _number(self) -> int | None:
        """The int32 that is next, without taking it; None while it is incomplete."""
        if self._size < _SIZE.size:
            self._need = _SIZE.size
            return None
        number: int = _SIZE.unpack_from(self._data, self._pos)[0]
        return number

    def _take(self, size: int) -> bytes | None:
        """The body behind its size, None while it is incomplete."""
        whole = _SIZE.size + size
        if self._size < whole:
            self._need = whole
            return None
        start = self._pos + _SIZE.size
        self._advance(whole)
        return self._data[start : start + size]

    def _sized(self, command: Command) -> Command | None:
        """Read the size and, but for MPUB, the body."""
        size = self._number()
        if size is None:
            return None
        name = show(command.name)
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
        if name == "MPUB":
            self._advance(_SIZE.size)
            self._step = self._counted
            return self._counted(command)
        body = self._take(size)
        if body is None:
            return None
        command.body = body
        return self._complete(command)

    def _counted(self, command: Command) -> Command | None:
        count = self._number()
        if count is None:
            return None
        if not 0 < count <= (self._max_body_size - 4) // 5:
            raise ServerError(f"E_BAD_BODY MPUB invalid message count {count}")
        self._advance(_SIZE.size)
        self._count, self._bodies = count, []
        self._step = self._listed
        return self._listed(command)

    def _listed(self, command: Command) -> Command | None:
        """Read the bodies of MPUB; its body size is not looked at again, as nsqd does not."""
        bodies, limit = self._bodies, self._max_msg_size
        data, unpack = self._data, _SIZE.unpack_from
        start, end = self._pos, len(self._data)
        need = 1
        while len(bodies) < self._count:
            if end - start < _SIZE.size:
                need = _SIZE.size
                break
            (size,) = unpack(data, start)
            if size <= 0:
                number = len(bodies)
                raise ServerError(f"E_BAD_MESSAGE MPUB invalid message({number}) body size {size}")
            if size > limit:
                raise ServerError(f"E_BAD_MESSAGE MPUB message too big {size} > {limit}")
            after = start + _SIZE.size + size
            if after > end:
                need = _SIZE.size + size
                break
            bodies.append(data[start + _SIZE.size : after])
            start = after
        self._advance(start - self._pos)
        self._need = need
        if len(bodies) < self._count:
            return None
        command.bodies = bodies
        return self._complete(command)

    def _complete(self, command: Command) -> Command:
        self._command = None
        if command.name in _PUBLISHING and not command.bodies:
            command.bodies = (command.body,)
        return command

    def _check_publish(self, command: Command) -> None:
        name, words = show(command.name), command.words
        if len(words) < (3 if name == "DPUB" else 2):
            raise ServerError(f"E_INVALID {name} insufficient number of parameters")
        twice = "E_BAD_TOPIC " if name == "MPUB" else ""
        if not is_name(words[1]):
            text = f"{name} topic name {quote(words[1])} is not valid"
            raise ServerError(f"E_BAD_TOPIC {twice}{text}")
        if name == "DPUB":
            command.delay = self._check_delay(words[2])

    def _check_delay(self, word: bytes) -> int:
        """ms of DPUB."""
        delay = to_number(word)
        if delay is None:
            raise ServerError(f"E_INVALID DPUB could not parse timeout {show(word)}")
        longest = round(self._max_req_timeout * 1000)
        if not 0 <= to_signed(delay * 10**6) <= longest * 10**6:
            raise ServerError(f"E_INVALID DPUB timeout {delay} out of range 0-{longest}")
        return to_signed(delay * 10**6) // 10**6


_PUBLISHING = frozenset({b"PUB", b"MPUB", b"DPUB"})
_SIZED = frozenset({b"IDENTIFY", b"AUTH"}) | _PUBLISHING


def is_name(word: bytes) -> bool:
    """Whether this may be a topic or channel."""
    return word.isascii() and is_valid_name(word.decode())


def message_id(words: list[bytes], count: int) -> bytes:
    """The id that FIN, REQ or TOUCH names, of at least ``count`` words; raises ServerError."""
    if len(words) < count:
        raise ServerError(f"E_INVALID {show(words[0])} insufficient number of params")
    if len(words[1]) != _ID_LENGTH:
        raise ServerError("E_INVALID invalid message ID")
    return words[1]
